"""What a coordinator knows of the nodes and of the settled world: it takes news in and decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from elastic_runtime.core.flapping import Flapping
from elastic_runtime.core.handover import Handover
from elastic_runtime.core.liveness import Liveness
from elastic_runtime.core.view import Generation, Kind, Policy, View
from elastic_runtime.core.world import NodeRecord, WorkerId

PORTS_OF_THE_GONE = 16


@dataclass(slots=True)
class Known:
    policy: Policy
    silent_after_s: float = 3.0
    generation: Generation = field(default_factory=Generation)
    settled_at: float = 0.0
    nodes: dict[str, NodeRecord] = field(default_factory=dict)
    joined_at: dict[str, float] = field(default_factory=dict)
    ready_since: dict[str, float] = field(default_factory=dict)
    gone: dict[str, str] = field(default_factory=dict)  # what the settled world lost, and why
    seniority: dict[WorkerId, int] = field(default_factory=dict)
    used_ports: dict[str, int] = field(default_factory=dict)
    broken_since: float | None = None
    below_min_since: float | None = None
    trained: Generation = field(default_factory=Generation)  # the last one that some worker adopted
    target: int | None = None  # at most so many nodes take part
    flapping: Flapping = field(default_factory=Flapping)
    liveness: Liveness = field(init=False)

    def __post_init__(self) -> None:
        self.liveness = Liveness(silent_after_s=self.silent_after_s)

    def view(self, now: float) -> View:
        out = {host: at for host in self.flapping.losses if (at := self.flapping.free_at(host, now)) > now}
        return View(
            held_back={n: out[r.host] for n, r in self.nodes.items() if r.host in out} if out else {},
            target=self.target,
            policy=self.policy,
            generation=self.generation,
            settled_at=self.settled_at,
            nodes=self.nodes,
            gone=self.gone,
            seniority=self.seniority,
            trained=self.trained,
            used_ports=self.used_ports,
            broken_since=self.broken_since,
            below_min_since=self.below_min_since,
            joined_at=self.joined_at,
            ready_since=self.ready_since,
        )

    def _note_losses(self, record: NodeRecord) -> None:
        if self.generation.kind is not Kind.LIVE:
            return
        here = {record.worker_id(w) for w in record.workers}
        for worker in self.generation.on_node.get(record.node, ()):
            if worker not in here:
                self.gone[f"{worker.node}/{worker.slot}"] = f"worker {worker.slot} of {worker.node} died"

    def _forget(self, node: str, reason: str, now: float) -> None:
        record = self.nodes.pop(node, None)
        if record is None:
            return
        self.liveness.forget(node)
        for table in (self.joined_at, self.ready_since):
            table.pop(node, None)
        if node in self.generation.on_node:
            self.gone[node] = f"node {node} {reason}"
            if not record.draining:
                self.flapping.lost(record.host, now)

    def _note_silent_peer(self, node: str, reason: str) -> None:
        """Until a planned world is adopted the one before it trains on, and a silent death breaks nothing there: its
        workers would wait for ever, and the planned world for them."""
        train_on = self.generation.planned and any(
            record.worker_id(w) in self.trained and w.adopted == self.trained.number
            for record in self.nodes.values()
            for w in record.workers
        )
        if train_on and node in self.trained.on_node:
            self.gone[node] = f"node {node} {reason}"

    def _miss(self, why: Mapping[str, str]) -> None:
        """Members of the settled world, and of the one before if that trains on, that are not here."""
        for node in dict.fromkeys((*self.generation.on_node, *self.trained.on_node)):
            if node in self.nodes or node in self.gone:
                continue
            reason = why.get(node, "died")
            if node in self.generation.on_node:
                self.gone[node] = f"node {node} {reason}"
            self._note_silent_peer(node, reason)

    def _handover(self, generation: Generation, closed: tuple[int, str] | None) -> Handover:
        return Handover(
            generation=generation,
            previous=self.generation,
            trained=self.trained,
            seniority=self._seniority_in(generation),
            used_ports=self._ports_used_until(generation),
            nodes=tuple(self.nodes),
            target=self.target,
            closed=closed,
        )

    def _has_stale_store(self, record: NodeRecord) -> bool:
        """Whether a node offers a store that others may have used for a group that it never heard of."""
        hosts = bool(self.generation.world) and self.generation.world[0].node == record.node
        return not hosts and record.store_port != 0 and self.used_ports.get(record.node) == record.store_port

    def _ports_used_until(self, generation: Generation) -> dict[str, int]:
        """Stores that a group of processes was to use: no other may. A node that is gone without having heard of it may
        come back with the same one, so the last of those are remembered too."""
        starts = generation.kind is Kind.START and generation.world
        used = self.used_ports | ({generation.world[0].node: generation.store_port} if starts else {})
        gone = [node for node in used if node not in self.nodes]
        forgotten = set(gone[: max(0, len(gone) - PORTS_OF_THE_GONE)])
        return {node: port for node, port in used.items() if node not in forgotten}

    def _seniority_in(self, generation: Generation) -> dict[WorkerId, int]:
        """By the generation in which a worker first trained; those that are no more are forgotten."""
        known = {record.worker_id(w) for record in self.nodes.values() for w in record.workers}
        first = dict.fromkeys(generation.world, generation.number) if generation.kind is Kind.LIVE else {}
        return {w: g for w, g in {**first, **self.seniority}.items() if w in known}

    def _adopted(self, worker: WorkerId) -> bool:
        record = self.nodes.get(worker.node)
        number = self.generation.number
        return record is not None and any(record.worker_id(w) == worker and w.adopted >= number for w in record.workers)
