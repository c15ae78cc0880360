"""A job that workers and nodes die in, join and leave ends with the bits of one that nothing happened to."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable

import pytest

from tests.process import facts
from tests.process.cluster import JOBS, Cluster, Watch
from tests.process.facts import STEPS


class Disturbed:
    """A running job of three workers on two nodes, the first of which nobody ends. Each method is one disturbance;
    it returns once the others have gone on and, where there is a replacement, it has joined."""

    def __init__(self, cluster: Cluster, seed: int, steps: int, slow_s: float) -> None:
        self.cluster = cluster
        self.random = random.Random(seed)
        directory = cluster.directory
        (directory / "slow").touch()
        self._job = (JOBS / "ledger.py", "--dir", directory, "--steps", steps, "--slow-s", slow_s)
        self.first = cluster.agent(*self._job, workers=2)
        self.second = cluster.agent(*self._job)
        self.until_world_is(3)

    def worker_killed(self) -> None:
        before = self.world()
        agent = self.random.choice([self.first, self.second])
        pid = self.random.choice(sorted(agent.workers().values()))
        untouched = self.everybody() - {pid}
        Watch(pid).kill()
        self.until_world_is(3, after=before)
        assert untouched < self.everybody(), "a survivor's process was replaced"

    def node_killed(self) -> None:
        before = self.world()
        worker = Watch(self.second.workers()[0])
        survivors = set(self.first.workers().values())
        self.second.signal(signal.SIGKILL)
        worker.wait()
        self.until_world_is(2, after=before)
        assert set(self.first.workers().values()) == survivors

    def node_joins(self) -> None:
        before = self.world()
        running = self.everybody()
        self.second = self.cluster.agent(*self._job)
        self.until_world_is(3, after=before)
        assert running < self.everybody()

    def node_drained(self) -> None:
        before = self.world()
        survivors = set(self.first.workers().values())
        self.second.signal(signal.SIGTERM)
        assert self.second.wait() == 0
        self.until_world_is(2, after=before)
        assert set(self.first.workers().values()) == survivors

    def everybody(self) -> set[int]:
        return set(self.first.workers().values()) | set(self.second.workers().values())

    def world(self) -> int:
        """The newest generation in which a step was committed."""
        return max((e["committed_in"] for e in self.cluster.ledger() if e["kind"] == "committed"), default=0)

    def until_world_is(self, workers: int, *, after: int = 0) -> None:
        def committed() -> bool:
            return any(
                e["kind"] == "committed" and e["world_size"] == workers and e["committed_in"] > after
                for e in self.cluster.ledger()
            )

        self.cluster.wait_for(f"a step committed by {workers} workers after generation {after}", committed)

    def finish(self, steps: int) -> str:
        """Let it run to its end. Returns the fingerprint."""
        (self.cluster.directory / "slow").unlink()
        assert [agent.wait() for agent in (self.first, self.second)] == [0, 0], self.cluster.account()
        entries = self.cluster.ledger()
        facts.check_samples(entries, steps)
        facts.check_losses(entries)
        return facts.fingerprint(self.cluster.directory)


def test_the_number_of_workers_leaves_no_trace(undisturbed: Callable[..., str]) -> None:
    assert undisturbed(1) == undisturbed(2) == undisturbed(3)


@pytest.mark.timeout(300)
def test_a_disturbed_job_ends_with_the_same_bits(cluster: Cluster, undisturbed: Callable[..., str]) -> None:
    job = Disturbed(cluster, seed=1, steps=STEPS, slow_s=0.25)
    job.worker_killed()
    job.node_drained()
    job.node_joins()
    job.node_killed()
    job.node_joins()
    job.worker_killed()
    assert job.finish(STEPS) == undisturbed(1)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_many_disturbances(cluster: Cluster, undisturbed: Callable[..., str], seed: int) -> None:
    steps = 300
    job = Disturbed(cluster, seed=seed, steps=steps, slow_s=0.4)
    deeds = ["kill"] * 10 + ["node killed", "node drained"] * 2
    job.random.shuffle(deeds)
    for deed in deeds:
        if deed == "kill":
            job.worker_killed()
        else:
            job.node_killed() if deed == "node killed" else job.node_drained()
            job.node_joins()
    assert job.finish(steps) == undisturbed(1, steps)
