"""How a failure is told, and who is gone afterwards."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from typing import Any

import pytest

from tests.process.cluster import JOBS, Cluster, Process

LAUNCHERS = {"theirs": "torch.distributed.run", "ours": "launcher"}


def root_cause(output: str) -> str:
    """The block about the first failure, without what differs from run to run."""
    _, _, after = output.partition("Root Cause (first observed failure):\n")
    block = after.partition("=====")[0]
    for pattern, instead in (
        (r"^\[\d+\]:", "[n]:"),
        (r"time      : [\d:_-]+", "time"),
        (r"\(pid: \d+\)", "(pid)"),
        (r"PID \d+", "PID"),
        (r"error_file: /\S+/attempt_0/1/error.json", "error_file: of worker 1"),
    ):
        block = re.sub(pattern, instead, block)
    return block


def error(text: str) -> dict[str, Any]:
    """An error file, without its time."""
    found: dict[str, Any] = json.loads(text)
    assert int(found["message"]["extraInfo"].pop("timestamp")) > 0
    return found


def events(process: Process) -> dict[str, list[str]]:
    """Name and source of what was told to torch's log on the console -> the fields it had."""
    told = [json.loads(line) for line in process.output().splitlines() if line.startswith('{"name": "torchelastic.')]
    return {f"{each['name']} {each['source']}": sorted(each["metadata"]) for each in told}


@pytest.mark.parametrize(
    ("how", "flags"),
    [
        (["raise"], ["--event-log-handler=console"]),
        (["raise", "undecorated"], ["--run-path"]),
        pytest.param(["exit"], [], marks=pytest.mark.slow),
        (["kill"], []),
    ],
    ids=["raise", "run-path", "exit", "kill"],
)
def test_the_report_is_torchruns(cluster: Cluster, how: list[str], flags: list[str]) -> None:
    own = {who: cluster.directory / f"{who}.json" for who in LAUNCHERS}
    started = {
        who: cluster.run(
            *("-m", module, "--nproc-per-node=2", f"--log-dir={cluster.directory / who}", *flags),
            *(JOBS / "failing.py", *how),
            variables={"TORCHELASTIC_ERROR_FILE": str(own[who])},
        )
        for who, module in LAUNCHERS.items()
    }
    for process in started.values():
        assert process.wait() == 1, process.output()
    ours, theirs = started["ours"].output(), started["theirs"].output()
    assert root_cause(ours) == root_cause(theirs) != ""
    assert ours.count("failing.py FAILED") == 1
    assert "<NO_OTHER_FAILURES>" in ours, "whom the agent ended is no failure"
    assert own["ours"].exists() == own["theirs"].exists() == (how[0] == "raise")
    if own["ours"].exists():
        assert error(own["ours"].read_text()) == error(own["theirs"].read_text())
    if flags == ["--event-log-handler=console"]:
        told = events(started["ours"])
        assert told.pop("torchelastic.worker.status.TERMINATED WORKER")  # the other worker, FAILED at torchrun's
        assert told == events(started["theirs"])


def test_a_second_interrupt_hurries_and_nothing_is_left(cluster: Cluster) -> None:
    """Neither of what is in the worker's process group nor of what is not; which closing the cluster looks for."""
    agent = cluster.agent(JOBS / "parent.py", "stubborn")
    cluster.wait_for("the processes run", (cluster.directory / "started").exists)
    agent.signal(signal.SIGINT)
    cluster.wait_for_event("worker_signalled", reason="SIGINT")
    agent.signal(signal.SIGINT)
    assert agent.wait() == 128 + signal.SIGINT, cluster.account()
    assert "FAILED" not in agent.output()


def test_an_agent_that_is_killed_leaves_nothing(cluster: Cluster) -> None:
    agent = cluster.agent(JOBS / "parent.py", "stubborn")
    cluster.wait_for("the processes run", (cluster.directory / "started").exists)
    agent.signal(signal.SIGKILL)
    assert agent.wait() == -signal.SIGKILL


def may_unshare() -> bool:
    try:
        return (
            subprocess.run(["unshare", "-pf", "--mount-proc", "true"], capture_output=True, timeout=10).returncode == 0
        )
    except (OSError, subprocess.TimeoutExpired):
        return False


@pytest.mark.skipif(not may_unshare(), reason="process namespaces cannot be made here")
def test_as_process_one_it_takes_leave_of_orphans(cluster: Cluster) -> None:
    agent = cluster.agent(
        JOBS / "parent.py", "orphan", flags=["--nnodes=1"], within=["unshare", "-pf", "--mount-proc", "--kill-child"]
    )
    assert agent.wait() == 0, cluster.account()
    assert "orphan of 1 is gone" in agent.output()


def test_a_node_that_is_done_waits_for_the_others(cluster: Cluster) -> None:
    finish = cluster.directory / "finish"
    agents = [cluster.agent(JOBS / "parent.py", "wait", finish, flags=["--nnodes=2"]) for _ in range(2)]
    cluster.wait_for_event("worker_exited", exit_code=0)
    assert [agent.popen.poll() for agent in agents] == [None, None]
    finish.touch()
    assert [agent.wait() for agent in agents] == [0, 0], cluster.account()
    assert len(cluster.events("worker_started")) == 2
