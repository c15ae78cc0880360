"""A node's place in its job: `rendezvous/membership.py` and `chair.py` step by step, on the real `next_move`.

What is `await` there is `yield` here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from elastic_runtime.core.succession import Await, Claim, Connect, Situation, next_move, why_lost
from elastic_runtime.core.world import NodeRecord
from elastic_runtime.rendezvous.membership import PREDECESSOR_WAIT_S, STORE_RETRY_S
from tests.simulation.coordination import Coordination
from tests.simulation.leases import Leases
from tests.simulation.link import Link
from tests.simulation.routine import Routine, Waits
from tests.simulation.store import Holding, StoreOut

if TYPE_CHECKING:
    from tests.simulation.agent import Agent


class Elected:
    """Membership where the seat passes on."""

    def __init__(self, agent: Agent) -> None:
        self._agent, self._cluster = agent, agent.cluster
        self._store, self._clock = agent.cluster.store, agent.cluster.clock
        self._silent_after_s = agent.cluster.setup.silent_after_s
        self.link: Link | None = None
        self.joined = False
        self.coordination: Coordination | None = None
        self._chair_term = 0
        self._overruled = False
        self._leases = Leases(agent)
        self._holder: Holding | None = None
        self._door: Coordination | None = None  # where the coordinator is that this node is or was linked to
        self._term = self._refused = self._silent = 0
        self._silent_at = 0.0
        self._empty_since: float | None = None
        self._end: tuple[int, str] | None = None
        self._watching: tuple[int, list[Any]] | None = None
        self._opening: tuple[Link, list[str]] | None = None
        self._routine = Routine(agent, self._has_come)
        self._dismissed = False

    def open(self, record: NodeRecord) -> None:
        self._routine.start(self._keep())

    # -- what the agent asks ------------------------------------------------------------------------------------------

    def publish(self, record: NodeRecord) -> None:
        if self.link is not None:
            self.link.up("record", record)

    def end_job(self, exit_code: int, reason: str) -> None:
        self._end = (exit_code, reason)
        if self.link is not None:
            self.link.up("end", self._end)

    def beat(self) -> None:
        if self.link is not None:
            self.link.beat(max(1.0, self._silent_after_s - 1.0))

    def break_off(self) -> None:
        """The process is killed: its connections close."""
        self._routine.stop()
        for link in (self.link, self._opening[0] if self._opening else None):
            if link is not None:
                link.break_off()
        if self.coordination is not None:
            self.coordination.close()

    def close(self, closed: Callable[[], object]) -> None:
        self._routine.stop()
        if self.link is not None:
            self.link.close()
        if self._opening is not None:
            self._opening[0].close()
        self._release(closed)

    def _release(self, released: Callable[[], object]) -> None:
        """Give the seat up, then coordinate no more."""
        if self.coordination is None:
            released()
            return
        self._leases.revoke_all(partial(self._released, released))

    def _released(self, released: Callable[[], object]) -> None:
        self._clear()
        released()

    # -- the seat -----------------------------------------------------------------------------------------------------

    def _keep(self) -> Waits:
        while not self._dismissed:
            try:
                yield from self._go_on()
            except StoreOut:
                if not self.joined:
                    raise
                yield ("sleep", STORE_RETRY_S)

    def _go_on(self) -> Waits:
        self._see((yield ("ask", self._store.holder)))
        now = self._clock.now
        match next_move(self._situation(), now, reclaim_s=self._silent_after_s / 6):
            case Claim(over=over, reason=reason):
                yield from self._claim(over, reason)
            case Connect():
                if self.link is None:
                    yield from self._connect()
                if self.link is not None:
                    yield from self._news()
            case Await(until=until):
                yield from self._news(for_s=None if until is None else max(0.0, until - now))

    def _situation(self) -> Situation:
        holder = self._holder
        return Situation(
            may_claim=True,
            passes_on=True,
            term=holder.term if holder else 0,
            holder=holder.door.host.name if holder else "",
            mine=holder is not None and holder.term == self._chair_term,
            coordinating=self.coordination is not None,
            linked=self.link is not None,
            refused=self._refused,
            silent=self._silent,
            silent_at=self._silent_at,
            empty_since=self._empty_since,
        )

    def _see(self, holder: Holding | None) -> None:
        self._holder = holder
        if holder is None:
            self._empty_since = self._clock.now if self._empty_since is None else self._empty_since
            return
        self._empty_since = None
        self._term = holder.term
        if holder.door is not self._door:
            self._door = holder.door
            if self.link is not None:
                self.link.close()
                self.link = None
        if self.coordination is not None and holder.door is not self.coordination:
            self._cluster.note(self._agent.name, "is overruled by", holder.door.host.name)
            self._clear()

    def _claim(self, over: int, reason: str) -> Waits:
        agent = self._agent
        before = self._door.host.name if self._door is not None and self._door.host is not agent else None
        lost = why_lost(self._situation(), over, self._term)
        missing = {before: lost} if before is not None and lost else {}
        waits_s = {before: PREDECESSOR_WAIT_S} if before is not None else {}
        if self.coordination is None:
            coordination = Coordination(self._cluster, agent, self._on_overruled)
            agent.coordinations.append(coordination)
            if self._door is None:
                yield ("ask", self._store.get)  # the job's token
            self.coordination = coordination
        lease = self._leases.new()
        holding = yield ("ask", partial(self._ask_claim, lease, over))
        if holding is None:
            self._leases.drop(lease)
            if not self.coordination.leads:
                self._clear()
            return
        self._leases.keep_only(lease)
        self._chair_term = holding.term
        self._cluster.note(agent.name, "coordinates", reason)
        yield from self._lead(missing, waits_s)
        self._see(holding)
        if self.link is None:
            yield from self._connect()

    def _ask_claim(self, lease: int, over: int, agent: Agent, reply: Callable[[Any], object]) -> None:
        assert self.coordination is not None
        self._store.claim(agent, self.coordination, lease, over, reply)

    def _lead(self, lost: Mapping[str, str], waits_s: Mapping[str, float]) -> Waits:
        coordination = self.coordination
        assert coordination is not None
        if coordination.leads:
            return
        left = yield from coordination.kept.fence()
        if left.closed is None:
            coordination.lead(left, lost, waits_s)
        elif self.joined or self._agent.came_from:  # its end had not come to this node's ears
            self._release(partial(self._hear_of_the_end, left.closed))
            yield ("rest", None)
        else:  # another job may begin under its id; that would be another history
            self._agent.fails_to_join()
            yield ("rest", None)

    def _hear_of_the_end(self, closed: tuple[int, str]) -> None:
        self.joined = True
        self._agent.on_frame("closed", closed)

    def _clear(self) -> None:
        coordination, self.coordination = self.coordination, None
        self._overruled = False
        if coordination is not None:
            coordination.close()

    def _on_overruled(self) -> None:
        self._overruled = True
        self._routine.poke()

    # -- the link -----------------------------------------------------------------------------------------------------

    def _connect(self) -> Waits:
        if self.coordination is not None:  # the store was away when it was to begin
            yield from self._lead({}, {})
        assert self._door is not None
        agent, term = self._agent, self._term
        how: list[str] = []
        record = agent.machine.record()
        link = Link(self._cluster, agent, self._door, self._on_frame)
        self._opening = (link, how)

        def opened(result: str) -> None:
            how.append(result)
            self._routine.poke()

        link.connect(record, opened)
        try:
            yield from self._news()
        except StoreOut:  # the coordinator may be there all the same
            yield ("opening", None)
        self._opening = None
        if not how:  # the seat has changed meanwhile
            link.opened = None
            link.close()
        match how:
            case ["refused"]:
                self._refused = term
            case ["silent"]:
                self._silent, self._silent_at = term, self._clock.now
            case [""]:
                self.link, self._silent = link, 0
                if agent.machine.record() != record:
                    link.up("record", agent.machine.record())
                if self._end is not None:
                    link.up("end", self._end)
                self.joined = True

    def _on_frame(self, kind: str, content: Any) -> None:
        if kind == "lost":
            self._routine.poke()
        else:
            self._dismissed = self._dismissed or kind in ("closed", "evicted")
            self._agent.on_frame(kind, content)

    def _has_come(self, what: str) -> bool:
        if what == "opening":
            return self._opening is not None and bool(self._opening[1])
        return what == "news" and self._has_news()

    def _has_news(self) -> bool:
        return bool(
            self._overruled
            or (self._opening is not None and self._opening[1])
            or (self.link is not None and not self.link.open_at_node)
            or (self._watching is not None and self._watching[1])
        )

    def _news(self, *, for_s: float | None = None) -> Waits:
        """Wait until the seat changes, the link is lost, this coordinator is overruled, or the opening is done."""
        term = self._holder.term if self._holder else 0
        if self._watching is None or self._watching[0] != term:
            results: list[Any] = []
            self._watching = (term, results)

            def changed(result: Any) -> None:
                results.append(result)
                self._routine.poke()

            self._store.watch(self._agent, term, changed)
        yield ("news", for_s)
        if self._watching is not None and self._watching[1]:
            result = self._watching[1][0]
            self._watching = None
            if isinstance(result, StoreOut):
                raise result
        if self._overruled:
            self._clear()
        if self.link is not None and not self.link.open_at_node:
            self.link = None
