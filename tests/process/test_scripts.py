"""Scripts that know nothing of this project under its launcher, and scripts with a Session without it."""

from __future__ import annotations

from collections.abc import Callable

from tests.process import facts
from tests.process.cluster import JOBS, Cluster
from tests.process.facts import STEPS


def test_a_script_without_a_session_is_restarted_as_a_group(cluster: Cluster) -> None:
    agent = cluster.agent(JOBS / "plain.py", cluster.directory / "failed", workers=2, flags=["--max-restarts=1"])
    assert agent.wait() == 0, cluster.account()
    assert agent.output().count("sum 3 of 2 after 0 restarts") == 2
    assert agent.output().count("sum 3 of 2 after 1 restarts") == 2
    assert len(cluster.events("worker_started")) == 4


def test_a_script_without_a_session_fails_when_no_restart_is_left(cluster: Cluster) -> None:
    agent = cluster.agent(JOBS / "plain.py", cluster.directory / "failed", workers=2, flags=["--max-restarts=0"])
    assert agent.wait() == 1, cluster.account()
    assert "worker 0 exited with 3" in agent.output()
    assert len(cluster.events("worker_started")) == 2


def test_stock_torchrun_runs_a_session_to_the_same_bits(cluster: Cluster, undisturbed: Callable[..., str]) -> None:
    script = (JOBS / "ledger.py", "--dir", cluster.directory, "--steps", STEPS)
    process = cluster.run("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *script)
    assert process.wait() == 0, process.output()
    facts.check_samples(cluster.ledger(), STEPS)
    assert {e["world_size"] for e in cluster.ledger()} == {2}
    assert facts.fingerprint(cluster.directory) == undisturbed(1)


def test_only_the_agent_opens_more_files_than_it_was_given(cluster: Cluster) -> None:
    script = ("bash", "-c", 'echo worker $(ulimit -Sn) agent $(grep "open files" /proc/$PPID/limits)')
    given = ("prlimit", "--nofile=256:4096")
    agent = cluster.agent(*script, flags=["--no-python"], within=given)
    assert agent.wait() == 0, agent.output()
    assert "worker 256 agent Max open files 4096 4096" in agent.output()
