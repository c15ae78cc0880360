"""What happens to an agent, and what its supervisor asks to be done: the words of `supervision`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from signal import Signals

from elastic_runtime.core.messages import Down, Up
from elastic_runtime.core.view import Generation, Kind
from elastic_runtime.core.world import Assignment, NodeRecord

# -- events ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Announced:
    """The settled generation, as far as this node needs it. `members` maps (slot, spawn) of its own members."""

    generation: int
    kind: Kind
    planned: bool
    reason: str
    world_size: int
    node_count: int
    store_host: str
    store_port: int
    meeting_port: int
    host_node: str
    members: Mapping[tuple[int, int], Assignment]


def announced_to(node: str, generation: Generation) -> Announced:
    """The settled generation as this node needs it: the size of the world, and its own members."""
    return Announced(
        generation=generation.number,
        kind=generation.kind,
        planned=generation.planned,
        reason=generation.reason,
        world_size=len(generation.world),
        node_count=len(generation.on_node),
        store_host=generation.store_host,
        store_port=generation.store_port,
        meeting_port=generation.meeting_port,
        host_node=generation.world[0].node if generation.world else "",
        members={(w.slot, w.spawn): generation.places[w] for w in generation.on_node.get(node, ())},
    )


@dataclass(frozen=True, slots=True)
class StoreOpened:
    port: int


@dataclass(frozen=True, slots=True)
class Exited:
    slot: int
    spawn: int
    exit_code: int  # negative: minus the signal
    why: str = ""  # more about it, as the rest of a sentence


@dataclass(frozen=True, slots=True)
class Said:
    slot: int
    spawn: int
    message: Up


@dataclass(frozen=True, slots=True)
class Interrupted:
    signal: Signals


@dataclass(frozen=True, slots=True)
class JobClosed:
    exit_code: int
    reason: str


@dataclass(frozen=True, slots=True)
class OthersLeft:
    """No other node is connected to the store that this agent serves."""


@dataclass(frozen=True, slots=True)
class Tick:
    pass


Event = Announced | StoreOpened | Exited | Said | Interrupted | JobClosed | OthersLeft | Tick

# -- effects --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    slot: int
    spawn: int
    announced: Announced
    restarts: int  # of this node so far, as TORCHELASTIC_RESTART_COUNT has it


@dataclass(frozen=True, slots=True)
class Kill:
    slot: int
    spawn: int
    signal: Signals


@dataclass(frozen=True, slots=True)
class Tell:
    slot: int
    spawn: int
    message: Down


@dataclass(frozen=True, slots=True)
class Publish:
    record: NodeRecord


@dataclass(frozen=True, slots=True)
class OpenStore:
    """Open a fresh store for a later group of processes, then report `StoreOpened`."""


@dataclass(frozen=True, slots=True)
class EndJob:
    """Ask the coordinator to end the job for everybody."""

    exit_code: int
    reason: str


@dataclass(frozen=True, slots=True)
class Say:
    """A line for the person who watches this agent."""

    text: str


@dataclass(frozen=True, slots=True)
class Leave:
    """This agent's work is done: disconnect and exit."""

    exit_code: int


@dataclass(frozen=True, slots=True)
class WakeAt:
    time: float


Effect = Start | Kill | Tell | Publish | OpenStore | EndJob | Say | Leave | WakeAt
