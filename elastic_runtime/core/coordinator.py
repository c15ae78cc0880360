"""The coordinator's state machine: keeps the `View`, asks `decide`, and fences every settled generation by a write.

Events come in, effects go out; the driver carries them out in order. While a write of the header is under way
nothing else is decided: a generation is announced only once the store holds it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from elastic_runtime.core.coordinator_events import (
    Announce,
    Effect,
    End,
    Event,
    Evict,
    JobEnded,
    NodeGone,
    NodeHeard,
    NodeReported,
    Note,
    WakeAt,
    Write,
    WriteFailed,
    WriteWon,
)
from elastic_runtime.core.membership import Close, Hold, Settle, decide
from elastic_runtime.core.view import Generation, Kind, Policy, View
from elastic_runtime.core.world import NodeRecord, WorkerId, WorkerPhase


@dataclass(slots=True)
class Coordinator:
    policy: Policy
    silent_after_s: float = 3.0  # a node not heard for so long is dead; its beats come several times as often
    generation: Generation = field(default_factory=Generation)
    settled_at: float = 0.0
    nodes: dict[str, NodeRecord] = field(default_factory=dict)
    heard_at: dict[str, float] = field(default_factory=dict)
    joined_at: dict[str, float] = field(default_factory=dict)
    ready_since: dict[str, float] = field(default_factory=dict)
    gone: dict[str, str] = field(default_factory=dict)  # what the settled world lost, and why
    seniority: dict[WorkerId, int] = field(default_factory=dict)
    used_ports: dict[str, int] = field(default_factory=dict)
    broken_since: float | None = None
    below_min_since: float | None = None
    trained: Generation = field(default_factory=Generation)  # the last one that some worker adopted
    numbered: int = 0  # the highest number ever written: a write that failed may have been applied all the same
    writing: Generation | None = None
    retry_at: float | None = None
    ended: bool = False
    last_reason: str = ""
    last_step_at: float | None = None

    def step(self, event: Event, now: float) -> list[Effect]:
        if self.ended:
            return []
        self._excuse_own_pause(now)
        effects = self._take(event, now)
        effects += self._evict_silent(now)
        if self.writing is None and not self.ended:
            effects += self._decide(now)
        if self.ended:
            return effects
        return [e for e in effects if not isinstance(e, WakeAt)] + self._next_wake(effects, now)

    def _excuse_own_pause(self, now: float) -> None:
        """While this process did not run it could hear nobody: that silence is its own, not the nodes'."""
        pause = 0.0 if self.last_step_at is None else now - self.last_step_at
        if pause > self.silent_after_s / 2:
            self.heard_at = {node: heard + pause for node, heard in self.heard_at.items()}
        self.last_step_at = now

    def _take(self, event: Event, now: float) -> list[Effect]:
        match event:
            case NodeReported(record):
                return self._reported(record, now)
            case NodeHeard(node):
                if node in self.nodes:
                    self.heard_at[node] = now
            case NodeGone(node, reason):
                self._forget(node, reason)
            case WriteWon(number) if self.writing is not None and number == self.writing.number:
                return self._settled(self.writing, now)
            case WriteFailed(number, retry_at) if self.writing is not None and number == self.writing.number:
                self.writing, self.retry_at = None, retry_at
                return [Note("store_unreachable", f"generation {number} could not be written; trying again")]
            case JobEnded(exit_code, reason):
                return self._end(exit_code, reason)
        return []

    def _reported(self, record: NodeRecord, now: float) -> list[Effect]:
        known = self.nodes.get(record.node)
        self.nodes[record.node] = record
        self.heard_at[record.node] = now
        self._note_losses(record)
        waiting = any(
            w.phase is WorkerPhase.READY and record.worker_id(w) not in self.generation.world for w in record.workers
        )
        if waiting:
            self.ready_since.setdefault(record.node, now)
        else:
            self.ready_since.pop(record.node, None)
        if any(w.broken == self.generation.number for w in record.workers) and self.generation.number:
            self.broken_since = now if self.broken_since is None else self.broken_since
        if self._is_foreign(record):
            reason = "its Session's arguments, torch or CPU differ from the running job's"
            self._forget(record.node, reason)
            return [Evict(record.node, reason, 2), Note("refused", f"{record.node}: {reason}")]
        if known is not None:
            return []
        self.joined_at[record.node] = now
        effects: list[Effect] = [Note("joined", f"{record.node} joined with {record.slots} slot(s)")]
        if self.generation.number:
            effects.append(Announce(self.generation, (record.node,)))
        return effects

    def _is_foreign(self, record: NodeRecord) -> bool:
        """Whether a newcomer's workers were given other constants than those of the live world."""
        if self.generation.kind is not Kind.LIVE:
            return False
        world = {*self.generation.world, *self.trained.world}
        ours = {w.constants for n in self.nodes.values() for w in n.workers if n.worker_id(w) in world and w.constants}
        theirs = {w.constants for w in record.workers if w.phase is WorkerPhase.READY}
        return bool(ours) and not theirs <= ours

    def _note_losses(self, record: NodeRecord) -> None:
        if self.generation.kind is not Kind.LIVE:
            return
        here = {record.worker_id(w) for w in record.workers}
        for worker in self.generation.world:
            if worker.node == record.node and worker not in here:
                self.gone[f"{worker.node}/{worker.slot}"] = f"worker {worker.slot} of {worker.node} died"

    def _forget(self, node: str, reason: str) -> None:
        if self.nodes.pop(node, None) is None:
            return
        for table in (self.heard_at, self.joined_at, self.ready_since, self.used_ports):
            table.pop(node, None)
        if any(worker.node == node for worker in self.generation.world):
            self.gone[node] = f"node {node} {reason}"

    def _evict_silent(self, now: float) -> list[Effect]:
        silent = [n for n, heard in self.heard_at.items() if now >= heard + self.silent_after_s]
        effects: list[Effect] = []
        for node in silent:
            reason = f"was silent for {self.silent_after_s:g} s"
            self._forget(node, reason)
            self._note_silent_peer(node, reason)
            effects += [Evict(node, reason), Note("evicted", f"{node} {reason}")]
        return effects

    def _note_silent_peer(self, node: str, reason: str) -> None:
        """Until a planned world is adopted the one before it trains on, and a silent death breaks nothing there: its
        workers would wait for ever, and the planned world for them."""
        train_on = self.generation.planned and any(
            record.worker_id(w) in self.trained.world and w.adopted == self.trained.number
            for record in self.nodes.values()
            for w in record.workers
        )
        if train_on and any(worker.node == node for worker in self.trained.world):
            self.gone[node] = f"node {node} {reason}"

    def _view(self) -> View:
        return View(
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

    def _decide(self, now: float) -> list[Effect]:
        view = self._view()
        below = len(view.eligible_nodes()) < self.policy.min_nodes
        self.below_min_since = (self.below_min_since if self.below_min_since is not None else now) if below else None
        if self.retry_at is not None and now < self.retry_at:
            return [WakeAt(self.retry_at)]
        self.retry_at = None
        match decide(replace(view, below_min_since=self.below_min_since), now):
            case Settle(kind=kind, world=world, planned=planned, reason=reason):
                host = self.nodes[world[0].node] if world else None
                self.numbered += 1
                self.writing = Generation(
                    number=self.numbered,
                    kind=kind,
                    world=world,
                    planned=planned,
                    reason=reason,
                    store_host=host.address if host else "",
                    store_port=host.store_port if host else 0,
                    meeting_port=host.meeting_port if host else 0,
                )
                return [Write(self.writing)]
            case Close(exit_code=exit_code, reason=reason):
                return self._end(exit_code, reason)
            case Hold(reason=reason, until=until):
                event = "waiting" if below else "hold"
                effects: list[Effect] = [Note(event, reason)] if reason != self.last_reason else []
                self.last_reason = reason
                return effects + ([WakeAt(until)] if until is not None else [])

    def _settled(self, generation: Generation, now: float) -> list[Effect]:
        self.writing = None
        if any(self._adopted(worker) for worker in self.generation.world):
            self.trained = self.generation
        self.generation, self.settled_at, self.last_reason = generation, now, ""
        self.broken_since = None
        self.gone = {}
        if generation.kind is Kind.START:
            self.used_ports[generation.world[0].node] = generation.store_port
        for worker in generation.world:
            if generation.kind is Kind.LIVE:
                self.seniority.setdefault(worker, generation.number)
        known = {record.worker_id(w) for record in self.nodes.values() for w in record.workers}
        self.seniority = {w: g for w, g in self.seniority.items() if w in known}
        # Whoever died while the write was under way is a loss of the new world too.
        for record in self.nodes.values():
            self._note_losses(record)
        for worker in generation.world:
            if worker.node not in self.nodes:
                self.gone[worker.node] = f"node {worker.node} died"
        for node in dict.fromkeys(worker.node for worker in self.trained.world):
            if node not in self.nodes:
                self._note_silent_peer(node, "died")
        return [Note("settled", generation.reason), Announce(generation, tuple(self.nodes))]

    def _adopted(self, worker: WorkerId) -> bool:
        record = self.nodes.get(worker.node)
        number = self.generation.number
        return record is not None and any(record.worker_id(w) == worker and w.adopted >= number for w in record.workers)

    def _end(self, exit_code: int, reason: str) -> list[Effect]:
        self.ended = True
        return [Note("closed", reason), End(exit_code, reason)]

    def _next_wake(self, effects: list[Effect], now: float) -> list[Effect]:
        """One timer is enough: the earliest of what is wanted. It also shows whether this process itself was paused."""
        wanted = [e.time for e in effects if isinstance(e, WakeAt)]
        if self.heard_at:
            wanted.append(min(min(self.heard_at.values()) + self.silent_after_s, now + self.silent_after_s / 6))
        return [WakeAt(min(wanted))] if wanted else []
