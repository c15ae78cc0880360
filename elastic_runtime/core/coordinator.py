"""The coordinator's state machine: keeps the `View`, asks `decide`, and fences every settled generation by a write.

Events come in, effects go out; the driver carries them out in order. While a write to the store is under way
nothing else is decided: a generation is announced only once the store holds it. A coordinator that comes after another
one starts from what the store keeps (`resume`), and decides nothing before it has heard the nodes that it must know.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from elastic_runtime.core.admission import turn_away
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
    Resized,
    WakeAt,
    Write,
    WriteFailed,
    WriteWon,
)
from elastic_runtime.core.handover import Gathering, Handover, last_trained
from elastic_runtime.core.known import Known
from elastic_runtime.core.membership import Close, Hold, Settle, decide
from elastic_runtime.core.view import Generation, Kind
from elastic_runtime.core.world import NodeRecord, WorkerPhase

END = Generation(reason="the job ends")  # stands for it where a generation is written
END_WAIT_S = 10.0  # how long the end of a job waits for the store; then it ends all the same


@dataclass(slots=True)
class Coordinator(Known):
    numbered: int = 0  # the highest number ever written: a write that failed may have been applied all the same
    writing: Generation | None = None
    retry_at: float | None = None
    ending: tuple[int, str] | None = None  # exit code and reason: the job ends as soon as the store has it
    ending_since: float | None = None
    ended: bool = False
    last_reason: str = ""
    gathering: Gathering = field(default_factory=Gathering)  # after another coordinator
    look_at: float = 0.0  # when the driver's timer goes off

    def resume(self, handover: Handover, lost: Mapping[str, str], waits_s: Mapping[str, float], now: float) -> None:
        """Start from what another coordinator left. `lost`: nodes known to be gone, and why. `waits_s`: how long to
        wait for some nodes; for the others it is `silent_after_s`."""
        self.numbered = handover.generation.number
        if handover.closed is not None or not handover.generation.number:
            return  # a new job, whose numbers go on
        self.generation, self.trained, self.settled_at = handover.generation, handover.trained, now
        self.seniority, self.used_ports = dict(handover.seniority), dict(handover.used_ports)
        self.target = handover.target
        own = {node: now + wait_s for node, wait_s in waits_s.items()}
        awaited = {node: own.get(node) for node in handover.nodes if node not in lost}
        until = now + self.silent_after_s
        self.gathering = Gathering(handover=handover, until=until, awaited=awaited, lost=dict(lost))

    def handover(self, *, closed: tuple[int, str] | None = None) -> Handover:
        """What the store should keep now. Numbers go on from the highest, even if nothing was settled under it."""
        generation = self.writing or self.generation
        return self._handover(replace(generation, number=max(generation.number, self.numbered)), closed)

    def step(self, event: Event, now: float) -> list[Effect]:
        return self.advance((event,), now)

    def advance(self, events: Iterable[Event], now: float) -> list[Effect]:
        """Take all of these in, then decide once."""
        if self.ended:
            return self._tell_late(events)
        self._excuse_own_pause(now)
        effects: list[Effect] = []
        only_heard = True
        for event in events:
            only_heard = only_heard and isinstance(event, NodeHeard)
            if not self.ended:
                effects += self._take(event, now)
        if only_heard and now < self.look_at:
            return []  # nothing that a beat could change: the timer that is set still holds
        effects += self._evict_silent(now)
        if self.gathering.handover is not None and not self.ended:
            effects += self._gather(now)
        elif self.writing is None and not self.ended:
            effects += self._decide(now)
        if self.ending is not None:  # nobody needs to begin anything any more
            effects = [e for e in effects if not isinstance(e, Announce)]
        if self.ended:
            return effects
        return [e for e in effects if not isinstance(e, WakeAt)] + self._next_wake(effects, now)

    def _excuse_own_pause(self, now: float) -> None:
        self.liveness.excuse_own_pause(now)

    def _take(self, event: Event, now: float) -> list[Effect]:
        match event:
            case NodeReported(record):
                return self._reported(record, now)
            case NodeHeard(node):
                if node in self.nodes:
                    self.liveness.heard(node, now)
            case NodeGone(node, reason):
                self._forget(node, reason, now)
            case WriteWon(number) if self.writing is not None and number == self.writing.number:
                return self._settled(self.writing, now) if self.writing is not END else self._end()
            case WriteFailed(number, retry_at) if self.writing is not None and number == self.writing.number:
                what = f"generation {number}" if self.writing is not END else "the end of the job"
                self.writing, self.retry_at = None, retry_at
                return [Note("store_unreachable", f"{what} could not be written; trying again")]
            case JobEnded(exit_code, reason):
                self.ending = (exit_code, reason) if self.ending is None else self.ending
            case Resized(nodes):
                self.target = nodes
                return [Note("resized", f"at most {nodes} node(s) take part from now on")]
        return []

    def _reported(self, record: NodeRecord, now: float) -> list[Effect]:
        known = self.nodes.get(record.node)
        worlds = (self.generation, self.trained) if self.generation.kind is Kind.LIVE else ()
        expected = known is not None or self.gathering.expects(record.node)
        stale = known is None and self._has_stale_store(record)
        if (turned_away := turn_away(record, self.nodes, worlds, expected=expected, stale=stale)) is not None:
            self._forget(record.node, turned_away.reason, now)
            return [turned_away, Note("refused", f"{record.node}: {turned_away.reason}")]
        self.nodes[record.node] = record
        self.gathering.arrived(record.node, now)
        self.liveness.heard(record.node, now)
        self._note_losses(record)
        waiting = any(
            w.phase is WorkerPhase.READY and record.worker_id(w) not in self.generation for w in record.workers
        )
        if waiting:
            self.ready_since.setdefault(record.node, now)
        else:
            self.ready_since.pop(record.node, None)
        if any(w.broken == self.generation.number for w in record.workers) and self.generation.number:
            self.broken_since = now if self.broken_since is None else self.broken_since
        if known is not None:
            return []
        self.joined_at[record.node] = now
        effects: list[Effect] = [Note("joined", f"{record.node} joined with {record.slots} slot(s)")]
        if self.gathering.handover is not None and not expected:
            self.gathering.unexpected.append(record.node)
        elif self.generation.number:
            effects.append(Announce(self.generation, (record.node,)))
        return effects

    def _evict_silent(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for node in self.liveness.silent(now):
            reason = f"was silent for {self.silent_after_s:g} s"
            self._forget(node, reason, now)
            self._note_silent_peer(node, reason)
            effects += [Evict(node, reason, rejoin=True), Note("evicted", f"{node} {reason}")]
        return effects

    def _gather(self, now: float) -> list[Effect]:
        """Nodes of the coordinator before come to this one; who is late is gone."""
        self.gathering.give_up_late(now)
        if (look := self.gathering.next_look()) is not None:
            return [WakeAt(look)]
        gathered, self.gathering = self.gathering, Gathering()
        handover = gathered.handover
        assert handover is not None
        here = [node for node in handover.nodes if node in self.nodes]
        if not here:
            self.generation, self.trained, self.settled_at = Generation(), Generation(), now
            self.seniority, self.gone = {}, {}
            note = Note("abandoned", "no node of the job that had this id is left: it starts anew")
        else:
            self.trained = last_trained(handover, self.nodes.values())
            self._miss(gathered.lost)
            note = Note("resumed", f"{len(here)} of {len(handover.nodes)} node(s) came to the new coordinator")
        untold = tuple(node for node in gathered.unexpected if node in self.nodes)
        told = [Announce(self.generation, untold)] if untold and self.generation.number else []
        return [note, *told, *self._decide(now)]

    def _decide(self, now: float) -> list[Effect]:
        view = self.view(now)
        below = len(view.eligible_nodes()) < self.policy.min_nodes
        self.below_min_since = (self.below_min_since if self.below_min_since is not None else now) if below else None
        if self.retry_at is not None and now < self.retry_at:
            return [WakeAt(self.retry_at)]
        self.retry_at = None
        if self.ending is not None:
            return self._write_end(now)
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
                return [Write(self.writing, self._handover(self.writing, None))]
            case Close(exit_code=exit_code, reason=reason):
                self.ending = (exit_code, reason)
                return self._write_end(now)
            case Hold(reason=reason, until=until):
                event = "waiting" if below else "hold"
                news = reason != self.last_reason and bool(self.nodes)  # not before this coordinator's own node is here
                effects: list[Effect] = [Note(event, reason)] if news else []
                self.last_reason = reason
                wake = [at for at in (until, min(view.held_back.values(), default=None)) if at is not None]
                return effects + ([WakeAt(min(wake))] if wake else [])

    def _settled(self, generation: Generation, now: float) -> list[Effect]:
        self.writing = None
        if any(self._adopted(worker) for worker in self.generation.world):
            self.trained = self.generation
        self.generation, self.settled_at, self.last_reason = generation, now, ""
        self.broken_since = None
        self.gone = {}
        self.used_ports = self._ports_used_until(generation)
        self.seniority = self._seniority_in(generation)
        # Whoever died while the write was under way is a loss of the new world too.
        for record in self.nodes.values():
            self._note_losses(record)
        self._miss({})
        return [Note("settled", generation.reason), Announce(generation, tuple(self.nodes))]

    def _write_end(self, now: float) -> list[Effect]:
        """The end is fenced like a generation: one that was overruled may not end the job of its successor."""
        self.ending_since = now if self.ending_since is None else self.ending_since
        if now >= self.ending_since + END_WAIT_S:
            return self._end()
        document = self.handover(closed=self.ending)
        self.writing = END
        return [Write(END, document)]

    def _end(self) -> list[Effect]:
        assert self.ending is not None
        exit_code, reason = self.ending
        self.ended = True
        return [Note("closed", reason), End(exit_code, reason, tuple(self.nodes))]

    def _tell_late(self, events: Iterable[Event]) -> list[Effect]:
        """Whoever links to a coordinator whose job is over."""
        late: list[str] = []
        for event in events:
            if isinstance(event, NodeReported) and event.record.node not in self.nodes:
                self.nodes[event.record.node] = event.record
                late.append(event.record.node)
            elif isinstance(event, NodeGone):
                self.nodes.pop(event.node, None)
        assert self.ending is not None
        return [End(*self.ending, tuple(late))] if late else []

    def _next_wake(self, effects: list[Effect], now: float) -> list[Effect]:
        """One timer is enough: the earliest of what is wanted. It also shows whether this process itself was paused."""
        wanted = [e.time for e in effects if isinstance(e, WakeAt)]
        look = self.liveness.next_look(now)
        wanted += [] if look is None else [look]
        self.look_at = min(wanted, default=now)
        return [WakeAt(self.look_at)] if wanted else []
