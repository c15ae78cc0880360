"""What must hold while the coordinator moves. Like the other checkers it knows nothing of the faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from elastic_runtime.core.coordinator_events import Evict
from elastic_runtime.core.handover import Handover
from elastic_runtime.core.view import Generation, Kind
from tests.simulation.store import Holding
from tests.simulation.violation import Violation

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.checkers import Checkers
    from tests.simulation.cluster import Cluster
    from tests.simulation.coordination import Coordination
    from tests.simulation.process import Process

EVIDENT_S = 1.0  # from a death that everybody sees to the next coordinator
SILENT_MARGIN_S = 2.0
LEAST_WAIT_S = 1.0  # that a successor gives any node that may still come
LOOK_S = 5.0
HEALED_S = 12.0  # no traces are left: a connection that nobody answered is given up after 10 s
DISTURBANCE_LASTS_S = 6.0  # its traces: connections that time out, waits between two tries


class Succession:
    def __init__(self, cluster: Cluster, checkers: Checkers) -> None:
        self._cluster, self._checkers = cluster, checkers
        self._gone: dict[str, str] = {}  # nodes that the job went on without, as far as the coordinator knows
        self._ever_gone: set[str] = set()
        self._turned_away: set[str] = set()  # and those that may be
        self._led_at = 0.0
        self._last_number: dict[Coordination, int] = {}  # of an overruled one
        self._losses: dict[str, list[float]] = {}  # of members, by machine, as this coordinator saw them
        self._departures = 0
        self.abandonments = 0
        self.largest_document = 0
        if cluster.setup.elected:
            cluster.clock.after(LOOK_S, self._nobody_is_kept_out)

    # -- the seat -----------------------------------------------------------------------------------------------------

    def claimed(self, before: Holding | None, now: Holding) -> None:
        """A claim over somebody needs evidence."""
        if before is not None and before.door.host.alive and not before.door.closed:
            raise Violation("claims", f"{now.door.host.name} takes the seat from {before.door.host.name}, which is up")

    def dies(self, agent: Agent, *, silently: bool) -> None:
        setup = self._cluster.setup
        if silently:
            limit_s = setup.ttl_s + setup.silent_after_s / 6 + SILENT_MARGIN_S
        else:
            limit_s = EVIDENT_S
        self._departs(agent, limit_s)

    def leaves(self, agent: Agent) -> None:
        """Of its own will: it gives the seat up."""
        self._departs(agent, EVIDENT_S + self._cluster.setup.silent_after_s / 6)

    def _departs(self, agent: Agent, limit_s: float) -> None:
        cluster = self._cluster
        self._departures += 1
        if cluster.setup.elected and cluster.coordinator() is agent:
            cluster.clock.after(limit_s, self._is_followed, agent, limit_s, cluster.coordinators, self._departures)

    def _is_followed(self, agent: Agent, limit_s: float, coordinators: int, departures: int) -> None:
        cluster = self._cluster
        here = [a.name for a in cluster.agents.values() if a.alive and a.is_of_the_job() and a.exit_code is None]
        calm = departures == self._departures and not cluster.is_disturbed(
            cluster.clock.now - limit_s - DISTURBANCE_LASTS_S
        )
        if cluster.coordinators == coordinators and here and calm and self._checkers.ended_with is None:
            raise Violation("succession", f"nobody leads {limit_s:g} s after {agent.name}, though {here} are there")

    def _nobody_is_kept_out(self) -> None:
        """Once everybody reaches everybody, nodes do not stay without a link to the coordinator."""
        cluster = self._cluster
        now = cluster.clock.now
        if self._checkers.ended_with is None:
            cluster.clock.after(LOOK_S, self._nobody_is_kept_out)
            if cluster.coordinator() and self._led_at < now - HEALED_S and not cluster.is_disturbed(now - HEALED_S):
                for agent in cluster.agents.values():
                    if agent.alive and agent.membership.joined and agent.exit_code is None and agent.link is None:
                        raise Violation("kept out", f"{agent.name} has no link, and all has been well for a while")

    # -- taking over --------------------------------------------------------------------------------------------------

    def leads_too_late(self, coordination: Coordination, left: Handover) -> None:
        self._last_number[coordination] = left.generation.number

    def leads(self, coordination: Coordination, left: Handover, lost: Mapping[str, str]) -> None:
        self._led_at = self._cluster.clock.now
        for other in [a.coordination for a in self._cluster.agents.values() if a.coordination]:
            if other is not coordination and other.leads:
                self._last_number.setdefault(other, left.generation.number)
        for node in left.nodes:  # whoever was gone is not, as long as it is waited for
            self._gone.pop(node, None)
        self._losses = {}
        self._checkers.starts_over(left.nodes)
        for node, reason in lost.items():
            self._misses(node, reason)

    def gathered(self, coordination: Coordination, expected: Sequence[str]) -> None:
        """Whom the coordinator does not wait for any more."""
        machine = coordination.machine
        for node in expected:
            if node not in machine.nodes and node not in machine.gathering.awaited and node not in self._gone:
                waited_s = self._cluster.clock.now - self._led_at
                if waited_s < LEAST_WAIT_S - 1e-6:
                    raise Violation("gathering", f"{node} is given up after {waited_s:.2f} s")
                self._misses(node, "did not come")

    def _misses(self, node: str, reason: str) -> None:
        agent, cluster = self._cluster.agents[node], self._cluster
        calm = not cluster.is_disturbed(self._led_at - DISTURBANCE_LASTS_S)
        if agent.alive and agent.exit_code is None and not agent.came_from and calm:
            raise Violation("gathering", f"{node} {reason}, but it is there and reaches everybody")
        self._checkers.node_gone(node, reason, seen=False)

    def abandoned(self, coordination: Coordination) -> None:
        self.abandonments += 1

    def declare_gone(self, node: str, reason: str) -> None:
        self._gone[node] = reason
        self._ever_gone.add(node)

    def is_back(self, node: str) -> None:
        if self._gone.pop(node, None):
            self._turned_away.add(node)  # it may be, and has nothing to lose

    def is_counted(self, agent: Agent) -> bool:
        return agent.name not in self._gone

    def is_held_back(self, node: str) -> bool:
        return self._back_at(node) > self._cluster.clock.now + 1e-6

    def _back_at(self, node: str) -> float:
        """When a node may take part, by the failures of its machine."""
        losses = self._losses.get(self._cluster.agents[node].host, [])
        return losses[-1] + min(2.0 ** (len(losses) - 2), 120.0) if len(losses) > 2 else 0.0

    def turned_away(self, coordination: Coordination, effect: Evict) -> None:
        if coordination is not self._cluster.coordination:
            self._turned_away.add(effect.node)  # by one that does not know yet that it is overruled
        elif effect.rejoin and effect.node not in self._gone and effect.node not in self._turned_away:
            raise Violation("evictions", f"{effect.node} is turned away ({effect.reason}), but it was never gone")

    def rejoins(self, agent: Agent) -> None:
        if agent.name not in self._ever_gone and agent.name not in self._turned_away:
            raise Violation("survivors", f"{agent.name} starts anew, but it was never gone")

    # -- what is settled ----------------------------------------------------------------------------------------------

    def announced(self, coordination: Coordination, generation: Generation) -> None:
        last = self._last_number.get(coordination)
        if last is not None and generation.number > last:
            raise Violation("overruled", f"{coordination.host.name} announces {generation.number} after its successor")

    def written(self, handover: Handover, text: str) -> None:
        """The document grows with the world and never with history."""
        nodes, slots = len(handover.nodes), self._cluster.setup.slots
        workers = nodes * slots
        worlds = len(handover.generation.world) + len(handover.previous.world) + len(handover.trained.world)
        self.largest_document = max(self.largest_document, len(text))
        too_long = len(text) > 1500 + 120 * (nodes + worlds) + 20 * len(handover.seniority) + 300
        if too_long or len(handover.seniority) > 2 * workers + worlds or len(handover.used_ports) > nodes + 17:
            raise Violation("document", f"{len(text)} bytes for {nodes} node(s) and {worlds} place(s): {text}")

    def lost_member(self, machine: str) -> None:
        self._losses.setdefault(machine, []).append(self._cluster.clock.now)

    def decided(self, coordination: Coordination, new: Generation) -> None:
        before = {worker.node for worker in coordination.machine.generation.world}
        for node in dict.fromkeys(worker.node for worker in new.world if worker.node not in before):
            if self.is_held_back(node):
                raise Violation("flapping", f"{node} is back before {self._back_at(node)}")
        if self._cluster.setup.slots == 1:
            self._order_is_kept(coordination.machine.generation, new)

    def _order_is_kept(self, old: Generation, new: Generation) -> None:
        """Whoever stays keeps its place among those who stay."""
        if old.kind is new.kind is Kind.LIVE:
            staying = [worker for worker in old.world if worker in new.world]
            if staying != [worker for worker in new.world if worker in old.world]:
                raise Violation("ranks", f"{old.world} becomes {new.world}")

    def began(self, process: Process) -> None:
        """Training starts from nothing: not again in a job that was there when it ended well."""
        ended, agent = self._checkers.ended_with, process.agent
        if self._cluster.setup.elected and ended is not None and ended[0] == 0:
            raise Violation("after the end", f"{agent.name} trains anew, but the job is done")
