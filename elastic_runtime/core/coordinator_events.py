"""What happens to a coordinator, and what it asks to be done: the words of `coordinator`."""

from __future__ import annotations

from dataclasses import dataclass

from elastic_runtime.core.handover import Handover
from elastic_runtime.core.view import Generation
from elastic_runtime.core.world import NodeRecord

# -- events ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeReported:
    record: NodeRecord


@dataclass(frozen=True, slots=True)
class NodeHeard:
    node: str


@dataclass(frozen=True, slots=True)
class NodeGone:
    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class WriteWon:
    generation: int


@dataclass(frozen=True, slots=True)
class WriteFailed:
    """The store did not take the header (unreachable). What is there is re-read by the driver before the retry."""

    generation: int
    retry_at: float


@dataclass(frozen=True, slots=True)
class JobEnded:
    """A node asks to end the job for everybody: a refused argument, the same failure twice, a second signal."""

    exit_code: int
    reason: str


@dataclass(frozen=True, slots=True)
class Resized:
    """A person wants at most so many nodes to take part; the others stand by."""

    nodes: int


@dataclass(frozen=True, slots=True)
class Tick:
    pass


Event = NodeReported | NodeHeard | NodeGone | WriteWon | WriteFailed | JobEnded | Resized | Tick

# -- effects --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Write:
    """Store this generation as settled, or the end of the job (number 0), with what a successor needs; then report
    `WriteWon` or `WriteFailed`."""

    generation: Generation
    handover: Handover


@dataclass(frozen=True, slots=True)
class Announce:
    """Send the settled generation to these nodes."""

    generation: Generation
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Evict:
    """Cut the connection of a node. `rejoin`: it may come back as a new incarnation, with new workers; otherwise it
    ends with `exit_code`."""

    node: str
    reason: str
    exit_code: int = 1
    rejoin: bool = False


@dataclass(frozen=True, slots=True)
class End:
    """The store has the end of the job, or cannot be reached: tell these nodes."""

    exit_code: int
    reason: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Note:
    """A change of mind, with its reason, for the journal."""

    event: str
    reason: str


@dataclass(frozen=True, slots=True)
class WakeAt:
    time: float


Effect = Write | Announce | Evict | End | Note | WakeAt
