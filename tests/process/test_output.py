"""What workers print, and where it is found afterwards: beside stock torchrun, and where torchrun has no worker that is
replaced alone."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.process.cluster import JOBS, Cluster

LAUNCHERS = {"theirs": "torch.distributed.run", "ours": "launcher"}


def tree(log_dir: Path) -> dict[str, str]:
    """What lies below the only run's directory; without our journal."""
    runs = list(log_dir.iterdir()) if log_dir.exists() else []
    assert len(runs) <= 1
    return {
        str(path.relative_to(run)): path.read_text()
        for run in runs
        for path in sorted(run.rglob("*"))
        if path.is_file() and path.name != "journal.jsonl"
    }


@pytest.mark.parametrize(
    ("flags", "variables"),
    [
        (
            [
                "--tee=3",
                "--duplicate-stdout-filters=keep,local",
                "--duplicate-stderr-filters=nothing",
                "--role=trainer",
            ],
            {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "<${role_name} ${local_rank}/${rank}> "},
        ),
        (["--redirects=1", "--local-ranks-filter=1", "--log-dir={dir}"], {}),
        pytest.param(
            ["--redirects=0:3", "--tee=0:1,1:2", "--local-ranks-filter=0", "--logs-specs=default"],
            {},
            marks=pytest.mark.slow,
        ),
        (["--virtual-local-rank", "--redirects=1:2"], {"CUDA_VISIBLE_DEVICES": "5, 7"}),
        (["--redirects=3", "--log-dir=/dev/null"], {}),
    ],
)
def test_as_torchrun_has_it(cluster: Cluster, flags: list[str], variables: dict[str, str]) -> None:
    started = {}
    for who, module in LAUNCHERS.items():
        log_dir = cluster.directory / who
        given = ["-m", module, "--nproc-per-node=2", f"--log-dir={log_dir}", *flags]
        given = [each.format(dir=log_dir) for each in given]
        started[who] = cluster.run(*given, JOBS / "talk.py", "--at=${local_rank}", variables=variables)
    console, files = {}, {}
    for who, process in started.items():
        assert process.wait() == 0, process.output()
        console[who] = sorted(line for line in process.output().splitlines() if "said " in line)
        files[who] = tree(cluster.directory / who)
    assert console["ours"] == console["theirs"]
    # torchrun's tail writes lines of several files at once, in any order.
    parts = {who: {path: sorted(text.splitlines()) for path, text in found.items()} for who, found in files.items()}
    assert parts["ours"] == parts["theirs"]
    assert any(console["ours"]) or any(files["ours"])


def test_a_worker_that_is_replaced_has_files_of_its_own(cluster: Cluster) -> None:
    agent = cluster.agent(JOBS / "ledger.py", "--dir", cluster.directory, "--steps", 60, workers=2, flags=["--tee=3"])
    cluster.wait_for("both train", lambda: len({e["rank"] for e in cluster.ledger() if e["kind"] == "committed"}) == 2)
    os.kill(agent.workers()[1], 9)
    assert agent.wait() == 0, cluster.account()
    (run,) = agent.log_dir.iterdir()
    assert sorted(str(each.relative_to(run)) for each in run.glob("attempt_*/*")) == [
        "attempt_0/0",
        "attempt_0/1",
        "attempt_1/1",
    ]
    told = [line for line in agent.output().splitlines() if "was killed by SIGKILL" in line]
    assert len(told) == 1
    assert f"worker 1 was killed by SIGKILL, see {run}/attempt_0/1/stderr.log; a new one takes its place" in told[0]
    assert "FAILED" not in agent.output()


def test_a_console_that_takes_nothing_holds_nobody_up(cluster: Cluster) -> None:
    """The worker prints more than a pipe holds, and is done; the agent stays until all of it is read."""
    console = cluster.directory / "console"
    os.mkfifo(console)
    reader = os.open(console, os.O_RDONLY | os.O_NONBLOCK)
    within = ["sh", "-c", f'exec "$@" > {console}', "sh"]
    agent = cluster.agent(JOBS / "talk.py", "loud", flags=["--tee=1", "--nnodes=1"], within=within)
    cluster.wait_for_event("worker_exited", exit_code=0)
    assert agent.popen.poll() is None
    os.set_blocking(reader, True)
    with os.fdopen(reader, "rb") as stream:
        lines = stream.read().decode().splitlines()
    assert agent.wait() == 0
    assert [line for line in lines if "said" not in line] == [f"[default0]:{letter * 1_000_000}" for letter in "abc"]


@pytest.mark.slow
def test_two_hundred_workers(cluster: Cluster) -> None:
    says = "echo out $LOCAL_RANK; echo err $LOCAL_RANK >&2; printf end"
    agent = cluster.agent("sh", "-c", says, workers=200, flags=["--nnodes=1", "--no-python", "--tee=3"])
    assert agent.wait() == 0, cluster.account()
    lines = agent.output().splitlines()
    for rank in range(200):
        prefix = f"[default{rank}]:"
        mine = sorted(line.removeprefix(prefix) for line in lines if line.startswith(prefix))
        assert mine == ["end", f"err {rank}", f"out {rank}"]


def test_files_that_somebody_asked_for_are_kept_without_a_log_dir(cluster: Cluster) -> None:
    temporary = cluster.directory / "tmp"
    temporary.mkdir()
    run = ("-m", "launcher", "--nproc-per-node=1")
    kept = cluster.run(*run, "--redirects=3", JOBS / "talk.py", variables={"TMPDIR": str(temporary)})
    assert kept.wait() == 0, kept.output()
    (log,) = temporary.glob("elasticrun_*/*/attempt_0/0/stdout.log")
    assert re.match(r"said out by 0", log.read_text())
