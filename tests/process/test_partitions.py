"""Hosts that are cut off and come back, in network namespaces: a link that is down closes no connection."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.etcd.server import program
from tests.process.cluster import Agent, Cluster
from tests.process.elected import Elected
from tests.process.facts import STEPS
from tests.process.network import Network, can_make_networks

pytestmark = pytest.mark.skipif(not can_make_networks(), reason="network namespaces need root")

HOSTS = ("a", "b", "c")
DEAD_AFTER_S = 3.0
NOTICED_S = 1.5  # beyond it: beats come every half second, and the machine is busy
SHORT_S, LONG_S = 1.0, 4.0  # of a cut that nobody may take for a death, and of one that outlives every lease


@pytest.fixture
def network() -> Iterator[Network]:
    with Network("etcd", *HOSTS) as wire, tempfile.TemporaryDirectory(dir=_memory()) as folder:
        url = f"http://{wire.addresses['etcd']}:2379"
        command = [*wire.on("etcd"), program("etcd"), f"--data-dir={folder}/data", f"--listen-client-urls={url}"]
        with Path(folder, "log").open("wb") as log:
            server = subprocess.Popen([*command, f"--advertise-client-urls={url}"], stdout=log, stderr=log)
        try:
            yield wire
        finally:
            server.kill()
            server.wait()


def _memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


class Spread(Elected):
    """One agent a host."""

    def __init__(self, cluster: Cluster, network: Network, steps: int) -> None:
        self.network = network
        self._free = list(HOSTS)
        self.host_of: dict[int, str] = {}
        super().__init__(cluster, [(network.addresses["etcd"], 2379)], agents=len(HOSTS), steps=steps, slow_s=0.25)

    def start(self, **more: object) -> Agent:
        host = self._free.pop(0)
        agent = super().start(within=self.network.on(host))
        self.host_of[agent.pid] = host
        return agent

    @contextlib.contextmanager
    def cut_off(self, agent: Agent) -> Iterator[float]:
        """Yields when, on the journals' clock."""
        host = self.host_of[agent.pid]
        self.network.cut(host)
        yield time.time()
        self.network.mend(host)

    @contextlib.contextmanager
    def cut_off_from_etcd(self, agent: Agent) -> Iterator[None]:
        host = self.host_of[agent.pid]
        self.network.cut_between(host, "etcd")
        yield
        self.network.mend_between(host, "etcd")

    def until_it_is_back(self, agent: Agent, name: str) -> None:
        """As another node than `name`, in a world of all."""
        before = self.newest_world()
        self.until_world_is(len(HOSTS), after=before)
        assert agent.node != name

    def train_for(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.steps_go_on(1)


@pytest.mark.timeout(300)
def test_a_host_that_is_cut_off_is_left_behind_and_comes_back_as_another(
    cluster: Cluster, network: Network, undisturbed: Callable[..., str]
) -> None:
    job = Spread(cluster, network, STEPS)
    everybody, generation = job.workers(), job.newest_world()

    with job.cut_off_from_etcd(job.others()[0]):
        job.train_for(LONG_S)
    with job.cut_off(job.others()[0]):
        time.sleep(SHORT_S)
    job.steps_go_on(2)
    assert (job.workers(), job.newest_world()) == (everybody, generation), "nothing was to change"

    victim = job.others()[0]
    name, survivors = victim.node, job.workers([agent for agent in job.agents if agent is not victim])
    with job.cut_off(victim) as cut_at:
        (evicted,) = cluster.wait_for_event("evicted")
        assert evicted["time"] - cut_at < DEAD_AFTER_S + NOTICED_S
        job.until_world_is(2, after=generation)
    job.until_it_is_back(victim, name)
    assert survivors < job.workers()

    victim, claims, generation = job.coordinator(), job.claims(), job.newest_world()
    name, survivors = victim.node, job.workers(job.others())
    with job.cut_off(victim) as cut_at:
        assert job.until_another_coordinates(claims) - cut_at < DEAD_AFTER_S + NOTICED_S
        job.until_world_is(2, after=generation)
    job.until_it_is_back(victim, name)
    assert survivors < job.workers()

    assert job.finish() == undisturbed(1)


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_coordinator_that_cannot_reach_etcd(
    cluster: Cluster, network: Network, undisturbed: Callable[..., str]
) -> None:
    job = Spread(cluster, network, STEPS)
    everybody, generation = job.workers(), job.newest_world()
    cut_off = job.coordinator()
    with job.cut_off_from_etcd(cut_off):
        time.sleep(SHORT_S)
    job.train_for(LONG_S)
    assert (job.workers(), job.newest_world()) == (everybody, generation)
    assert job.coordinator() is cut_off, "it may have to claim its seat again, and nobody else does"

    survivors, claims = job.workers(job.others()), job.claims()
    with job.cut_off_from_etcd(cut_off):
        job.until_another_coordinates(claims)
        job.steps_go_on(3)
    job.until_world_is(3, after=generation)
    assert survivors < job.workers()
    assert job.finish() == undisturbed(1)
