"""What the coordinator knows, and what the records say by themselves.

A `View` is everything that `membership` decides from: the settled generation, the records of the nodes that are here,
and for how long some things have been true. Its methods read; none of them decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from elastic_runtime.core.world import Assignment, NodeRecord, WorkerId, WorkerPhase, WorkerRecord, assignments


class Kind(StrEnum):
    START = "start"  # the group of processes is started anew in this world, as torchrun does
    LIVE = "live"  # running Sessions move into this world


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Limits of membership. Seconds everywhere."""

    min_nodes: int
    max_nodes: int
    last_call_s: float = 0.5  # how long a start below max_nodes waits for more nodes; a later join is cheap
    evidence_wait_s: float = 0.3  # how long a broken collective without a known death waits for one
    admit_wait_s: float = 2.0  # how long ready workers of a node wait for their siblings
    start_grace_s: float = 5.0  # how long a newcomer waits for a job to show whether it opens Sessions
    join_timeout_s: float = 600.0  # how long a job waits below min_nodes before it ends


@dataclass(frozen=True, kw_only=True)
class Generation:
    """A settled world. It never changes and its number never comes back."""

    number: int = 0
    kind: Kind = Kind.START
    world: tuple[WorkerId, ...] = ()
    planned: bool = False
    reason: str = "nothing is settled yet"
    store_host: str = ""
    store_port: int = 0
    meeting_port: int = 0

    @cached_property
    def on_node(self) -> Mapping[str, tuple[WorkerId, ...]]:
        """The world, by node."""
        on_node: dict[str, tuple[WorkerId, ...]] = {}
        for worker in self.world:
            on_node[worker.node] = (*on_node.get(worker.node, ()), worker)
        return on_node

    @cached_property
    def places(self) -> Mapping[WorkerId, Assignment]:
        return assignments(self.world)

    def __contains__(self, worker: WorkerId) -> bool:
        return worker in self.on_node.get(worker.node, ())


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    policy: Policy
    generation: Generation
    settled_at: float
    nodes: Mapping[str, NodeRecord]  # alive, in the order in which they joined
    gone: Mapping[str, str]  # members of the settled world that are no more, and why
    seniority: Mapping[WorkerId, int]
    trained: Generation  # the last one before the settled one that some worker adopted
    used_ports: Mapping[str, int]  # node -> port of the store that its last group of processes used
    broken_since: float | None = None
    below_min_since: float | None = None
    joined_at: Mapping[str, float] = field(default_factory=dict)
    ready_since: Mapping[str, float] = field(default_factory=dict)  # node -> since when some of its workers wait
    held_back: Mapping[str, float] = field(default_factory=dict)  # node -> until when its host stays out
    target: int | None = None  # a person wants at most so many nodes

    @property
    def most_nodes(self) -> int:
        if self.target is None or self.is_finishing():  # whoever is not through may not be shut out by who is
            return self.policy.max_nodes
        return min(self.target, self.policy.max_nodes)

    def eligible_nodes(self) -> list[NodeRecord]:
        """Nodes that may take part: alive, staying, at most `most_nodes` of them: members first, then those whose
        workers were members last, who have the newest state."""
        members = self.generation.on_node
        staying = [
            n
            for n in self.nodes.values()
            if not n.draining and not n.given_up and (n.node in members or n.node not in self.held_back)
        ]
        staying.sort(key=lambda n: (not self._is_member(n), -max((w.member_of for w in n.workers), default=0)))
        return staying[: self.most_nodes]

    def _is_member(self, node: NodeRecord) -> bool:
        """In a live world a node is a member by its workers: those started since have no state."""
        if self.generation.kind is Kind.START:
            return node.node in self.generation.on_node
        return any(node.worker_id(worker) in self.generation for worker in node.workers)

    def present(self) -> list[tuple[NodeRecord, WorkerRecord]]:
        """The members of the settled world that are still there, with their records."""
        return [
            (node, record)
            for worker in self.generation.world
            if (node := self.nodes.get(worker.node)) is not None
            for record in node.workers
            if (record.slot, record.spawn) == (worker.slot, worker.spawn)
        ]

    def is_adopted(self) -> bool:
        return all(w.adopted >= self.generation.number for _, w in self.present())

    def is_broken(self) -> bool:
        return any(w.broken == self.generation.number for _, w in self.present())

    def is_occupied(self) -> bool:
        """Whether workers may be in a world: the settled one, or the one before it if that broke before it was left."""
        return bool(self.generation.world) or (self.generation.planned and bool(self.gone))

    def is_finishing(self) -> bool:
        """Whether somebody is through with its Session: then the last step is committed, here or in a world before."""
        return any(w.phase is WorkerPhase.FINISHED for n in self.nodes.values() for w in n.workers)

    def last_trained(self) -> Generation:
        """The settled generation once somebody has adopted it: then all of its members were there."""
        entered = any(w.adopted >= self.generation.number for _, w in self.present())
        return self.generation if entered else self.trained

    def holders(self) -> set[WorkerId]:
        """Workers that are known to hold the state of the last world that trained. Whoever it left out has an older
        one."""
        last = self.last_trained()
        return {
            me
            for node in self.nodes.values()
            for worker in node.workers
            if (me := node.worker_id(worker)) in last and worker.adopted >= last.number
        }

    def waits_for_the_finished(self) -> bool:
        """Whether a worker has left the world before for the settled one, and others were through before they heard of
        it: those will never meet it there."""
        number, members = self.generation.number, self.present()
        if not any(w.phase is WorkerPhase.FINISHED and w.adopted < number for _, w in members):
            return False
        holders = self.holders()
        return any(
            w.phase is WorkerPhase.READY
            and n.worker_id(w) in holders
            and (not self.generation.planned or w.broken >= self.trained.number)
            for n, w in members
        )

    def in_group(self, node: NodeRecord, phase: WorkerPhase) -> bool:
        """Whether all workers of the node reached this phase, and none of them is being ended for a restart."""
        here = sum(w.phase is phase for w in node.workers)
        return node.group == self.generation.number and here == node.slots

    def max_workers(self) -> int:
        limits = [w.max_workers for n in self.nodes.values() for w in n.workers if w.max_workers]
        return min(limits, default=1 << 30)
