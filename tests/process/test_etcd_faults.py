"""On a real etcd: the coordinator dies, leaves, is stopped; etcd's leader dies, all of etcd is down. Training goes on
in the same processes, and the bits are those of a run that nothing happened to."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator

import pytest

from tests.etcd.server import Etcd, EtcdCluster
from tests.process.cluster import Cluster
from tests.process.elected import Elected
from tests.process.facts import STEPS
from tests.process.slow_wire import SlowWire

LEASE_S = 2.0
SLOW_S = 0.1  # each way


@pytest.fixture(scope="module")
def etcd() -> Iterator[Etcd]:
    with Etcd() as server:
        yield server


@pytest.mark.timeout(300)
def test_the_coordinator_dies_leaves_and_is_stopped(
    cluster: Cluster, etcd: Etcd, undisturbed: Callable[..., str]
) -> None:
    job = Elected(cluster, etcd.endpoints, agents=3, steps=STEPS, slow_s=0.25)

    # Killed: its connections close, so nobody waits for its lease.
    victim, claims, survivors = job.coordinator(), job.claims(), job.workers(job.others())
    killed_at = time.time()
    job.kill(victim)
    assert job.until_another_coordinates(claims) - killed_at < LEASE_S
    assert job.workers() == survivors
    job.join()

    # Drained: it gives the seat up when its worker has left.
    leaving, claims, survivors = job.coordinator(), job.claims(), job.workers(job.others())
    job.drain(leaving)
    job.until_another_coordinates(claims)
    assert job.workers() == survivors
    job.join()

    # Stopped past its lease and continued: it was declared gone, and comes back as another node.
    stopped, claims, survivors = job.coordinator(), job.claims(), job.workers(job.others())
    before, old_name = job.newest_world(), stopped.node
    stopped.signal(signal.SIGSTOP)
    job.until_another_coordinates(claims)
    job.until_world_is(2, after=before)
    stopped.signal(signal.SIGCONT)
    job.until_world_is(3, after=job.newest_world())
    assert stopped.node != old_name
    assert survivors <= job.workers(), "a survivor's process was replaced"

    assert job.finish() == undisturbed(1)


def disturb_etcd(job: Elected, servers: EtcdCluster, down_s: float) -> None:
    for _ in range(2):
        leader = servers.leader()
        servers.kill(leader)
        job.steps_go_on(3)
        job.join()
        servers.restart(leader)
        job.drain(job.coordinator())
    for member in range(3):
        servers.kill(member)
    down_at = time.monotonic()
    running = job.workers()
    while time.monotonic() < down_at + down_s:
        job.steps_go_on(1)
    assert job.workers() == running
    before, late = job.newest_world(), job.start()
    for member in range(3):
        servers.restart(member, wait=False)
    servers.wait_healthy()
    job.agents.append(late)
    job.until_world_is(3, after=before)
    assert running < job.workers()
    job.drain(late)
    assert job.workers() == running


@pytest.mark.timeout(300)
def test_a_cluster_whose_leader_dies_and_that_is_down_for_a_while(
    cluster: Cluster, undisturbed: Callable[..., str]
) -> None:
    with EtcdCluster(3) as servers:
        job = Elected(cluster, servers.endpoints, agents=2, steps=STEPS, slow_s=0.3)
        disturb_etcd(job, servers, down_s=5.0)
        assert job.finish() == undisturbed(1)
        restarted = [e for e in cluster.events("worker_started") if e["spawn"] > 1]
        assert restarted == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_three_hundred_steps_over_an_outage_of_half_a_minute(cluster: Cluster, undisturbed: Callable[..., str]) -> None:
    with EtcdCluster(3) as servers:
        job = Elected(cluster, servers.endpoints, agents=2, steps=300, slow_s=0.3)
        disturb_etcd(job, servers, down_s=30.0)
        assert job.finish() == undisturbed(1, 300)
        assert [e for e in cluster.events("worker_started") if e["spawn"] > 1] == []


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_store_that_takes_two_tenths_of_a_second_for_a_request(cluster: Cluster, etcd: Etcd) -> None:
    with SlowWire(etcd.endpoint, SLOW_S) as wire:
        job = Elected(cluster, [wire.address], agents=2, steps=60, slow_s=0.25)
        job.join()
        victim, claims, survivors = job.coordinator(), job.claims(), job.workers(job.others())
        killed_at = time.time()
        job.kill(victim)
        assert job.until_another_coordinates(claims) - killed_at < LEASE_S
        assert job.workers() == survivors
        job.finish()
        pauses = [e["pause_s"] for e in cluster.events("change")]
        assert max(e["pause_s"] for e in cluster.events("change") if e["planned"]) < 1.0, pauses


@pytest.mark.timeout(200)
def test_an_id_can_be_used_again_whether_its_run_was_finished_or_abandoned(cluster: Cluster, etcd: Etcd) -> None:
    first = Elected(cluster, etcd.endpoints, agents=2, steps=10_000, slow_s=0.05)
    for agent in first.agents:
        agent.signal(signal.SIGKILL)
    for agent in first.agents:
        agent.wait()
    cluster.wait_for("the workers are gone with their agents", lambda: not cluster._left(0.0))
    left_at = first.newest_world()
    (cluster.directory / "ledger.jsonl").unlink()

    second = Cluster(cluster.directory / "second")
    try:
        job = Elected(second, etcd.endpoints, agents=1, steps=10, slow_s=0.05)
        assert second.events("abandoned")
        assert job.newest_world() > left_at, "numbers of generations never come back"
        job.finish()
    finally:
        second.close()

    third = Cluster(cluster.directory / "third")
    try:
        job = Elected(third, etcd.endpoints, agents=1, steps=10, slow_s=0.05)
        assert not third.events("abandoned")
        job.finish()
    finally:
        third.close()
