"""Jobs that are started from Python come out as torch's own elastic_launch has them."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import torch.distributed.launcher.api

import launcher
from tests.process.cluster import JOBS, Cluster, Process

SCRIPT = JOBS / "launched.py"


def told(process: Process) -> list[dict[str, Any]]:
    assert process.wait() == 0, process.output()
    return [json.loads(line) for line in process.output().splitlines() if line.startswith("{")]


def test_the_names_are_torch_s() -> None:
    assert launcher.LaunchConfig is torch.distributed.launcher.api.LaunchConfig
    assert set(launcher.__all__) < set(torch.distributed.launcher.api.__all__)


def test_results_and_failures_are_torch_s(cluster: Cluster) -> None:
    both = [cluster.run(SCRIPT, "results,failure", *which) for which in ((), ("torch",))]
    ours, theirs = map(told, both)
    assert ours[0] == theirs[0] == {"results": {"0": [0, [3.0, 3.0]], "1": [1, [3.0, 3.0]]}}
    assert ours[1] == theirs[1]
    assert ours[1]["failed"] == {"name": "fail", "rank": 1, "exit_code": 1, "message": "ValueError: it is wrong"}


def test_it_works_from_a_thread_and_in_an_event_loop_and_leaves_the_caller_as_it_was(cluster: Cluster) -> None:
    process = cluster.run(SCRIPT, "elsewhere,command")
    sessions, command = told(process)
    assert sessions["ranks"] == [0, 1] and sessions["equal"]
    assert command == {"results": {"0": None, "1": None}, "child": 0, "restored": True}
    assert {"worker 0 0", "worker 1 1"} <= set(process.output().splitlines())


def test_what_cannot_work_is_refused_before_anything_starts(cluster: Cluster) -> None:
    lines = [each["refused"] for each in told(cluster.run(SCRIPT, "refused"))]
    for line, said in zip(
        lines,
        (
            "<lambda> and its arguments must be picklable",
            "start_method='fork': workers are started afresh here",
            "LaunchConfig: rdzv_backend=etcd is not known here: c10d, etcd3 or static",
            "LaunchConfig: rdzv_conf: 'nonsense' is not one of",
            "global_batch_size=3 is not a multiple of micro_batch_size=2",
        ),
        strict=True,
    ):
        assert said in line


def test_a_signal_reaches_the_job_and_the_caller_hears_of_it(cluster: Cluster, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    process = cluster.run(SCRIPT, "interrupted", ready)
    cluster.wait_for("the worker waits", ready.exists)
    process.signal(signal.SIGINT)
    assert told(process) == [{"ended": "SIGINT"}]


def test_a_job_ends_with_the_process_that_started_it(cluster: Cluster, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    process = cluster.run(SCRIPT, "interrupted", ready)
    cluster.wait_for("the worker waits", ready.exists)
    process.signal(signal.SIGKILL)
    process.wait()  # the cluster sees to it that nothing is left
