"""A node as its supervisor keeps it: limits, mode, workers, and what it tells others of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from signal import Signals

from elastic_runtime.core.messages import Failed, World
from elastic_runtime.core.supervision_events import Announced
from elastic_runtime.core.world import WorkerPhase, WorkerRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    slots: int
    max_restarts: int | None  # None: the default of `Restarts`
    shutdown_timeout_s: float = 30.0
    serves_store: bool = False


class Mode(Enum):
    WAITING = "waiting"  # joined, nothing announced yet
    WORKING = "working"
    RESTARTING = "restarting"  # the old group is being ended before the new one starts
    DRAINING = "draining"  # workers leave after the step in flight
    STOPPING = "stopping"  # workers are being ended
    SERVING = "serving"  # own work is over, others still need the store


@dataclass(slots=True)
class Worker:
    spawn: int
    phase: WorkerPhase = WorkerPhase.STARTING
    adopted: int = 0
    broken: int = 0
    member_of: int = 0
    max_workers: int = 0
    constants: str = ""
    left: bool = False
    told: int = 0  # newest generation it was told of
    offered: int = 0  # newest generation that it was told to be a member of
    failure: Failed | None = None

    def tell(self, generation: int, *, as_member: bool) -> None:
        self.told = generation
        self.offered = generation if as_member else self.offered

    def adopt(self, generation: int) -> None:
        self.adopted = max(self.adopted, generation)
        if generation <= self.offered:
            self.member_of = max(self.member_of, generation)


def worker_records(
    workers: Mapping[int, Worker], done: Mapping[int, Worker], *, ending: bool
) -> tuple[WorkerRecord, ...]:
    """By slot: the living workers, then those that finished and exited. `ending`: they are being ended for a restart,
    and nobody should count on them."""
    return tuple(
        WorkerRecord(
            slot=slot,
            spawn=worker.spawn,
            phase=worker.phase,
            adopted=worker.adopted,
            broken=worker.broken,
            member_of=worker.member_of,
            max_workers=worker.max_workers,
            constants=worker.constants,
            draining=worker.left or ending,
        )
        for slot, worker in (*sorted(workers.items()), *sorted(done.items()))
    )


def is_idle(worker: Worker, slot: int, settled: Announced) -> bool:
    """Whether a worker is in no world: still starting, or waiting for one. Nobody misses it."""
    waits = worker.phase is WorkerPhase.READY and (slot, worker.spawn) not in settled.members
    return worker.phase is WorkerPhase.STARTING or (waits and worker.adopted in (0, settled.generation))


def world_for(settled: Announced, slot: int, spawn: int, *, slots: int, drained: bool, noticed_at: float) -> World:
    """The settled generation as one of this node's workers is told of it."""
    place = settled.members.get((slot, spawn))
    return World(
        generation=settled.generation,
        rank=place.rank if place else -1,
        world_size=settled.world_size,
        planned=settled.planned,
        reason=settled.reason,
        leave=place is None and drained,
        local_rank=slot,
        local_world_size=place.local_world_size if place else slots,
        node_rank=place.node_rank if place else 0,
        node_count=settled.node_count,
        store_host=settled.store_host,
        master_port=settled.store_port,
        meeting_port=settled.meeting_port,
        noticed_at=noticed_at,
    )


def describe_exit(exit_code: int) -> str:
    if exit_code < 0:
        try:
            return f"was killed by {Signals(-exit_code).name}"
        except ValueError:
            return f"was killed by signal {-exit_code}"
    return "ended without finishing its Session" if exit_code == 0 else f"exited with {exit_code}"
