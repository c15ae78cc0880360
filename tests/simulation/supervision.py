"""What must hold of each agent and its workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_runtime.core.node import Mode
from elastic_runtime.core.supervision_events import Start
from elastic_runtime.core.view import Kind
from elastic_runtime.core.world import WorkerId
from tests.simulation.violation import Violation

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.cluster import Cluster
    from tests.simulation.process import Process


class Supervision:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._failures: dict[str, dict[int, None]] = {}

    def started(self, agent: Agent, start: Start, process: Process) -> None:
        for other in agent.processes.values():
            if other.slot == start.slot:
                raise Violation("one a slot", f"{process.name} is started beside {other.name}")
        if start.spawn != 1 + max((p.spawn for p in self._cluster.processes if p.agent is agent), default=0):
            raise Violation("one a slot", f"{process.name}: numbers of processes never come back")

    def exited(self, agent: Agent, process: Process) -> None:
        """Before its agent hears of it. A group of processes fails once, whichever of its members end."""
        machine, code = agent.machine, process.exit_code
        live = machine.announced is not None and machine.announced.kind is Kind.LIVE
        finished = process.session.finished if process.session else code == 0
        if machine.mode is Mode.WORKING and not finished and not (code == 0 and not live):
            cause = process.spawn if live else -machine.group
            self._failures.setdefault(agent.name, {})[cause] = None

    def supervised(self, agent: Agent) -> None:
        failures, budget = len(self._failures.get(agent.name, ())), self._cluster.setup.max_restarts
        if (failures > budget) != bool(agent.machine.given_up):
            raise Violation(
                "budget", f"{agent.name}: {failures} failures, {budget} restarts, {agent.machine.given_up!r}"
            )

    def killed(self, agent: Agent, process: Process, signal: int) -> None:
        mode = agent.machine.mode
        ends = mode in (Mode.DRAINING, Mode.STOPPING)
        settled = self._cluster.coordination.machine.generation
        ends_group = mode is Mode.RESTARTING and WorkerId(agent.name, process.slot, process.spawn) not in settled
        if settled.kind is Kind.LIVE and agent.is_of_the_job() and not ends and not ends_group:
            raise Violation("survivors", f"{process.name} is sent {signal!r} though its node stays")
