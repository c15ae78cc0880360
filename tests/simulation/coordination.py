"""The coordinator's service: the real `Coordinator` driven as in `rendezvous/coordination.py`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from elastic_runtime.core import coordinator_events as co
from elastic_runtime.core.coordinator import Coordinator
from elastic_runtime.core.handover import Handover
from elastic_runtime.core.supervision_events import OthersLeft, announced_to
from elastic_runtime.core.world import NodeRecord
from elastic_runtime.rendezvous.coordination import WRITE_RETRY_S
from elastic_runtime.rendezvous.kept import FENCE_TRIES
from tests.simulation.link import Link
from tests.simulation.store import Entry, StoreOut

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.cluster import Cluster


class KeptHandover:
    """As `rendezvous/kept.py` has it. Replies are results or StoreOut."""

    def __init__(self, cluster: Cluster, host: Agent) -> None:
        self._store, self._host = cluster.store, host
        self._version = 0
        self.fenced = 0  # the version with which this coordinator began
        self._queue: list[tuple[Handover, Callable[[Any], object]]] = []

    def fence(self) -> Generator[tuple[Any, ...], Any, Handover]:
        for _ in range(FENCE_TRIES):
            entry: Entry = yield ("ask", self._store.get)
            left = entry.handover()
            won, after = yield ("ask", partial(self._swap, left, entry.version))
            if won:
                self._version = self.fenced = after.version
                return left
        raise StoreOut

    def _swap(self, handover: Handover, version: int, agent: Agent, reply: Callable[[Any], object]) -> None:
        self._store.swap(agent, handover, version, reply)

    def replace(self, handover: Handover, done: Callable[[Any], object]) -> None:
        """`done(won)`, or with StoreOut. One write at a time."""
        self._queue.append((handover, done))
        if len(self._queue) == 1:
            self._swap_next()

    def _swap_next(self) -> None:
        handover, done = self._queue[0]

        def answered(result: Any, *, again: bool = False) -> None:
            won = result
            if not isinstance(result, StoreOut):
                won, entry = result
                if not won and not again and entry.writer == self._host.name:  # an own write whose answer was lost
                    on_top = partial(answered, again=True)
                    self._store.swap(self._host, handover, entry.version, on_top)
                    return
                if won:
                    self._version = entry.version
            self._queue.pop(0)
            if self._queue:
                self._swap_next()
            done(won)

        self._store.swap(self._host, handover, self._version, answered)


class Coordination:
    """`on_overruled`: another coordinator has written to the store."""

    def __init__(self, cluster: Cluster, host: Agent, on_overruled: Callable[[], object]) -> None:
        self._cluster, self.host = cluster, host
        self._on_overruled = on_overruled
        self.machine = Coordinator(policy=cluster.setup.policy, silent_after_s=cluster.setup.silent_after_s)
        self.kept = KeptHandover(cluster, host)
        self.links: dict[str, Link] = {}
        self.leads = False
        self.closed = False
        self.ended = False
        self.knocking: dict[Link, None] = {}  # those that connected
        self._knocking: list[tuple[Link, NodeRecord]] = []
        self._said_goodbye: dict[str, None] = {}
        self._events: list[co.Event] = []
        self._left = Handover()
        self._wakes = 0

    def lead(self, left: Handover, lost: Mapping[str, str], waits_s: Mapping[str, float]) -> None:
        """The store is fenced: go on from what was left."""
        self._cluster.note(self._who, "leads", tuple(left.nodes), tuple(lost.items()))
        self._left, self.leads = left, True
        self.machine.resume(left, lost, waits_s, self._cluster.clock.now)
        if self._cluster.begins_to_lead(self):
            self._cluster.checkers.succession.leads(self, left, lost)
        else:
            self._cluster.checkers.succession.leads_too_late(self, left)
        for link, record in self._knocking:
            self.hello(link, record)
        self._knocking = []
        self.step(co.Tick())

    def close(self) -> None:
        self.closed = True
        for link in self.links.values():
            link.cut()
        for agent in self._cluster.agents.values():  # whoever is just connecting is refused
            if agent.link is not None and agent.link.server is self and not agent.link.cut_by_server:
                agent.link.cut()
        self.links, self._knocking = {}, []

    def process_ends(self) -> None:
        """Whoever was not answered yet is refused by the machine."""
        for link in self.knocking:
            if link.opened is not None:
                link.cut()

    @property
    def others(self) -> int:
        return len(self.links.keys() - {self.host.name})

    @property
    def _who(self) -> str:
        return f"coordinator {self.host.name}" if self._cluster.setup.elected else "coordinator"

    # -- links --------------------------------------------------------------------------------------------------------

    def hello(self, link: Link, record: NodeRecord) -> None:
        if self.closed:
            link.cut()
        elif not self.leads:
            self._knocking.append((link, record))
        else:
            link.down("welcome", None)
            self.links[record.node] = link
            self.step(co.NodeReported(record))

    def heard(self, link: Link, kind: str, content: Any) -> None:
        node = link.agent.name
        if kind == "eof":
            self._knocking = [each for each in self._knocking if each[0] is not link]
        if link.cut_by_server or self.links.get(node) is not link:
            return
        match kind:
            case "record":
                self.step(co.NodeReported(content))
            case "beat":
                self.step(co.NodeHeard(node))
            case "end":
                self.step(co.JobEnded(*content))
            case "bye":
                self._said_goodbye[node] = None
            case "eof":
                del self.links[node]
                self.step(co.NodeGone(node, "left" if node in self._said_goodbye else "closed its connection"))
                self._tell_if_alone()

    def _tell_if_alone(self) -> None:
        if not self.others:
            self.host.step(OthersLeft())

    # -- the machine --------------------------------------------------------------------------------------------------

    def step(self, event: co.Event) -> None:
        """Take note; decide at the end of this turn of the loop."""
        if not self._events:
            self._cluster.clock.after(0.0, self.host.deliver, self._advance)
        self._events.append(event)

    def _advance(self) -> None:
        events, self._events = self._events, []
        cluster = self._cluster
        if self.closed:
            return
        if self.host.name in self.links:
            events.append(co.NodeHeard(self.host.name))
        if cluster.coordination is self:
            for event in events:
                cluster.checkers.reported(event)
        gathers = self.machine.gathering.handover is not None
        effects = self.machine.advance(events, cluster.clock.now)
        if gathers and cluster.coordination is self:
            evicted = [effect.node for effect in effects if isinstance(effect, co.Evict)]
            cluster.checkers.succession.gathered(self, [n for n in self._left.nodes if n not in evicted])
        told = tuple(event for event in events if not isinstance(event, co.NodeHeard | co.Tick))
        if told or len(effects) > 1:
            cluster.note(self._who, told, effects)
        for effect in effects:
            self._carry_out(effect)

    def _carry_out(self, effect: co.Effect) -> None:
        cluster = self._cluster
        match effect:
            case co.WakeAt(time):
                self._wakes += 1
                cluster.clock.at(time, self.host.deliver, self._tick, self._wakes)
            case co.Write(generation, handover):
                if generation.number:
                    cluster.checkers.decided(self, generation)
                else:
                    cluster.checkers.decided_to_end(self)
                self._write(generation.number, handover)
            case co.Announce(generation, nodes):
                cluster.checkers.announced(self, generation)
                for node in nodes:
                    self._send(node, "announced", announced_to(node, generation))
            case co.Evict(node, _, _, rejoin):
                cluster.checkers.evicted(self, effect)
                self._send(node, "evicted", (effect.exit_code, effect.reason, rejoin))
                link = self.links.pop(node, None)
                if link is not None:
                    link.cut()
                    self._tell_if_alone()
            case co.End(exit_code, reason, nodes):
                if not self.ended:
                    cluster.checkers.ended(self, exit_code, reason)
                self.ended = True
                for node in nodes:
                    self._send(node, "closed", (exit_code, reason))
            case co.Note("abandoned", _):
                cluster.checkers.succession.abandoned(self)

    def _send(self, node: str, kind: str, content: Any) -> None:
        if node in self.links:
            self.links[node].down(kind, content)

    def _tick(self, number: int) -> None:
        if number == self._wakes and not self.closed:
            self.step(co.Tick())

    def _write(self, number: int, handover: Handover) -> None:
        cluster = self._cluster

        def answered(won: bool | StoreOut) -> None:
            if isinstance(won, StoreOut):
                self.step(co.WriteFailed(number, cluster.clock.now + WRITE_RETRY_S))
            elif won:
                self.step(co.WriteWon(number))
            elif not self.closed:
                cluster.note(self._who, "is overruled")
                self._on_overruled()

        cluster.writes(self)
        self.kept.replace(handover, answered)
