"""Jobs that are started from Python come out as torch's own elastic_launch has them."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch.distributed.launcher.api

import launcher
from elastic_runtime import ConfigurationError
from tests.process.cluster import JOBS, Cluster, Process

SCRIPT = JOBS / "launched.py"


def told(process: Process) -> list[dict[str, Any]]:
    assert process.wait() == 0, process.output()
    return [json.loads(line) for line in process.output().splitlines() if line.startswith("{")]


def test_the_names_are_torch_s() -> None:
    assert launcher.LaunchConfig is torch.distributed.launcher.api.LaunchConfig
    assert set(launcher.__all__) < set(torch.distributed.launcher.api.__all__)


@pytest.mark.parametrize("whose", ["ours", pytest.param("torch", marks=pytest.mark.slow)])
def test_results_and_failures_are_torch_s(cluster: Cluster, whose: str) -> None:
    results, failure = told(cluster.run(SCRIPT, "results,failure", whose))
    assert results == {"results": {"0": [0, [3.0, 3.0]], "1": [1, [3.0, 3.0]]}}
    assert failure == {
        "failed": {"name": "fail", "rank": 1, "exit_code": 1, "message": "ValueError: it is wrong"},
        "local_rank": 1,
        "file": "ValueError: it is wrong",
        "shown": ["Failures", "Root Cause (first observed failure)", "[0]", "time", "host", "rank", "exitcode"]
        + ["error_file"],
    }


def test_it_works_from_a_thread_and_in_an_event_loop_and_leaves_the_caller_as_it_was(cluster: Cluster) -> None:
    process = cluster.run(SCRIPT, "elsewhere,command")
    sessions, command = told(process)
    assert sessions == {"ranks": [0], "losses": ["float"]}
    assert command == {"results": {"0": None, "1": None}, "child": 0, "restored": True}
    assert {"worker 0 0", "worker 1 1"} <= set(process.output().splitlines())


def importable() -> None:
    """Something to start."""


@pytest.mark.parametrize(
    ("settings", "entrypoint", "said"),
    [
        ({}, lambda: None, "<lambda> and its arguments must be picklable, the function by its name in a module"),
        ({"start_method": "fork"}, importable, "start_method='fork': workers are started afresh here"),
        ({"rdzv_backend": "etcd", "rdzv_endpoint": "a:1"}, importable, "LaunchConfig: rdzv_backend=etcd is not known"),
        ({"rdzv_configs": {"nonsense": 1}}, importable, "LaunchConfig: rdzv_conf: 'nonsense' is not one of"),
        ({}, "no such program", "'no such program' is not a program that can be started"),
        ({}, None, "entrypoint must be a function or a command, not None"),
    ],
)
def test_what_cannot_work_is_refused(settings: dict[str, Any], entrypoint: Any, said: str) -> None:
    config = launcher.LaunchConfig(1, 1, 1, **settings)
    with pytest.raises(ConfigurationError) as refused:
        launcher.elastic_launch(config, entrypoint)()
    assert said in str(refused.value)


@pytest.mark.slow
def test_what_a_session_refuses_reaches_the_caller(cluster: Cluster) -> None:
    (refused,) = told(cluster.run(SCRIPT, "refused"))
    assert "global_batch_size=3 is not a multiple of micro_batch_size=2" in refused["refused"]


def test_a_signal_reaches_the_job_and_the_caller_hears_of_it(cluster: Cluster, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    process = cluster.run(SCRIPT, "interrupted", ready)
    cluster.wait_for("the worker waits", ready.exists)
    process.signal(signal.SIGINT)
    assert told(process) == [{"ended": "SIGINT"}]


@pytest.mark.slow
def test_a_job_ends_with_the_process_that_started_it(cluster: Cluster, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    process = cluster.run(SCRIPT, "interrupted", ready)
    cluster.wait_for("the worker waits", ready.exists)
    process.signal(signal.SIGKILL)
    process.wait()  # the cluster sees to it that nothing is left
