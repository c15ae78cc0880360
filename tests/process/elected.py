"""A job on etcd: which agent coordinates, and what is done to it."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from tests.process import facts
from tests.process.cluster import JOBS, Agent, Cluster

Address = tuple[str, int]


class Elected:
    """`agents` single-worker nodes that train the ledger job, slowed so that there is time to disturb it."""

    def __init__(
        self, cluster: Cluster, endpoints: Sequence[Address], *, agents: int, steps: int, slow_s: float = 0.15
    ) -> None:
        self.cluster = cluster
        self.steps = steps
        where = ",".join(f"{host}:{port}" for host, port in endpoints)
        self._flags = ("--rdzv-backend=etcd3", f"--rdzv-endpoint={where}")
        (cluster.directory / "slow").touch()
        self._job = (JOBS / "ledger.py", "--dir", cluster.directory, "--steps", steps, "--slow-s", slow_s)
        self.agents = [self.start() for _ in range(agents)]
        self.until_world_is(agents)

    def start(self, *, flags: Sequence[str] = (), within: Sequence[str] = ()) -> Agent:
        return self.cluster.agent(*self._job, flags=(*self._flags, *flags), within=within)

    def coordinator(self) -> Agent:
        """The agent that claimed the seat last."""
        node = self.cluster.wait_for_event("coordinates")[-1]["node"]
        return next(agent for agent in self.agents if any(e["node"] == node for e in agent.journal()))

    def others(self) -> list[Agent]:
        return [agent for agent in self.agents if agent is not self.coordinator()]

    def claims(self) -> int:
        return len(self.cluster.events("coordinates"))

    def until_another_coordinates(self, claims: int) -> float:
        """Seconds of the journal's clock at which the next claim after so many was won."""
        return float(self.cluster.wait_for_event("coordinates", count=claims + 1)[claims]["time"])

    def join(self) -> None:
        before = self.newest_world()
        self.agents.append(self.start())
        self.until_world_is(len(self.agents), after=before)

    def drain(self, agent: Agent) -> None:
        before = self.newest_world()
        agent.signal(signal.SIGTERM)
        assert agent.wait() == 0, self.cluster.account()
        self.agents.remove(agent)
        self.until_world_is(len(self.agents), after=before)

    def kill(self, agent: Agent) -> None:
        before = self.newest_world()
        agent.signal(signal.SIGKILL)
        agent.wait()
        self.agents.remove(agent)
        self.until_world_is(len(self.agents), after=before)

    def workers(self, agents: Sequence[Agent] | None = None) -> set[int]:
        return {pid for agent in agents or self.agents for pid in agent.workers().values()}

    def newest_world(self) -> int:
        """The newest generation in which a step was committed."""
        return max((e["committed_in"] for e in self.cluster.ledger() if e["kind"] == "committed"), default=0)

    def steps_done(self) -> int:
        return max((e["step"] for e in self.cluster.ledger() if e["kind"] == "committed"), default=-1)

    def steps_go_on(self, steps: int) -> None:
        wanted = self.steps_done() + steps
        self.cluster.wait_for(f"step {wanted}", lambda: self.steps_done() >= wanted)

    def until_world_is(self, workers: int, *, after: int = 0) -> None:
        def committed() -> bool:
            return any(
                e["kind"] == "committed" and e["world_size"] == workers and e["committed_in"] > after
                for e in self.cluster.ledger()
            )

        self.cluster.wait_for(f"a step committed by {workers} workers after generation {after}", committed)

    def finish(self) -> str:
        """Let it run to its end. Returns the fingerprint."""
        (self.cluster.directory / "slow").unlink()
        assert [agent.wait() for agent in self.agents] == [0] * len(self.agents), self.cluster.account()
        entries = self.cluster.ledger()
        facts.check_samples(entries, self.steps)
        facts.check_losses(entries)
        return facts.fingerprint(self.cluster.directory)
