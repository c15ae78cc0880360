"""Who trains, and with which rank.

Knows the records that nodes publish and nothing of how they travel. A world is an ordered tuple of workers; a
worker's rank is its place in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True, order=True)
class WorkerId:
    """One process, for ever: the n-th one (`spawn`) that this incarnation of a node started in a slot."""

    node: str
    slot: int
    spawn: int


class WorkerPhase(StrEnum):
    STARTING = "starting"  # the process runs, its Session is not open yet
    READY = "ready"  # its Session is open: it can be a member
    FINISHED = "finished"  # it left its Session after the last commit, or exited with 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRecord:
    slot: int
    spawn: int
    phase: WorkerPhase
    adopted: int = 0  # the newest generation this worker trains in
    broken: int = 0  # the newest generation whose collective failed under it
    member_of: int = 0  # the newest generation that it adopted as a member; the others it stood by in
    max_workers: int = 0  # what its batch rule can feed; 0 before it is known
    constants: str = ""  # digest of the job's constants; equal in all workers of a job
    draining: bool = False  # asked to leave by itself


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """A node's whole state as it sees it itself; each one replaces the one before."""

    node: str  # name and incarnation: unique for ever
    address: str
    slots: int
    store_port: int  # a store that no group of processes has used yet (MASTER_PORT); 0 while it is being opened
    meeting_port: int = 0  # where the workers of a live generation would meet
    workers: tuple[WorkerRecord, ...] = ()
    draining: bool = False
    group: int = 0  # start generation that its workers were started in; they stay of it while they are being ended
    failed_group: int = 0  # start generation whose group failed here and wants a restart (scripts without Session)
    host: str = ""  # the machine: what it is judged by when its nodes keep being lost
    front: str = "elasticrun"  # the launcher that started it
    given_up: str = ""  # why this node leaves the job although nobody asked it to

    def worker_id(self, worker: WorkerRecord) -> WorkerId:
        return WorkerId(self.node, worker.slot, worker.spawn)


def rank_order(workers: Iterable[WorkerId], seniority: Mapping[WorkerId, int]) -> tuple[WorkerId, ...]:
    """Order workers by seniority, nodes kept together.

    Survivors keep their relative order and the oldest one is rank 0, so that logs and printing stay where they were;
    the workers of a node have adjacent ranks, as under torchrun. `seniority` is the generation a worker first
    trained in; unknown workers are the youngest.
    """
    members = list(workers)
    youngest = 1 + max((seniority.get(w, 0) for w in members), default=0)

    def age(worker: WorkerId) -> int:
        return seniority.get(worker, youngest)

    oldest_on: dict[str, int] = {}
    for worker in members:
        oldest_on[worker.node] = min(age(worker), oldest_on.get(worker.node, youngest))
    return tuple(sorted(members, key=lambda w: (oldest_on[w.node], w.node, age(w), w.slot, w.spawn)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What one worker needs to know of a generation."""

    rank: int
    world_size: int
    local_world_size: int
    node_rank: int
    node_count: int
    local_index: int  # place among this node's members


def assignments(world: tuple[WorkerId, ...]) -> dict[WorkerId, Assignment]:
    local: dict[str, int] = {}
    for worker in world:
        local[worker.node] = local.get(worker.node, 0) + 1
    node_rank = {node: place for place, node in enumerate(local)}
    seen = dict.fromkeys(local, 0)
    result = {}
    for rank, worker in enumerate(world):
        result[worker] = Assignment(
            rank=rank,
            world_size=len(world),
            local_world_size=local[worker.node],
            node_rank=node_rank[worker.node],
            node_count=len(local),
            local_index=seen[worker.node],
        )
        seen[worker.node] += 1
    return result
