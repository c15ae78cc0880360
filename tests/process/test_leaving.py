"""Nodes that are asked to go, nodes that are killed, and what ends a job."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

from elastic_runtime.rendezvous.find import SEAT
from elastic_runtime.stores.seat import KeySeat
from elastic_runtime.stores.tcp import host as host_store
from tests.process.cluster import JOBS, Agent, Cluster, Watch

ENDLESS = 10**6


class Job:
    """The ledger job in a cluster; `agent` adds a node of one worker to it."""

    def __init__(self, cluster: Cluster, steps: int = ENDLESS, script: str = "ledger.py") -> None:
        self.cluster = cluster
        (cluster.directory / "slow").touch()
        self._command = (JOBS / script, "--dir", cluster.directory, "--steps", steps, "--slow-s", 0.02)

    def agent(self, *more: object, flags: tuple[str, ...] = ()) -> Agent:
        return self.cluster.agent(*self._command, *more, flags=flags)

    def steps_go_on(self, workers: int) -> None:
        """Wait until three steps more than by now are committed, in a world of so many workers."""
        seen = len(self.cluster.ledger())

        def look() -> bool:
            new = [e for e in self.cluster.ledger()[seen:] if e["kind"] == "committed"]
            return len({e["step"] for e in new if e["world_size"] == workers}) >= 3

        self.cluster.wait_for(f"three more steps by {workers} workers", look)


def check_said(agent: Agent, words: str) -> None:
    assert words in agent.output(), agent.output()


def test_the_host_of_the_store_is_drained_and_serves_on(cluster: Cluster) -> None:
    job = Job(cluster, steps=300)
    host, other = job.agent(), job.agent()
    job.steps_go_on(2)
    worker = Watch(host.workers()[0])
    host.signal(signal.SIGTERM)
    worker.wait()
    job.steps_go_on(1)
    check_said(host, "draining")
    check_said(host, "still serving the store")
    assert host.popen.poll() is None
    (exited,) = cluster.events("worker_exited", node=host.node, pid=worker.pid)
    assert exited["exit_code"] == 0, "a drained worker finishes its step and ends by itself"
    (cluster.directory / "slow").unlink()
    assert (other.wait(), host.wait()) == (0, 0), cluster.account()


def test_a_second_signal_to_the_drained_host_ends_the_job(cluster: Cluster) -> None:
    job = Job(cluster)
    host, other = job.agent(), job.agent()
    job.steps_go_on(2)
    host.signal(signal.SIGTERM)
    cluster.wait_for("the host serves", lambda: "still serving" in host.output())
    job.steps_go_on(1)
    host.signal(signal.SIGTERM)
    assert (other.wait(), host.wait()) == (1, 1), cluster.account()
    check_said(other, "the job ends")
    check_said(other, "a second signal")


def test_the_last_one_drained_says_that_the_job_is_unfinished(cluster: Cluster) -> None:
    job = Job(cluster)
    host = job.agent()
    job.steps_go_on(1)
    host.signal(signal.SIGTERM)
    assert host.wait() == 128 + signal.SIGTERM
    check_said(host, "unfinished")


def test_ctrl_c_ends_everything_and_the_port_serves_the_next_job(cluster: Cluster) -> None:
    job = Job(cluster)
    agent = job.agent()
    job.steps_go_on(1)
    worker = Watch(agent.workers()[0])
    agent.signal(signal.SIGINT)
    assert agent.wait() == 128 + signal.SIGINT
    worker.wait(within_s=0.0)
    assert cluster.agent(JOBS / "plain.py").wait() == 0, "the same endpoint is free for the next job"


def test_a_worker_that_ignores_the_notice_is_killed_while_the_others_go_on(cluster: Cluster) -> None:
    job = Job(cluster, script="stuck.py")
    job.agent()
    job.steps_go_on(1)
    stubborn = job.agent("--stuck", flags=("--shutdown-timeout=1",))
    cluster.wait_for("it is stuck", lambda: (cluster.directory / "is-stuck").exists())
    worker = Watch(stubborn.workers()[0])
    stubborn.signal(signal.SIGTERM)
    worker.wait()
    assert cluster.events("worker_signalled", node=stubborn.node, reason="SIGKILL")
    job.steps_go_on(1)
    stubborn.wait()


def test_below_min_the_job_waits_for_a_node(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, nnodes="2:3")
    try:
        job = Job(cluster)
        job.agent()
        second = job.agent()
        job.steps_go_on(2)
        worker = Watch(second.workers()[0])
        second.signal(signal.SIGKILL)
        worker.wait()  # a killed agent takes its workers with it
        (waits,) = cluster.wait_for_event("settled", world=[])
        assert "1 of at least 2 nodes" in waits["reason"]
        third = job.agent()
        job.steps_go_on(2)
        later = [e for e in cluster.journal() if e["generation"] > waits["generation"] or third.node in e["reason"]]
        assert later[0]["event"] == "joined", "below MIN no world is made and no step taken"
    finally:
        cluster.close()


def test_a_node_whose_restarts_are_spent_leaves_and_the_others_go_on(cluster: Cluster) -> None:
    job = Job(cluster)
    job.agent()
    second = job.agent(flags=("--max-restarts=0",))
    job.steps_go_on(2)
    Watch(second.workers()[0]).kill()
    assert second.wait() == 1
    check_said(second, "the budget of 0 restart(s) is spent")
    job.steps_go_on(1)


def test_the_same_failure_on_two_workers_ends_the_job(cluster: Cluster) -> None:
    agent = cluster.agent(JOBS / "stuck.py", "--dir", cluster.directory, "--steps", 20, "--fail-at", 7, workers=2)
    assert agent.wait() == 1, cluster.account()
    check_said(agent, "the same failure twice at step 7: ZeroDivisionError: as it must")
    assert len(cluster.events("worker_started")) <= 3


def test_a_signal_ends_an_agent_whose_coordinator_does_not_answer(cluster: Cluster) -> None:
    store = host_store("127.0.0.1", 0, timeout_s=5.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60.0)
        there = {"node": "other", "address": "127.0.0.1", "port": silent.getsockname()[1], "token": "secret"}
        assert KeySeat(store, SEAT).claim({"run_id": "job", **there}, 0) is not None
        late = [f"--rdzv-endpoint=127.0.0.1:{store.port}", "--rdzv-id=job"]
        agent = cluster.agent(JOBS / "plain.py", flags=late)
        link, _ = silent.accept()
        with link:
            assert link.recv(1) == b"{", "it introduces itself and waits to be welcomed"
            agent.signal(signal.SIGTERM)
            assert agent.wait() == 128 + signal.SIGTERM, agent.output()
    store.close()
    check_said(agent, "ended by SIGTERM")
    assert not cluster.events("worker_started")
