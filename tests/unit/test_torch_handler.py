"""torch's view of the membership, method by method: handlers in one process, each asked from a thread of its own, as
torch's agents ask from their main threads."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import DistError
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousTimeoutError,
)

from elastic_runtime.errors import ConfigurationError
from elastic_runtime.rendezvous.torch_handler import create_elastic, create_etcd3
from elastic_runtime.rendezvous.torch_node import TorchNode
from elastic_runtime.stores.group_stores import GroupStores
from elastic_runtime.stores.roll_call import RollCall
from tests.process.cluster import environment, free_port

LIMIT_S = 30.0


def parameters(endpoint: str, least: int = 1, most: int = 4, run_id: str = "job", **given: Any) -> RendezvousParameters:
    return RendezvousParameters("elastic", endpoint, run_id, least, most, "127.0.0.1", **given)


def asked(call: Callable[[], RendezvousInfo]) -> Future[RendezvousInfo]:
    """The call made in a thread."""
    answer: Future[RendezvousInfo] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return answer


def wait_for(what: str, look: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not look():
        assert time.monotonic() < deadline, f"never seen: {what}"
        time.sleep(0.01)


class Nodes:
    """The handlers of one job; the first one serves the store."""

    def __init__(self, least: int, most: int) -> None:
        self.endpoint, self.least, self.most = f"127.0.0.1:{free_port()}", least, most
        self.handlers: list[RendezvousHandler] = []

    def add(self, **given: Any) -> RendezvousHandler:
        settings: dict[str, Any] = {"last_call_timeout": 0.2, "join_timeout": LIMIT_S, **given}
        settings.setdefault("is_host", not self.handlers)
        self.handlers.append(create_elastic(parameters(self.endpoint, self.least, self.most, **settings)))
        return self.handlers[-1]

    def next(self, *handlers: RendezvousHandler) -> list[RendezvousInfo]:
        answers = [asked(handler.next_rendezvous) for handler in handlers]
        return [answer.result(LIMIT_S) for answer in answers]


def leave(handler: RendezvousHandler) -> None:
    """As when torch's agent was ended by a signal."""
    handler._on_exit()  # type: ignore[attr-defined]


@pytest.fixture
def nodes(request: pytest.FixtureRequest) -> Iterator[Nodes]:
    least, most = getattr(request, "param", (1, 4))
    group = Nodes(least, most)
    yield group
    for handler in reversed(group.handlers):
        leave(handler)


def check_group(infos: list[RendezvousInfo]) -> int:
    """One store for all of them, ranks without gaps. Returns the port of the store."""
    assert sorted(info.rank for info in infos) == list(range(len(infos)))
    assert {info.world_size for info in infos} == {len(infos)}
    ports = {info.bootstrap_store_info.master_port for info in infos if info.bootstrap_store_info}
    infos[0].store.set("word", "said")
    assert all(info.store.get("word") == b"said" for info in infos)
    (port,) = ports
    return port


def test_a_group_forms_grows_restarts_and_shrinks(nodes: Nodes) -> None:
    a, b = nodes.add(last_call_timeout=1.0), nodes.add(last_call_timeout=1.0)
    ports = [check_group(nodes.next(a, b))]
    assert [h.num_nodes_waiting() for h in (a, b)] == [0, 0]
    assert a.use_agent_store and a.get_backend() == "elastic" and a.get_run_id() == "job"

    c = nodes.add()
    joining = asked(c.next_rendezvous)
    wait_for("a newcomer is told of", lambda: a.num_nodes_waiting() and b.num_nodes_waiting())
    ports.append(check_group([*nodes.next(a, b), joining.result(LIMIT_S)]))
    assert [h.num_nodes_waiting() for h in (a, b, c)] == [0, 0, 0]

    failed = asked(b.next_rendezvous)  # asked for in the newest group: its workers have failed
    wait_for("the failure is told of", lambda: a.num_nodes_waiting() and c.num_nodes_waiting())
    ports.append(check_group([*nodes.next(a, c), failed.result(LIMIT_S)]))

    leave(c)
    wait_for("the loss is told of", lambda: a.num_nodes_waiting() and b.num_nodes_waiting())
    ports.append(check_group(nodes.next(a, b)))
    assert len(set(ports)) == 4, "no two groups share a store"

    assert b.shutdown()
    wait_for("the job is closed for all", a.is_closed)
    assert a.num_nodes_waiting() == 0, "workers that have not ended yet are left alone"
    with pytest.raises(RendezvousClosedError, match="has ended its part"):
        a.next_rendezvous()
    assert a.shutdown() and a.shutdown()
    with pytest.raises(RendezvousClosedError):
        a.next_rendezvous()


def test_a_group_that_loses_a_node_before_it_begins_never_begins(nodes: Nodes) -> None:
    a, b = nodes.add(last_call_timeout=1.0), nodes.add(last_call_timeout=1.0)
    check_group(nodes.next(a, b))
    c = nodes.add()
    joining, waiting = asked(c.next_rendezvous), None
    wait_for("a newcomer is told of", b.num_nodes_waiting)
    waiting = asked(a.next_rendezvous)  # b's workers take their time to end
    time.sleep(0.2)
    leave(c)
    assert joining.exception(LIMIT_S)
    [second] = nodes.next(b)
    assert check_group([waiting.result(LIMIT_S), second]) and second.world_size == 2


@pytest.mark.parametrize("nodes", [(1, 1)], indirect=True)
def test_who_finds_no_room_ends_nothing(nodes: Nodes) -> None:
    a, spare = nodes.add(), nodes.add(join_timeout=1.5)
    check_group(nodes.next(a))
    with pytest.raises(RendezvousTimeoutError, match=r"within 1\.5 s"):
        spare.next_rendezvous()
    assert spare.shutdown()
    assert not a.is_closed() and a.num_nodes_waiting() == 0


def test_an_agent_that_dies_of_an_error_ends_nothing(nodes: Nodes) -> None:
    a, b = nodes.add(last_call_timeout=1.0), nodes.add(last_call_timeout=1.0)
    check_group(nodes.next(a, b))
    try:
        raise DistError("the store of the group is gone")
    except DistError:
        b.shutdown()
    wait_for("the loss is told of", a.num_nodes_waiting)
    check_group(nodes.next(a))


@pytest.mark.parametrize("nodes", [(2, 2)], indirect=True)
def test_too_few_nodes_wait_and_go_on_with_the_next(nodes: Nodes) -> None:
    a, b = nodes.add(), nodes.add()
    check_group(nodes.next(a, b))
    leave(b)
    waiting = asked(a.next_rendezvous)
    c = nodes.add()
    check_group([*nodes.next(c), waiting.result(LIMIT_S)])


def test_the_others_are_told_when_the_store_goes(nodes: Nodes) -> None:
    a, b = nodes.add(last_call_timeout=1.0), nodes.add(last_call_timeout=1.0)
    check_group(nodes.next(a, b))
    leave(a)
    wait_for("there is nothing to go on with", b.num_nodes_waiting)
    with pytest.raises(RendezvousClosedError, match="which serves the store, was ended"):
        b.next_rendezvous()


def test_closing_without_leaving(nodes: Nodes) -> None:
    a = nodes.add()
    assert not a.is_closed() and a.num_nodes_waiting() == 0
    check_group(nodes.next(a))
    a.set_closed()
    assert a.is_closed()


def test_a_handler_that_was_never_used_starts_and_ends_nothing() -> None:
    before = threading.active_count()
    handler = create_elastic(parameters("127.0.0.1:1"))
    assert handler.num_nodes_waiting() == 0 and not handler.is_closed()
    handler.set_closed()
    assert handler.shutdown()
    assert threading.active_count() == before


@pytest.mark.parametrize("ending", ["", "raise KeyboardInterrupt"])
def test_a_process_that_just_ends_does_not_hang(tmp_path: Path, ending: str) -> None:
    text = f"""
from torch.distributed.elastic.rendezvous import RendezvousParameters
from elastic_runtime.rendezvous.torch_handler import create_elastic
handler = create_elastic(RendezvousParameters(
    "elastic", "127.0.0.1:{free_port()}", "job", 1, 1, "127.0.0.1", last_call_timeout=0.1))
assert handler.next_rendezvous().world_size == 1
{ending}
"""
    variables = environment(TMPDIR=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", text], env=variables, capture_output=True, timeout=LIMIT_S)
    assert (done.returncode == 0) == ("raise" not in ending), done.stderr
    assert list(tmp_path.glob("torchrun_*")) == []


def test_the_first_word_at_a_roll_call_counts() -> None:
    stores = GroupStores(timeout_s=LIMIT_S)
    try:
        port = stores.open()
        first, second = (RollCall("127.0.0.1", port, rank, 2) for rank in range(2))
        assert not second.call_off()
        assert not second.answer(), "it was called off before"
        port = stores.open()
        first, second = (RollCall("127.0.0.1", port, rank, 2) for rank in range(2))
        others = asked(second.answer)  # type: ignore[arg-type]
        assert first.answer() and others.result(LIMIT_S)
        assert second.call_off(), "it has begun"
        port = stores.open()
        first = RollCall("127.0.0.1", port, 0, 2)
        alone = asked(first.answer)  # type: ignore[arg-type]
        wait_for("it has connected", lambda: first._connection)
        first.cut()
        assert alone.exception(LIMIT_S)
    finally:
        stores.close()


@pytest.mark.parametrize(
    ("endpoint", "given", "message"),
    [
        ("host:port", {}, "'port' is not a port"),
        ("::1", {}, "in brackets"),
        ("a:1,b:2", {}, "several are for etcd3"),
        ("a:1", {"join_timeout": "soon"}, "join_timeout=soon is not a number"),
        ("a:1", {"join_timeout": "0"}, "join_timeout=0 must be at least 1"),
        ("a:1", {"last_call_timeout": -1}, "last_call_timeout=-1 must be at least 0"),
        ("a:1", {"dead_after": "0"}, "dead_after=0 must be at least"),
        ("a:1", {"is_host": "perhaps"}, "is_host=perhaps is neither true nor false"),
        ("a:1", {"jion_timeout": 3}, "'jion_timeout' is not one of join_timeout"),
        ("a:1", {"cacert": "ca.pem"}, "'cacert' belongs to --rdzv-backend=etcd3"),
    ],
)
def test_wrong_values_are_refused_before_anything_starts(endpoint: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        create_elastic(parameters(endpoint, **given))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"protocol": "ftp"}, "protocol=ftp is neither http nor https"),
        ({"cacert": "/nowhere/ca.pem"}, "cacert=/nowhere/ca.pem cannot be read"),
        ({"user": "root"}, "user and password_file belong together"),
    ],
)
def test_wrong_values_for_etcd(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        create_etcd3(RendezvousParameters("etcd3", "a:1,[::1]:2", "job", 1, 1, **given))


def test_what_is_torchruns_alone_is_taken_and_has_no_meaning() -> None:
    create_elastic(parameters("a", read_timeout=60, timeout=900, heartbeat_timeout=5, store_type="tcp"))


def test_who_is_refused_at_the_door_is_told_why(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal follows the welcome so closely that it may be read before the join is over: so again and again."""
    a = nodes.add()
    with monkeypatch.context() as patch:
        record = TorchNode._record
        patch.setattr(TorchNode, "_record", lambda node, **more: replace(record(node, **more), front="elasticrun"))
        check_group(nodes.next(a))
    for _ in range(10):
        stranger = nodes.add()
        with pytest.raises(RendezvousError, match="started by torchrun and the job by elasticrun: choose another"):
            stranger.next_rendezvous()
        assert stranger.shutdown()
    assert not a.is_closed() and a.num_nodes_waiting() == 0


def test_another_jobs_store_is_refused(nodes: Nodes) -> None:
    a = nodes.add()
    check_group(nodes.next(a))
    stranger = create_elastic(parameters(nodes.endpoint, run_id="other", is_host=False))
    try:
        with pytest.raises(ConfigurationError, match="serves the job 'job', not 'other'"):
            stranger.next_rendezvous()
    finally:
        stranger.shutdown()
    assert not a.is_closed()
