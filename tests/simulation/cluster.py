"""A whole cluster on a virtual clock: nodes, network, store, and those who watch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from elastic_runtime.core.view import Policy
from tests.simulation.agent import Agent
from tests.simulation.checkers import Checkers
from tests.simulation.clock import Clock
from tests.simulation.coordination import Coordination
from tests.simulation.network import Network
from tests.simulation.process import Process
from tests.simulation.script import Job
from tests.simulation.store import Store

HOSTED_LIMIT_S = 1.0  # how long a request to the store may take: of the node that serves it
APART_LIMIT_S = 5.0  # and of one that it lies apart from
RETURN_S = 0.2  # from the eviction of a node to its return as another one
FIND_S = 60.0  # how long a node looks for the store

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
    elected: bool = False  # the store lies apart, and the coordinator's seat passes on; otherwise the first node's own
    ttl_s: float = 2.0  # of the seat's lease
    shuffled_names: bool = False


@dataclass(slots=True)
class Trap:
    """Ends a worker when it enters a phase."""

    phase: str
    node: str  # "": any
    slot: int  # -1: any
    left: int  # how many it catches


class Cluster:
    """`host` serves the store and coordinates for ever; None where the coordinator is elected."""

    def __init__(self, setup: Setup, seed: int) -> None:
        self.setup = setup
        self.rng = Random(seed)
        self.clock = Clock()
        self.network = Network(self.clock, self.rng, setup.network_s)
        limit_s = APART_LIMIT_S if setup.elected else HOSTED_LIMIT_S
        self.store = Store(
            self.clock, self.rng, self.network, delay_s=setup.store_s, limit_s=limit_s, ttl_s=setup.ttl_s
        )
        self.trace: list[tuple[float, str, tuple[Any, ...]]] = []
        self.traps: list[Trap] = []
        self.processes: list[Process] = []
        self.agents: dict[str, Agent] = {}
        self.checkers = Checkers(self)
        self.store.on_written = self.checkers.stored
        self.store.on_claimed = self.checkers.succession.claimed
        self.on_lead: list[Callable[[Coordination], object]] = []  # each is told of the next coordinator, once
        self.on_write: list[Callable[[Coordination], object]] = []  # and of the next write
        self.may_end_at = 0.0  # until then somebody may come although nobody is left
        self.coordination: Coordination  # of the coordinator that was the last to fence the store
        self.coordinators = 0
        self.host: Agent | None = None
        self._leases = 0
        self.stopped_until = 0.0
        if not setup.elected:
            self.host = self._new_agent("", hosts=True)
            assert self.host.anchor is not None
            self.begins_to_lead(self.host.anchor)
            self.host.anchor.leads = True
            self.clock.after(0.01, self.host.deliver, self.host.start)
        for _ in range(setup.nodes - (self.host is not None)):
            self.add_node(0.02 + 0.3 * self.rng.random())

    # -- nodes --------------------------------------------------------------------------------------------------------

    def _new_agent(self, machine: str, *, hosts: bool = False, came_from: Agent | None = None) -> Agent:
        letter = chr(ord("a") + self.rng.randrange(26)) if self.setup.shuffled_names else "n"
        name = f"{letter}{len(self.agents)}"
        self.agents[name] = Agent(self, name, machine or f"on-{name}", hosts=hosts, came_from=came_from)
        return self.agents[name]

    def add_node(self, after_s: float, machine: str = "") -> Agent | None:
        """On a machine of its own, unless one is named."""
        if self._is_over():
            return None
        agent = self._new_agent(machine)
        self.clock.after(after_s, agent.deliver, self._find, agent, FIND_S)
        return agent

    def come_back(self, agent: Agent) -> None:
        again = self._new_agent(agent.host, came_from=agent)
        self.clock.after(RETURN_S * (0.5 + self.rng.random()), again.deliver, self._find, again, FIND_S)

    def _find(self, agent: Agent, left_s: float) -> None:
        """The store is looked for before anything else."""
        if self.store.reached_at(agent) <= self.clock.now or left_s <= 0:
            self._join(agent)
        else:
            self.clock.after(0.5, agent.deliver, self._find, agent, left_s - 0.5)

    def _join(self, agent: Agent) -> None:
        self.note(agent.name, "joins", *([f"again, after {agent.came_from.name}"] if agent.came_from else []))
        for other in self.agents.values():
            if other.host == agent.host and other.vanished:
                other.vanished = False  # the machine is up again: it refuses what is not served there any more
        if self._is_over() and agent.came_from is None:
            agent.alive = False  # there is no job any more
            agent.exit_code = 1
        else:
            agent.start()

    def _is_over(self) -> bool:
        if self.host is not None:
            return not self.host.alive
        return self.checkers.ended_with is not None

    # -- the coordinator ----------------------------------------------------------------------------------------------

    def begins_to_lead(self, coordination: Coordination) -> bool:
        """Whether it is the newest: it may have been stopped between its fence and the answer to it."""
        if self.coordinators and coordination.kept.fenced < self.coordination.kept.fenced:
            return False
        self.coordination = coordination
        self.coordinators += 1
        waiting, self.on_lead = self.on_lead, []
        for told in waiting:
            told(coordination)
        return True

    def writes(self, coordination: Coordination) -> None:
        waiting, self.on_write = self.on_write, []
        for told in waiting:
            told(coordination)

    def next_lease(self) -> int:
        self._leases += 1
        return self._leases

    def coordinator(self) -> Agent | None:
        """The living node that coordinates."""
        if not self.coordinators:
            return None
        host = self.coordination.host
        return host if host.alive and not self.coordination.closed else None

    def is_disturbed(self, since: float) -> bool:
        """Whether something else than deaths kept nodes from each other or from the store."""
        return max(self.store.disturbed_until, self.network.disturbed_until, self.stopped_until) >= since

    def stop_agent(self, agent: Agent, seconds: float) -> None:
        """As by SIGSTOP, and SIGCONT later."""
        agent.pause()
        self.stopped_until = max(self.stopped_until, self.clock.now + seconds)
        self.clock.after(seconds, self._continue_agent, agent, seconds)

    def _continue_agent(self, agent: Agent, seconds: float) -> None:
        if self.coordinators and agent is self.coordination.host:
            self.checkers.coordinator_was_stopped(seconds)
        agent.resume()

    # -- who is there -------------------------------------------------------------------------------------------------

    def agent_at(self, address: str) -> Agent | None:
        """Who answers there; None: the connection is refused."""
        agent = self.agents[address]
        return agent if agent.alive or agent.vanished else None

    def staying(self) -> list[Agent]:
        """Nodes that live and were not asked to leave."""
        return [
            a
            for a in self.agents.values()
            if a.alive and not a.interrupted and not a.machine.given_up and (a.exit_code is None or a.rejoins)
        ]

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
        if self.host is not None and self.host.alive:
            return False
        return self.clock.now >= self.may_end_at and not any(a.alive for a in self.agents.values())

    def run(self, until: float) -> None:
        self.clock.run(until, self.over)
