"""The store: a document with compare-and-set, and a seat with a lease. Requests are slow, fail, and may have been
applied all the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from elastic_runtime.core.handover import Handover
from elastic_runtime.rendezvous.documents import handover_from_json, handover_to_json
from tests.simulation.clock import Clock
from tests.simulation.network import Network

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.coordination import Coordination

LEASE_CHECK_S = 0.5  # how late the end of a lease may be seen
WATCH_S = 60.0


class StoreOut(Exception):
    """The store did not answer in time."""


@dataclass(frozen=True, slots=True)
class Entry:
    text: str = ""
    version: int = 0
    writer: str = ""

    def handover(self) -> Handover:
        return handover_from_json(json.loads(self.text)) if self.version else Handover()


@dataclass(frozen=True, slots=True)
class Holding:
    """One holding of the seat. `door`: where its holder listens."""

    term: int
    door: Coordination
    lease: int


@dataclass(slots=True, eq=False)
class Watch:
    agent: Agent
    term: int  # done when the seat is not held under it any more
    done: Callable[[Any], object]
    over: bool = False

    def end(self, value: Any) -> None:
        if not self.over:
            self.over = True
            self.done(value)


Reply = Callable[[Any], object]


class Store:
    """A reply is the result, or a StoreOut."""

    def __init__(self, clock: Clock, rng: Random, network: Network, *, delay_s: float, limit_s: float, ttl_s: float):
        self._clock, self._rng, self._network = clock, rng, network
        self._delay_s, self._limit_s, self._ttl_s = delay_s, limit_s, ttl_s
        self.document = Entry()
        self.holding: Holding | None = None
        self._changes = 0  # of the seat: terms
        self._leases: dict[int, float] = {}  # until when each is good
        self._watches: list[Watch] = []
        self._out_until = 0.0
        self._slow_until = 0.0
        self._slow_s = 0.0
        self._stopped = False  # not merely out of reach: time does not pass in it
        self.lose_replies = 0
        self.disturbed_until = 0.0
        self.on_written: Callable[[Handover, str], None] = lambda handover, text: None
        self.on_claimed: Callable[[Holding | None, Holding], None] = lambda before, now: None

    # -- faults -------------------------------------------------------------------------------------------------------

    def go_out(self, seconds: float, *, stopped: bool) -> None:
        self._out_until = max(self._out_until, self._clock.now + seconds)
        self.disturbed_until = max(self.disturbed_until, self._out_until)
        if stopped:  # whoever leads a store that comes back gives all leases their full time again
            for lease in self._leases:
                self._renew(lease, self._out_until + self._ttl_s)
        for watch in self._watches:
            self._break_later(watch)

    def slow_down(self, seconds: float, by_s: float) -> None:
        self._slow_until, self._slow_s = self._clock.now + seconds, by_s
        self.disturbed_until = max(self.disturbed_until, self._slow_until)

    def lose(self, replies: int) -> None:
        self.lose_replies += replies

    def cut_off(self, host: str, seconds: float) -> None:
        self._network.cut_from_store(host, self._clock.now + seconds)
        for watch in self._watches:
            if watch.agent.host == host:
                self._break_later(watch)

    def reached_at(self, agent: Agent) -> float:
        return max(self._out_until, self._network.store_clear_at(agent.host))

    # -- requests -----------------------------------------------------------------------------------------------------

    def request(self, agent: Agent, apply: Callable[[], Any], reply: Reply) -> None:
        until = self._clock.now + self._limit_s * self._rng.random()
        self._clock.after(self._delay(), self._arrive, agent, apply, reply, until)

    def _delay(self) -> float:
        slow_s = self._slow_s if self._clock.now < self._slow_until else 0.0
        return slow_s + self._delay_s * (0.5 + self._rng.random())

    def _arrive(self, agent: Agent, apply: Callable[[], Any], reply: Reply, until: float) -> None:
        clear = self.reached_at(agent)
        if clear > until:
            self._clock.at(until, agent.deliver, reply, StoreOut())
        elif clear > self._clock.now:
            self._clock.at(clear + self._delay(), self._arrive, agent, apply, reply, until)
        else:
            self._clock.after(self._delay(), self._answer, agent, apply(), reply, until)

    def _answer(self, agent: Agent, result: Any, reply: Reply, until: float) -> None:
        if self.lose_replies or self.reached_at(agent) > self._clock.now:
            self.lose_replies = max(0, self.lose_replies - 1)
            self.disturbed_until = max(self.disturbed_until, until)
            self._clock.at(until, agent.deliver, reply, StoreOut())
        else:
            agent.deliver(reply, result)

    # -- the document -------------------------------------------------------------------------------------------------

    def get(self, agent: Agent, reply: Reply) -> None:
        self.request(agent, lambda: self.document, reply)

    def swap(self, agent: Agent, handover: Handover, version: int, reply: Reply) -> None:
        """The reply: (won, the entry that stands there now)."""
        text = json.dumps(handover_to_json(handover))

        def apply() -> tuple[bool, Entry]:
            won = version == self.document.version
            if won:
                self.document = Entry(text, version + 1, agent.name)
                self.on_written(handover, text)
            return won, self.document

        self.request(agent, apply, reply)

    # -- the seat -----------------------------------------------------------------------------------------------------

    def holder(self, agent: Agent, reply: Reply) -> None:
        self.request(agent, lambda: self.holding, reply)

    def claim(self, agent: Agent, door: Coordination, lease: int, over: int, reply: Reply) -> None:
        """The reply: the holding, None if somebody was faster. `lease`: a number of the claim's own."""

        def apply() -> Holding | None:
            before = self.holding
            if (before.term if before else 0) != over:
                return None
            self._renew(lease, self._clock.now + self._ttl_s)
            self._changes += 1
            self._seat(Holding(self._changes, door, lease))
            assert self.holding is not None
            self.on_claimed(before, self.holding)
            return self.holding

        self.request(agent, apply, reply)

    def keep(self, agent: Agent, lease: int, reply: Reply) -> None:
        """The reply: whether the lease is still good."""

        def apply() -> bool:
            if lease in self._leases:
                self._renew(lease, self._clock.now + self._ttl_s)
            return lease in self._leases

        self.request(agent, apply, reply)

    def revoke(self, agent: Agent, lease: int, reply: Reply) -> None:
        self.request(agent, lambda: self._end(lease), reply)

    def watch(self, agent: Agent, term: int, done: Reply) -> None:
        """Done when the seat is not held under `term`, after a while, or with StoreOut when the store goes out."""
        watch = Watch(agent, term, done)

        def begin(result: Any) -> None:
            if isinstance(result, StoreOut) or self._term() != term:
                watch.end(result)
                return
            self._watches.append(watch)
            self._clock.after(WATCH_S, self._tell, watch)

        self.request(agent, lambda: None, begin)

    def _term(self) -> int:
        return self.holding.term if self.holding else 0

    def _seat(self, holding: Holding | None) -> None:
        self.holding = holding
        for watch in self._watches:
            self._clock.after(self._delay(), self._tell, watch)

    def _tell(self, watch: Watch) -> None:
        clear = self.reached_at(watch.agent)
        if watch.over or clear > self._clock.now:  # it fails, or goes on where it was
            if not watch.over:
                self._clock.at(clear + self._delay(), self._tell, watch)
            return
        if watch in self._watches:
            self._watches.remove(watch)
        watch.agent.deliver(watch.end, None)

    def _break_later(self, watch: Watch) -> None:
        self._clock.after(self._limit_s * self._rng.random(), self._break, watch)

    def _break(self, watch: Watch) -> None:
        if self.reached_at(watch.agent) > self._clock.now and watch in self._watches:
            self._watches.remove(watch)
            watch.agent.deliver(watch.end, StoreOut())

    # -- leases -------------------------------------------------------------------------------------------------------

    def _renew(self, lease: int, until: float) -> None:
        self._leases[lease] = until
        self._clock.at(until + LEASE_CHECK_S * self._rng.random(), self._check, lease)

    def _check(self, lease: int) -> None:
        if lease in self._leases and self._clock.now >= self._leases[lease]:
            self._end(lease)

    def _end(self, lease: int) -> None:
        self._leases.pop(lease, None)
        if self.holding is not None and self.holding.lease == lease:
            self._changes += 1
            self._seat(None)
