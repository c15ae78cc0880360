"""What cannot work is said in one clear line, before anything is started, and never tried again and again."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from torch.distributed import TCPStore

from tests.process.cluster import JOBS, Agent, Cluster

SCRIPT = JOBS / "refused.py"


def check_refused(agent: Agent, *words: str) -> None:
    """Exit code 2, one line with these words in it, nothing started."""
    assert agent.wait() == 2, agent.output()
    lines = agent.output().splitlines()
    assert len(lines) == 1, agent.output()
    assert lines[0].startswith("elasticrun: ")
    for word in words:
        assert word in lines[0]
    assert not [e for e in agent.journal() if e["event"] == "worker_started"]


# -- the command line -------------------------------------------------------------------------------------------------


def test_a_wrong_value_of_a_flag(cluster: Cluster) -> None:
    wrong = {
        "--nnodes=3:2": ["--nnodes=3:2", "MIN"],
        "--nnodes=x": ["--nnodes=x"],
        "--rdzv-endpoint=127.0.0.1:x": ["--rdzv-endpoint=127.0.0.1:x", "port"],
        "--rdzv-endpoint=127.0.0.1:70000": ["70000", "port"],
        "--rdzv-conf=nonsense=1": ["nonsense"],
        "--max-restarts=-1": ["--max-restarts=-1"],
    }
    for flag, agent in {flag: cluster.agent(SCRIPT, flags=[flag]) for flag in wrong}.items():
        check_refused(agent, *wrong[flag])


def test_a_script_that_is_not_there(cluster: Cluster) -> None:
    check_refused(cluster.agent("no_such_script.py"), "no_such_script.py")


# -- the port ---------------------------------------------------------------------------------------------------------


@contextmanager
def silent_listener() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@contextmanager
def http_server() -> Iterator[int]:
    class Quiet(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@contextmanager
def foreign_store() -> Iterator[int]:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=10))
    yield store.port
    del store


def test_a_port_that_something_else_holds(cluster: Cluster) -> None:
    with silent_listener() as silent, http_server() as http, foreign_store() as store:
        flags = {port: [f"--rdzv-endpoint=127.0.0.1:{port}"] for port in (silent, http, store)}
        for port, agent in {port: cluster.agent(SCRIPT, "none", flags=flag) for port, flag in flags.items()}.items():
            check_refused(agent, f"127.0.0.1:{port}")


def test_a_port_that_another_job_holds(cluster: Cluster) -> None:
    first = cluster.agent(JOBS / "ledger.py", "--dir", cluster.directory, "--steps", 10**6)
    cluster.wait_for_event("worker_started")
    second = cluster.agent(SCRIPT, "none", flags=["--rdzv-id=another"])
    check_refused(second, "'job'", "'another'", str(cluster.port))
    assert first.popen.poll() is None, "the job that was there is not disturbed"


# -- the Session ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("batch", "global_batch_size=9 is not a multiple of micro_batch_size=4"),
        ("batch_rule", "did you mean 'fixed_global'?"),
        pytest.param("lr_rule", "did you mean 'linear'?", marks=pytest.mark.slow),
        ("norm", "BatchNorm1d"),
        pytest.param("ddp", "drop the DDP wrapper", marks=pytest.mark.slow),
    ],
)
def test_a_wrong_argument_of_the_session(cluster: Cluster, what: str, words: str) -> None:
    agent = cluster.agent(SCRIPT, what, workers=2)
    assert agent.wait() == 2, agent.output()
    assert agent.output().count(words) == 1, agent.output()
    assert "Traceback" not in agent.output()
    assert len(cluster.events("worker_started")) == 2, "a refused worker was started again"


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("plain backward", "call step.backward(loss)"),
        pytest.param("two backwards", "exactly one batch", marks=pytest.mark.slow),
        ("break", "left before its micro-batches ran out"),
        ("own step", "delete the script's own"),
    ],
)
def test_a_loop_that_breaks_its_contract(cluster: Cluster, what: str, words: str) -> None:
    agent = cluster.agent(SCRIPT, what, workers=2)
    assert agent.wait() == 1, agent.output()
    (end,) = cluster.events("closed", node=agent.node, exit_code=1)
    assert "LoopContractError" in end["reason"] and words in end["reason"]
    assert len(cluster.events("worker_started")) <= 3, "the same failure was tried again and again"
