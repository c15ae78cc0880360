"""The coordinator's service: the real `Coordinator` driven as in `rendezvous/coordination.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elastic_runtime.core import coordinator_events as co
from elastic_runtime.core.coordinator import Coordinator
from elastic_runtime.core.supervision_events import Announced, OthersLeft
from elastic_runtime.core.view import Generation
from elastic_runtime.core.world import NodeRecord, assignments
from tests.simulation.network import Pipe

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.cluster import Cluster

WRITE_RETRY_S = 0.5


class Link:
    """A connection between a node and the coordinator."""

    def __init__(self, cluster: Cluster, agent: Agent) -> None:
        self.agent = agent
        self.server = cluster.coordination
        self.cut_by_server = False
        self.open_at_node = True
        ends = (agent.name, cluster.host.name)
        self._up = Pipe(cluster.clock, cluster.network, ends, cluster.host)
        self._down = Pipe(cluster.clock, cluster.network, ends, agent)

    def open(self, record: NodeRecord) -> None:
        self._up.send(self.server.hello, self, record)

    def up(self, kind: str, content: Any) -> None:
        if self.open_at_node:
            self._up.send(self.server.heard, self, kind, content)

    def down(self, kind: str, content: Any) -> None:
        self._down.send(self._arrives, kind, content)

    def _arrives(self, kind: str, content: Any) -> None:
        if kind == "lost":
            self.open_at_node = False
        self.agent.on_frame(kind, content)

    def close(self) -> None:
        """By the node, with a goodbye."""
        self.up("bye", None)
        self.break_off()

    def break_off(self) -> None:
        self.up("eof", None)
        self.open_at_node = False

    def cut(self) -> None:
        """By the coordinator."""
        self.cut_by_server = True
        self.down("lost", None)


class Coordination:
    def __init__(self, cluster: Cluster, host: Agent) -> None:
        self._cluster, self._host = cluster, host
        self.machine = Coordinator(policy=cluster.setup.policy, silent_after_s=cluster.setup.silent_after_s)
        self.links: dict[str, Link] = {}
        self._said_goodbye: dict[str, None] = {}
        self._version = 0
        self._wakes = 0
        self._closed = False

    def close(self) -> None:
        self._closed = True
        for agent in self._cluster.agents.values():  # whoever is just connecting is refused
            if agent.link is not None and not agent.link.cut_by_server:
                agent.link.cut()
        self.links = {}

    @property
    def others(self) -> int:
        return len(self.links.keys() - {self._host.name})

    # -- links --------------------------------------------------------------------------------------------------------

    def hello(self, link: Link, record: NodeRecord) -> None:
        self.links[record.node] = link
        self.step(co.NodeReported(record))

    def heard(self, link: Link, kind: str, content: Any) -> None:
        node = link.agent.name
        if link.cut_by_server:
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
            self._host.step(OthersLeft())

    # -- the machine --------------------------------------------------------------------------------------------------

    def step(self, event: co.Event) -> None:
        cluster = self._cluster
        cluster.checkers.reported(event)
        effects = self.machine.step(event, cluster.clock.now)
        if not isinstance(event, co.NodeHeard | co.Tick) or len(effects) > 1:
            cluster.note("coordinator", event, effects)
        for effect in effects:
            self._carry_out(effect)

    def _carry_out(self, effect: co.Effect) -> None:
        cluster = self._cluster
        match effect:
            case co.WakeAt(time):
                self._wakes += 1
                cluster.clock.at(time, self._host.deliver, self._tick, self._wakes)
            case co.Write(generation):
                cluster.checkers.decided(self.machine, generation)
                self._write(generation)
            case co.Announce(generation, nodes):
                cluster.checkers.announced(generation)
                for node, announced in announcements(generation, nodes).items():
                    self._send(node, "announced", announced)
            case co.Evict(node, reason):
                cluster.checkers.evicted(node)
                self._send(node, "evicted", reason)
                link = self.links.pop(node, None)
                if link is not None:
                    link.cut()
                    self._tell_if_alone()
            case co.End(exit_code, reason):
                cluster.checkers.ended(self.machine, exit_code, reason)
                for node in self.links:
                    self._send(node, "closed", (exit_code, reason))

    def _send(self, node: str, kind: str, content: Any) -> None:
        if node in self.links:
            self.links[node].down(kind, content)

    def _tick(self, number: int) -> None:
        if number == self._wakes and not self._closed:
            self.step(co.Tick())

    def _write(self, generation: Generation) -> None:
        """Compare-and-set. What stands there after a lost reply may be an earlier attempt's: the swap is on top."""

        def reply(won: bool | None, version: int, standing: Any) -> None:
            self._host.deliver(answered, won, version, standing)

        def answered(won: bool | None, version: int, standing: Any) -> None:
            if self._closed:
                return
            if won is None:
                self.step(co.WriteFailed(generation.number, self._cluster.clock.now + WRITE_RETRY_S))
            elif not won and standing != generation:
                self._cluster.store.swap(generation, version, reply)
            else:
                self._version = version
                self.step(co.WriteWon(generation.number))

        self._cluster.store.swap(generation, self._version, reply)


def announcements(generation: Generation, nodes: tuple[str, ...]) -> dict[str, Announced]:
    """As `rendezvous.frames` has them, without the way through JSON."""
    places = assignments(generation.world)
    members: dict[str, dict[tuple[int, int], Any]] = {node: {} for node in nodes}
    for worker, place in places.items():
        if worker.node in members:
            members[worker.node][worker.slot, worker.spawn] = place
    return {
        node: Announced(
            generation=generation.number,
            kind=generation.kind,
            planned=generation.planned,
            reason=generation.reason,
            world_size=len(generation.world),
            node_count=next(iter(mine.values())).node_count if mine else 0,
            store_host=generation.store_host,
            store_port=generation.store_port,
            meeting_port=generation.meeting_port,
            host_node=generation.world[0].node if generation.world else "",
            members=mine,
        )
        for node, mine in members.items()
    }
