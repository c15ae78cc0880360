"""One suite that every store passes: the fake is trusted because it does.

Threads and processes here wait on facts (a join, a line on a pipe), and every wait has a limit.
"""

from __future__ import annotations

import gc
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import pytest

from elastic_runtime.errors import ConfigurationError, StoreError
from elastic_runtime.stores import etcd, tcp
from elastic_runtime.stores.base import MAX_KEY_CHARS, MAX_VALUE_BYTES, NOTHING, Entry, Store
from elastic_runtime.stores.memory import MemoryServer
from tests.etcd.background import PROMPT_S, Background, Program
from tests.etcd.server import Etcd


class Cluster(Protocol):
    """A store with a way to open handles and a way to lose its host."""

    def handle(self) -> Store: ...

    def stop(self) -> None: ...


class TcpCluster:
    def __init__(self) -> None:
        self._host = tcp.host("127.0.0.1", 0, timeout_s=10.0)
        self._handles: list[tcp.TcpStore] = []
        self.port = self._host.port

    def handle(self) -> Store:
        handle = tcp.connect("127.0.0.1", self.port, timeout_s=10.0)
        self._handles.append(handle)
        return handle

    def stop(self) -> None:
        self._host.close()

    def close(self) -> None:
        for handle in (*self._handles, self._host):
            handle.close()


class EtcdPrefix:
    """A part of a real etcd of its own. The server serves all of these tests, so what stops it starts it again."""

    def __init__(self, server: Etcd) -> None:
        self._server = server
        self._prefix = f"{uuid.uuid4()}/"
        self._handles: list[etcd.EtcdStore] = []
        self._stopped = False

    def handle(self) -> Store:
        endpoints = [self._server.endpoint]
        handle = etcd.connect(endpoints, prefix=self._prefix, timeout_s=10.0, call_limit_s=PROMPT_S / 2)
        self._handles.append(handle)
        return handle

    def stop(self) -> None:
        self._stopped = True
        self._server.kill()

    def close(self) -> None:
        for handle in self._handles:
            handle.close()
        if self._stopped:
            self._server.restart()


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> None:
    tcp.quiet_torch_log()


@pytest.fixture(params=["memory", "tcp", "etcd"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    if request.param == "memory":
        yield MemoryServer()
        return
    cluster = TcpCluster() if request.param == "tcp" else EtcdPrefix(request.getfixturevalue("etcd_server"))
    yield cluster
    cluster.close()


@pytest.fixture
def store(cluster: Cluster) -> Store:
    return cluster.handle()


@pytest.fixture
def other(cluster: Cluster) -> Store:
    return cluster.handle()


# Reading and swapping


def test_a_missing_key_reads_as_none(store: Store) -> None:
    assert store.get("absent") is None


def test_a_create_is_version_one_and_carries_its_writer(store: Store, other: Store) -> None:
    won, entry = store.swap("key", {"size": 4}, 0)
    assert won
    assert entry == Entry(value={"size": 4}, version=1, writer=store.writer)
    assert other.get("key") == entry
    assert store.writer != other.writer


def test_a_second_create_loses_and_returns_what_stands(store: Store, other: Store) -> None:
    _, first = store.swap("key", {"size": 4}, 0)
    assert other.swap("key", {"size": 5}, 0) == (False, first)
    assert store.get("key") == first


def test_a_stale_version_loses_and_returns_what_stands(store: Store, other: Store) -> None:
    store.swap("key", {"n": 1}, 0)
    _, second = other.swap("key", {"n": 2}, 1)
    assert store.swap("key", {"n": 3}, 1) == (False, second)
    assert store.get("key") == second
    assert store.swap("key", {"n": 3}, second.version)[0]


def test_a_version_ahead_of_the_store_loses(store: Store) -> None:
    assert store.swap("absent", {"n": 1}, 3) == (False, NOTHING)
    assert store.get("absent") is None
    _, first = store.swap("key", {"n": 1}, 0)
    assert store.swap("key", {"n": 2}, 2) == (False, first)


def test_keys_do_not_touch_each_other(store: Store) -> None:
    keys = ["a", "a@1", "a/1", "1/a", "entry/a", "marker/1/a"]
    for n, key in enumerate(keys):
        assert store.swap(key, {"n": n}, 0)[0]
    assert [store.get(key) for key in keys] == [
        Entry(value={"n": n}, version=1, writer=store.writer) for n in range(len(keys))
    ]
    assert store.wait("a", 1, 0.0) is None


def test_of_two_writers_with_an_equal_value_exactly_one_wins(cluster: Cluster) -> None:
    handles = [cluster.handle() for _ in range(2)]
    barrier = threading.Barrier(2)

    def race(handle: Store, version: int) -> tuple[bool, Entry]:
        barrier.wait(PROMPT_S)
        return handle.swap("key", {"same": True}, version)

    with ThreadPoolExecutor(2) as pool:
        for version in range(50):
            outcomes = list(pool.map(race, handles, [version, version]))
            assert sorted(won for won, _ in outcomes) == [False, True]
            winner = handles[0] if outcomes[0][0] else handles[1]
            assert {entry.writer for _, entry in outcomes} == {winner.writer}
            assert {entry.version for _, entry in outcomes} == {version + 1}


def test_of_two_threads_on_one_handle_with_an_equal_value_exactly_one_wins(store: Store) -> None:
    barrier = threading.Barrier(2)

    def race(version: int) -> bool:
        barrier.wait(PROMPT_S)
        return store.swap("key", {"same": True}, version)[0]

    with ThreadPoolExecutor(2) as pool:
        for version in range(50):
            assert sorted(pool.map(race, [version, version])) == [False, True]


def increment(store: Store, times: int) -> None:
    for _ in range(times):
        won, entry = store.swap("count", {"n": 1}, 0)
        while not won:
            won, entry = store.swap("count", {"n": entry.value["n"] + 1}, entry.version)


def test_racing_threads_lose_no_increment(cluster: Cluster) -> None:
    handles = [cluster.handle() for _ in range(4)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(increment, handles * 2, [25] * 8))  # two threads on each handle
    entry = handles[0].get("count")
    assert entry is not None
    assert (entry.value, entry.version) == ({"n": 200}, 200)


# Values


def test_a_value_of_the_largest_size_passes_and_one_byte_more_does_not(store: Store, other: Store) -> None:
    largest = {"x": "y" * (MAX_VALUE_BYTES - len('{"x":""}'))}
    assert store.swap("key", largest, 0)[0]
    entry = other.get("key")
    assert entry is not None and entry.value == largest
    assert store.swap("key", largest, 1)[0]
    with pytest.raises(ValueError, match="limit"):
        store.swap("key", {"x": largest["x"] + "y"}, 2)


def test_text_of_every_kind_comes_back(store: Store, other: Store) -> None:
    value = {"ключ": "значение", "emoji": "🦊", "nul": "a\0b", "quote": '"\\\n', "?": [None, True, 1.5, -(2**60)]}
    assert store.swap("ключ 🦊", value, 0)[0]
    entry = other.get("ключ 🦊")
    assert entry is not None and entry.value == value


def test_what_is_returned_has_been_through_json_and_is_the_callers_own(store: Store) -> None:
    mine = {"ranks": (0, 1)}
    _, entry = store.swap("key", mine, 0)
    assert entry.value == {"ranks": [0, 1]}
    entry.value["ranks"].append(2)
    mine["ranks"] = ()
    again = store.get("key")
    assert again is not None and again.value == {"ranks": [0, 1]}


@pytest.mark.parametrize("value", [[1], "text", None, {"x": object()}, {"x": float("nan")}, {"x": "\ud800"}])
def test_what_is_no_json_object_is_refused_and_not_stored(store: Store, value: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        store.swap("key", value, 0)  # type: ignore[arg-type]
    assert store.get("key") is None


@pytest.mark.parametrize("key", ["", "k" * (MAX_KEY_CHARS + 1)])
def test_an_impossible_key_is_refused(store: Store, key: str) -> None:
    for call in (lambda: store.get(key), lambda: store.swap(key, {}, 0), lambda: store.wait(key, 0, 0.0)):
        with pytest.raises(ValueError, match="key"):
            call()


# Waiting


def test_a_wait_for_what_is_there_returns_at_once(store: Store, other: Store) -> None:
    other.swap("key", {"n": 1}, 0)
    _, second = other.swap("key", {"n": 2}, 1)
    assert store.wait("key", 0, 60.0) == second
    assert store.wait("key", 1, 0.0) == second


def test_a_wait_runs_out_with_none_and_the_handle_goes_on(store: Store) -> None:
    store.swap("key", {"n": 1}, 0)
    for key, newer_than in (("key", 1), ("absent", 0)):
        began = time.monotonic()
        assert store.wait(key, newer_than, 0.3) is None
        assert 0.29 <= time.monotonic() - began < PROMPT_S
    assert store.swap("key", {"n": 2}, 1)[0]


@pytest.mark.parametrize("version", [0, 1, 40])
def test_a_wait_blocks_until_another_handle_swaps(store: Store, other: Store, version: int) -> None:
    for n in range(version):
        other.swap("key", {"n": n}, n)
    waiting = Background(lambda: store.wait("key", version, 60.0))
    assert waiting.stays_blocked()
    _, entry = other.swap("key", {"news": True}, version)
    assert waiting.result() == entry


def test_a_waiter_is_woken_by_every_swap_of_a_long_exchange(store: Store, other: Store) -> None:
    rounds = 60
    store.swap("ball", {"n": 0}, 0)

    def play(mine: Store, first: int) -> None:
        for version in range(first, first + 2 * rounds, 2):
            assert mine.wait("ball", version - 1, 60.0) is not None
            assert mine.swap("ball", {"n": version}, version)[0]

    began = time.monotonic()
    players = [Background(lambda: play(store, 1)), Background(lambda: play(other, 2))]
    for player in players:
        player.result(30.0)
    assert time.monotonic() - began < tcp.WAIT_SLICE_S  # a single missed wake-up costs a whole slice
    last = store.get("ball")
    assert last is not None and last.version == 2 * rounds + 1


def test_many_waiters_are_all_woken(cluster: Cluster, store: Store) -> None:
    handles = [cluster.handle() for _ in range(12)]
    waiting = [Background(lambda handle=handle: handle.wait("key", 0, 60.0)) for handle in handles]
    assert all(each.stays_blocked(0.02) for each in waiting)
    _, entry = store.swap("key", {"n": 1}, 0)
    assert [each.result() for each in waiting] == [entry] * len(waiting)


def test_a_wait_holds_up_no_other_call_of_its_handle(store: Store) -> None:
    waiting = Background(lambda: store.wait("other", 0, 60.0))
    assert waiting.stays_blocked()
    began = time.monotonic()
    assert store.get("key") is None
    assert store.swap("key", {"n": 1}, 0)[0]
    assert time.monotonic() - began < PROMPT_S
    _, entry = store.swap("other", {"n": 1}, 0)
    assert waiting.result() == entry


# Ends


def test_close_frees_its_waiters_and_nobody_elses(store: Store, other: Store) -> None:
    mine = [Background(lambda: store.wait("key", 0, 60.0)) for _ in range(2)]
    theirs = Background(lambda: other.wait("key", 0, 60.0))
    assert all(each.stays_blocked() for each in (*mine, theirs))
    store.close()
    for each in mine:
        with pytest.raises(StoreError, match="closed"):
            each.result()
    assert theirs.stays_blocked()
    _, entry = other.swap("key", {"n": 1}, 0)
    assert theirs.result() == entry


def test_close_frees_a_waiter_wherever_it_is(cluster: Cluster) -> None:
    for _ in range(20):  # no pause: the close meets the wait before, in and after its first request
        handle = cluster.handle()
        started = threading.Event()
        waiting = Background(lambda handle=handle, started=started: (started.set(), handle.wait("key", 0, 60.0)))
        assert started.wait(PROMPT_S)
        handle.close()
        with pytest.raises(StoreError, match="closed"):
            waiting.result()


def test_a_closed_handle_refuses_every_call(store: Store) -> None:
    store.close()
    store.close()
    for call in (lambda: store.get("key"), lambda: store.swap("key", {}, 0), lambda: store.wait("key", 0, 60.0)):
        with pytest.raises(StoreError, match="closed"):
            call()


def test_a_host_that_is_gone_is_an_error_and_not_a_hang(cluster: Cluster, store: Store) -> None:
    store.swap("key", {"n": 1}, 0)
    waiting = Background(lambda: store.wait("key", 1, 60.0))
    assert waiting.stays_blocked()
    cluster.stop()
    with pytest.raises(StoreError):
        waiting.result()
    for call in (lambda: store.get("key"), lambda: store.swap("key", {}, 1), lambda: store.wait("key", 1, 60.0)):
        with pytest.raises(StoreError):
            Background(call).result()


# What only a network can do

HOST = """
import sys
from elastic_runtime.stores import tcp
store = tcp.host("127.0.0.1", int(sys.argv[1]), timeout_s=10.0)
print(store.port, flush=True)
sys.stdin.read()
"""

INCREMENT = """
import sys
from elastic_runtime.stores import tcp
store = tcp.connect("127.0.0.1", int(sys.argv[1]), timeout_s=10.0)
print("ready", flush=True)
sys.stdin.readline()
for _ in range(50):
    won, entry = store.swap("count", {"n": 1}, 0)
    while not won:
        won, entry = store.swap("count", {"n": entry.value["n"] + 1}, entry.version)
"""


@pytest.fixture
def program() -> Iterator[Callable[..., Program]]:
    started: list[Program] = []

    def start(text: str, *arguments: object) -> Program:
        started.append(Program(text, *arguments))
        return started[-1]

    yield start
    for each in started:
        each.kill()


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def test_racing_processes_lose_no_increment(program: Callable[..., Program]) -> None:
    host = tcp.host("127.0.0.1", 0, timeout_s=10.0)
    racers = [program(INCREMENT, host.port) for _ in range(4)]
    assert [each.line() for each in racers] == ["ready"] * 4
    for each in racers:
        each.go()
    assert [each.process.wait(60.0) for each in racers] == [0] * 4
    entry = host.get("count")
    host.close()
    assert entry is not None
    assert (entry.value, entry.version) == ({"n": 200}, 200)


def test_a_host_that_is_killed_frees_a_waiter(program: Callable[..., Program]) -> None:
    hosting = program(HOST, 0)
    store = tcp.connect("127.0.0.1", int(hosting.line()), timeout_s=10.0)
    waiting = Background(lambda: store.wait("key", 0, 60.0))
    assert waiting.stays_blocked()
    hosting.kill()
    with pytest.raises(StoreError):
        waiting.result()


def test_a_silent_host_is_an_error_within_the_limit_and_the_handle_survives_it(program: Callable[..., Program]) -> None:
    hosting = program(HOST, 0)
    store = tcp.connect("127.0.0.1", int(hosting.line()), timeout_s=10.0, call_limit_s=0.5)
    _, entry = store.swap("key", {"n": 1}, 0)
    hosting.stop()
    try:
        for call in (lambda: store.get("key"), lambda: store.swap("key", {}, 1), lambda: store.wait("key", 1, 0.1)):
            with pytest.raises(StoreError):
                Background(call).result(0.5 + PROMPT_S)
    finally:
        hosting.resume()
    assert store.get("key") == entry
    assert store.swap("key", {"n": 2}, 1)[0]
    store.close()


def test_a_silent_host_does_not_keep_close_from_freeing_a_call(program: Callable[..., Program]) -> None:
    hosting = program(HOST, 0)
    store = tcp.connect("127.0.0.1", int(hosting.line()), timeout_s=10.0, call_limit_s=60.0)
    hosting.stop()
    try:
        reading = Background(lambda: store.get("key"))
        assert reading.stays_blocked()
        store.close()
        with pytest.raises(StoreError, match="closed"):
            reading.result()
    finally:
        hosting.resume()


def test_a_handle_connects_again_to_a_host_that_came_back(program: Callable[..., Program], free_port: int) -> None:
    hosting = program(HOST, free_port)
    assert hosting.line() == str(free_port)
    store = tcp.connect("127.0.0.1", free_port, timeout_s=10.0)
    store.swap("key", {"n": 1}, 0)
    hosting.kill()
    with pytest.raises(StoreError):
        store.get("key")
    assert program(HOST, free_port).line() == str(free_port)
    assert store.get("key") is None  # a host's memory goes with it
    store.close()


def test_connecting_waits_for_a_host_that_starts_later(free_port: int) -> None:
    connecting = Background(lambda: tcp.connect("127.0.0.1", free_port, timeout_s=30.0))
    assert connecting.stays_blocked()
    host = tcp.host("127.0.0.1", free_port, timeout_s=10.0)
    store = connecting.result(10.0)
    assert isinstance(store, tcp.TcpStore)
    assert store.swap("key", {}, 0)[0]
    store.close()
    host.close()


def test_connecting_to_nobody_is_a_store_error_in_time(free_port: int) -> None:
    began = time.monotonic()
    with pytest.raises(StoreError, match=str(free_port)):
        tcp.connect("127.0.0.1", free_port, timeout_s=0.3)
    assert 0.29 <= time.monotonic() - began < PROMPT_S


def test_connecting_to_something_silent_is_a_configuration_error() -> None:
    threads = threading.active_count()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        connecting = Background(lambda: tcp.connect("127.0.0.1", port, timeout_s=30.0, call_limit_s=0.5))
        with pytest.raises(ConfigurationError, match="did not answer as a store"):
            connecting.result(0.5 + PROMPT_S)
        for each in threading.enumerate():
            if each.name == "store-dial":
                each.join(PROMPT_S)
        assert threading.active_count() <= threads  # the thread that dialled is not left behind


def test_connecting_to_something_that_hangs_up_is_a_store_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            while True:
                server.accept()[0].close()

        Background(hang_up)
        port = server.getsockname()[1]
        with pytest.raises(StoreError, match="closes them|was lost"):
            tcp.connect("127.0.0.1", port, timeout_s=0.1, call_limit_s=4.0)
        server.shutdown(socket.SHUT_RDWR)  # ends the thread above


def test_a_used_port_is_a_configuration_error() -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"{port}.*in use"):
            tcp.host("127.0.0.1", port, timeout_s=5.0)


def test_two_hosts_on_any_port_get_two(free_port: int) -> None:
    hosts = [tcp.host("127.0.0.1", port, timeout_s=5.0) for port in (0, 0, free_port)]
    assert len({each.port for each in hosts}) == 3
    assert hosts[2].port == free_port
    for each in hosts:
        assert each.swap("key", {}, 0)[0]  # a store of its own
        each.close()


def test_an_entry_that_somebody_else_wrote_is_a_store_error(free_port: int) -> None:
    from torch.distributed import TCPStore

    server = TCPStore("127.0.0.1", free_port, is_master=True, wait_for_workers=False)
    store = tcp.connect("127.0.0.1", free_port, timeout_s=5.0)
    for text in ("no json", '{"value": 1}', '{"value": {}, "version": "1", "writer": ""}', "[]"):
        server.set("entry/key", text)
        assert server.get("entry/key") == text.encode()  # `set` alone waits for no answer
        with pytest.raises(StoreError, match="key"):
            store.get("key")
    store.close()


def test_markers_outlive_a_few_swaps_for_slow_waiters_and_do_not_pile_up(free_port: int) -> None:
    from torch.distributed import TCPStore

    server = TCPStore("127.0.0.1", free_port, is_master=True, wait_for_workers=False)
    store = tcp.connect("127.0.0.1", free_port, timeout_s=5.0)
    versions, keys = range(1, 101), server.num_keys()
    for version in versions:
        assert store.swap("key", {}, version - 1)[0]
    assert [server.check([f"marker/{version}/key"]) for version in versions] == [
        version > 100 - tcp.MARKERS_KEPT for version in versions
    ]
    assert server.num_keys() == keys + 1 + tcp.MARKERS_KEPT
    assert tcp.MARKERS_KEPT >= 8
    store.close()


def test_no_descriptor_is_left_open() -> None:
    def sockets() -> int:
        links = (os.path.join("/proc/self/fd", each) for each in os.listdir("/proc/self/fd"))
        gc.collect()  # an error that was raised and its traceback refer to each other, and to a connection
        return sum(os.path.lexists(link) and os.readlink(link).startswith("socket:") for link in links)

    def round_trip() -> None:
        host = tcp.host("127.0.0.1", 0, timeout_s=5.0)
        store = tcp.connect("127.0.0.1", host.port, timeout_s=5.0)
        waiting = Background(lambda: store.wait("key", 0, 60.0))
        assert waiting.stays_blocked(0.02)
        store.close()
        with pytest.raises(StoreError):
            waiting.result()
        host.close()

    round_trip()
    before = sockets()
    for _ in range(5):
        round_trip()
    assert sockets() <= before
