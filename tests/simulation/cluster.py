"""A whole cluster on a virtual clock: nodes, network, store, and those who watch."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from elastic_runtime.core.view import Policy
from tests.simulation.agent import Agent
from tests.simulation.checkers import Checkers
from tests.simulation.clock import Clock
from tests.simulation.coordination import Coordination
from tests.simulation.network import HeaderStore, Network
from tests.simulation.process import Process
from tests.simulation.script import Job

# About how long a phase lasts, so that a trap strikes within it.
PHASE_S = {
    "committing": 0.009,
    "gathering": 0.002,
    "sending": 0.003,
    "pulling": 0.003,
    "lining up": 0.003,
    "after": 0.02,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What stays the same during a run. Seconds everywhere."""

    job: Job
    policy: Policy
    nodes: int
    slots: int
    max_restarts: int
    silent_after_s: float = 3.0
    shutdown_timeout_s: float = 2.0
    deaf_to_term: float = 0.0  # share of the workers that do not end on SIGTERM
    late_breaks: float = (
        0.2  # how often a collective breaks for a slow member because a fast one has left with its result
    )
    network_s: float = 0.001
    store_s: float = 0.003


@dataclass(slots=True)
class Trap:
    """Ends a worker when it enters a phase."""

    phase: str
    node: str  # "": any
    slot: int  # -1: any
    left: int  # how many it catches


class Cluster:
    def __init__(self, setup: Setup, seed: int) -> None:
        self.setup = setup
        self.rng = Random(seed)
        self.clock = Clock()
        self.network = Network(self.clock, self.rng, setup.network_s)
        self.store = HeaderStore(self.clock, self.rng, setup.store_s)
        self.trace: list[tuple[float, str, tuple[Any, ...]]] = []
        self.traps: list[Trap] = []
        self.processes: list[Process] = []
        self.agents: dict[str, Agent] = {}
        self.checkers = Checkers(self)
        self.store.on_applied = self.checkers.stored
        self.host = self._new_agent(hosts=True)
        assert self.host.coordination is not None
        self.coordination: Coordination = self.host.coordination
        self.clock.after(0.01, self.host.deliver, self.host.start)
        for _ in range(setup.nodes - 1):
            self.add_node(0.02 + 0.3 * self.rng.random())

    def _new_agent(self, *, hosts: bool) -> Agent:
        name = f"n{len(self.agents)}"
        self.agents[name] = Agent(self, name, slots=self.setup.slots, hosts=hosts)
        return self.agents[name]

    def add_node(self, after_s: float) -> None:
        if self.host.alive:
            agent = self._new_agent(hosts=False)
            self.clock.after(after_s, agent.deliver, self._join, agent)

    def _join(self, agent: Agent) -> None:
        self.note(agent.name, "joins")
        if self.host.alive:
            agent.start()
        else:
            agent.alive = False  # there is no job any more
            agent.exit_code = 1

    def agent_at(self, address: str) -> Agent | None:
        """Who answers there; None: the connection is refused."""
        agent = self.agents[address]
        return agent if agent.alive or agent.vanished else None

    def staying(self) -> list[Agent]:
        """Nodes that live and were not asked to leave."""
        return [a for a in self.agents.values() if a.alive and not a.interrupted and not a.machine.given_up]

    def living(self) -> list[Process]:
        return [p for p in self.processes if p.alive]

    def spring_traps(self, process: Process) -> None:
        for trap in self.traps:
            if (
                trap.left
                and trap.phase == process.phase
                and trap.node in ("", process.agent.name)
                and trap.slot in (-1, process.slot)
            ):
                trap.left -= 1
                self.clock.after(PHASE_S.get(trap.phase, 0.03) * self.rng.random(), process.die, -9)

    def note(self, who: str, *what: Any) -> None:
        self.trace.append((self.clock.now, who, what))

    def over(self) -> bool:
        return not self.host.alive and not any(a.alive for a in self.agents.values())

    def run(self, until: float) -> None:
        self.clock.run(until, self.over)
