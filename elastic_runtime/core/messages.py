"""What agents and workers tell each other, one message a packet. Plain data: JSON both ways, never pickle.

Worker to agent: `Ready`, `Adopted`, `Resumed`, `Broken`, `Refused`, `Failed`, `Left`, `Finished`.
Agent to worker: `World`, `Closed`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The Session is open: this worker can be a member of the next generation."""

    max_workers: int  # how many workers the batch rule can feed
    constants: str  # digest of what must be equal in all workers of a job, and its readable form
    described: str
    sources: dict[str, str] = field(default_factory=dict)  # argument of the Session -> where its value is from
    unused: list[str] = field(default_factory=list)  # what the configuration says and the script overrules


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """This worker has the group and the newest state of a generation, and trains in it."""

    generation: int
    from_nothing: bool = False  # nobody had a state: training starts where the script starts


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """The first step after a change is committed: what the change was and where its time went, in seconds."""

    generation: int
    rank: int
    old_world_size: int
    world_size: int
    step: int
    planned: bool
    redone: int  # steps in flight that were computed again
    source: str  # where the state came from: "own", or the ranks it was pulled from
    pause_s: float
    phases: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    generation: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A wrong argument of the Session: every worker would raise the same."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The script raised. `step` is the step in flight, or -1."""

    error: str
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    generation: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A settled generation as one worker sees it. `rank` -1: not a member (`why` says for how long or what to do)."""

    generation: int
    rank: int
    world_size: int
    planned: bool
    reason: str
    leave: bool = False  # drained: leave for good
    local_rank: int = 0
    local_world_size: int = 1
    node_rank: int = 0
    node_count: int = 1
    store_host: str = ""
    master_port: int = 0  # a TCPStore, for libraries that read MASTER_PORT
    meeting_port: int = 0  # where the members meet
    token: str = ""
    noticed_at: float = 0.0  # when this host's agent had the first sign of the change, on the host's monotonic clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    exit_code: int
    reason: str


Up = Ready | Adopted | Resumed | Broken | Refused | Failed | Left | Finished
Down = World | Closed
_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (Ready, Adopted, Resumed, Broken, Refused, Failed, Left, Finished, World, Closed)
}


def encode(message: Up | Down) -> bytes:
    return json.dumps({"is": type(message).__name__, **asdict(message)}).encode()


def decode(packet: bytes) -> Up | Down:
    fields = json.loads(packet)
    message: Up | Down = _KINDS[fields.pop("is")](**fields)
    return message
