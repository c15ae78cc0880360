"""How long the others stand still when somebody dies, joins or leaves.

The bounds hold on a busy machine with two cores; what was measured is printed (`pytest -s`). All times are of one
clock, the host's monotonic one: the test's own at a kill, the workers' own in the ledger.
"""

from __future__ import annotations

import signal
import statistics
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.process.cluster import JOBS, Cluster, Entry, Watch

pytestmark = pytest.mark.alone

WIDTH = 1500  # 2.3 million parameters
DELAY_S = 0.01  # of each micro-batch; with their computing three of them make a step of about 40 ms


class Job:
    """Two workers on a node that stays, and a second node for a while. It never comes to its end."""

    def __init__(self, directory: Path) -> None:
        self.cluster = Cluster(directory)
        options = ("--dir", directory, "--steps", 10**6, "--width", WIDTH, "--delay", DELAY_S, "--reduction", "fast")
        self._job = (JOBS / "ledger.py", *options)
        self.first = self.cluster.agent(*self._job, workers=2)
        self.until_world_is(2)

    def joins(self) -> float:
        """A second node joins. Returns how long the workers of the first one paused."""
        since = time.monotonic()
        self.second = self.cluster.agent(*self._job)
        self.until_world_is(3, after=since)
        return self.pause(since)

    def commits(self, after: float = 0.0) -> list[Entry]:
        return [e for e in self.cluster.ledger() if e["kind"] == "committed" and e["time"] > after]

    def until_world_is(self, workers: int, after: float = 0.0) -> None:
        """... and everybody in it has committed a few steps."""

        def look() -> bool:
            seen = [e["pid"] for e in self.commits(after) if e["world_size"] == workers]
            return len(set(seen)) == workers and min(map(seen.count, seen)) >= 3

        self.cluster.wait_for(f"three commits by each of {workers} workers", look)

    def first_commit(self, killed_at: float) -> float:
        """Seconds from a kill to the first commit in a later world."""
        before = max(e["committed_in"] for e in self.commits() if e["time"] < killed_at)
        times = [e["time"] for e in self.commits(killed_at) if e["committed_in"] > before]
        return min(times) - killed_at

    def pause(self, since: float) -> float:
        """The longest time between two commits of a worker that stays, the second of them after a moment, less that of
        a usual step."""
        gaps = [
            later - sooner
            for pid in self.first.workers().values()
            for sooner, later in pairwise(e["time"] for e in self.commits() if e["pid"] == pid)
            if later > since
        ]
        return max(gaps) - statistics.median(gaps)

    def redone(self, since: float) -> list[int]:
        """Steps that workers of the first node read in more than one world."""
        stays = self.first.workers().values()
        reads = [e for e in self.cluster.ledger() if e["kind"] == "read" and e["pid"] in stays and e["time"] > since]
        steps = [step for step, _ in {(e["step"], e["generation"]) for e in reads}]
        return sorted({step for step in steps if steps.count(step) > 1})


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    job = Job(tmp_path_factory.mktemp("recovery"))
    yield job
    job.cluster.close()


@pytest.mark.timeout(240)
def test_a_killed_worker_stops_the_other_for_less_than_half_a_second(job: Job) -> None:
    took = []
    for count in range(5):
        killed_at = Watch(job.first.workers()[count % 2]).kill()
        job.until_world_is(1, after=killed_at)
        job.until_world_is(2, after=killed_at)
        took.append(job.first_commit(killed_at))
    changes = [e for e in job.cluster.events("change") if not e["planned"]]
    print(f"\nworker SIGKILL to the other's next commit: {_ms(took)}; phases of the last: {changes[-1]['phases']}")
    assert statistics.median(took) < 0.5


@pytest.mark.timeout(240)
def test_nodes_that_come_and_go_hardly_stop_the_others(job: Job) -> None:
    began = time.monotonic()
    joins = [job.joins()]
    since = time.monotonic()
    job.second.signal(signal.SIGTERM)
    assert job.second.wait() == 0
    job.until_world_is(2, after=since)
    drain = job.pause(since)
    joins.append(job.joins())
    assert job.redone(began) == [], "a planned change redid a step"
    killed_at = time.monotonic()
    job.second.signal(signal.SIGKILL)
    job.until_world_is(2, after=killed_at)
    took = job.first_commit(killed_at)
    print(f"\njoin pauses {_ms(joins)}, drain pauses {_ms([drain])}, agent SIGKILL to the next commit {_ms([took])}")
    assert max(joins) < 0.3
    assert drain < 0.2
    assert took < 1.0


def _ms(seconds: list[float]) -> str:
    return ", ".join(f"{s * 1000:.0f}" for s in seconds) + " ms"
