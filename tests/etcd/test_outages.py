"""Members die, fall silent and come back; what was won stays won, and who waits is told."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

import pytest

from elastic_runtime.errors import StoreError
from elastic_runtime.stores.base import Entry, Store
from elastic_runtime.stores.etcd import EtcdStore
from elastic_runtime.stores.etcd_connection import PING_AFTER_S
from tests.etcd.background import PROMPT_S, Background
from tests.etcd.proxy import Proxy
from tests.etcd.server import SOON_ELECTED, Etcd, EtcdCluster

ELECTION_S = 15.0  # generous: etcd's members elect within two seconds where they get to run

Open = Callable[..., EtcdStore]


class Seen:
    """What a watch showed."""

    def __init__(self) -> None:
        self._entries: queue.SimpleQueue[Entry | None] = queue.SimpleQueue()

    def __call__(self, entry: Entry | None) -> None:
        self._entries.put(entry)

    def next(self, within_s: float = ELECTION_S) -> Entry | None:
        return self._entries.get(timeout=within_s)

    def until(self, version: int) -> list[int]:
        versions = []
        while not versions or versions[-1] != version:
            entry = self.next()
            assert entry is not None
            versions.append(entry.version)
        return versions


def increment(store: Store, times: int) -> int:
    """Add one so often, whatever happens. Returns the number of swaps that raised."""
    raised = done = 0
    while done < times:
        try:
            entry = store.get("count")
            version, count = (entry.version, int(entry.value["n"])) if entry else (0, 0)
            try:
                won, _ = store.swap("count", {"n": count + 1, "by": f"{store.writer}-{done}"}, version)
            except StoreError:
                raised += 1
                won = _has_won(store, version, f"{store.writer}-{done}")
            done += won
        except StoreError:
            continue
    return raised


def _has_won(store: Store, version: int, by: str) -> bool:
    """Ask until the store answers, as whoever needs to know has to. Only possible while nobody else wrote since."""
    while True:
        try:
            entry = store.get("count")
        except StoreError:
            continue
        assert entry is not None
        assert entry.version <= version + 1, "the test cannot tell: others went on before it could look"
        return entry.version == version + 1 and entry.value["by"] == by


def swapped(store: Store, key: str, n: int, version: int) -> Entry:
    """A swap that is repeated through an outage; nobody else swaps this key."""
    while True:
        try:
            won, entry = store.swap(key, {"n": n}, version)
        except StoreError:
            continue
        assert won or (entry.version, entry.writer) == (version + 1, store.writer)
        return entry


# Fail-over


def test_the_leader_is_killed_between_swaps_and_no_increment_is_lost(cluster: EtcdCluster, open_store: Open) -> None:
    endpoints = cluster.endpoints
    stores = [open_store(*endpoints[n:], *endpoints[:n], call_limit_s=6.0) for n in range(3)]
    times = 60
    running = [Background(lambda store=store: increment(store, times)) for store in stores]
    before_s, after_s = ELECTION_S, 60.0
    entry = stores[0].wait("count", 40, before_s)
    assert entry is not None
    leader = cluster.leader()
    cluster.kill(leader)
    try:
        for each in running:
            each.result(after_s)
    finally:
        cluster.restart(leader)
    last = stores[0].get("count")
    assert last is not None
    assert (last.value["n"], last.version) == (3 * times, 3 * times)


def test_of_two_that_swap_while_the_leader_dies_one_wins(cluster: EtcdCluster, open_store: Open) -> None:
    stores = [open_store(*cluster.endpoints, call_limit_s=6.0) for _ in range(2)]
    barrier = threading.Barrier(3)
    leader = cluster.leader()

    def race(store: Store) -> bool:
        barrier.wait(PROMPT_S)
        return store.swap("key", {"same": True}, 0)[0]

    racing = [Background(lambda store=store: race(store)) for store in stores]
    barrier.wait(PROMPT_S)
    cluster.kill(leader)
    try:
        assert sorted(bool(each.result(ELECTION_S)) for each in racing) == [False, True]
    finally:
        cluster.restart(leader)


def test_a_member_that_is_gone_costs_nothing_and_the_next_is_kept(cluster: EtcdCluster, open_store: Open) -> None:
    leader = cluster.leader()
    follower = (leader + 1) % 3
    rest = [endpoint for member, endpoint in enumerate(cluster.endpoints) if member != follower]
    store = open_store(cluster.endpoints[follower], *rest)
    store.swap("key", {}, 0)
    cluster.kill(follower)
    try:
        began = time.monotonic()
        for version in range(1, 21):
            assert store.swap("key", {}, version)[0]
        assert time.monotonic() - began < PROMPT_S
        late = open_store(cluster.endpoints[follower], *rest)
        assert late.get("key") == store.get("key")
    finally:
        cluster.restart(follower)


def test_a_silent_member_costs_its_share_of_one_call(cluster: EtcdCluster, open_store: Open) -> None:
    follower = (cluster.leader() + 1) % 3
    rest = [endpoint for member, endpoint in enumerate(cluster.endpoints) if member != follower]
    limit_s = 3.0
    store = open_store(cluster.endpoints[follower], *rest, call_limit_s=limit_s)
    waiting = Background(lambda: store.wait("key", 0, 60.0))
    assert waiting.stays_blocked()
    cluster.stop(follower)
    try:
        began = time.monotonic()
        assert store.get("key") is None
        assert limit_s / 3 - 0.1 < time.monotonic() - began < limit_s / 3 + PROMPT_S
        began = time.monotonic()
        for version in range(20):
            assert store.swap("key", {}, version)[0]
        assert time.monotonic() - began < PROMPT_S
        entry = waiting.result()  # it went along to the member that answered
        assert isinstance(entry, Entry) and entry.version >= 1
        late = open_store(cluster.endpoints[follower], *rest, call_limit_s=1.5)
        assert late.get("key") == store.get("key")
    finally:
        cluster.resume(follower)
        cluster.wait_healthy()


@pytest.mark.slow
def test_a_handle_that_only_waits_leaves_a_silent_member_too(cluster: EtcdCluster, open_store: Open) -> None:
    follower = (cluster.leader() + 1) % 3
    rest = [endpoint for member, endpoint in enumerate(cluster.endpoints) if member != follower]
    store, other = open_store(cluster.endpoints[follower], *rest, call_limit_s=3.0), open_store(*rest)
    waiting = Background(lambda: store.wait("key", 0, 60.0))
    assert waiting.stays_blocked()
    cluster.stop(follower)
    try:
        _, entry = other.swap("key", {}, 0)
        assert waiting.result(PING_AFTER_S + 3.0 + 2 * PROMPT_S) == entry
    finally:
        cluster.resume(follower)
        cluster.wait_healthy()


def test_a_watch_misses_nothing_when_the_leader_changes(cluster: EtcdCluster, open_store: Open) -> None:
    leader = cluster.leader()
    others = [endpoint for member, endpoint in enumerate(cluster.endpoints) if member != leader]
    watching, writing = open_store(cluster.endpoints[leader], *others), open_store(*others)
    seen = Seen()
    for version in range(5):
        writing.swap("key", {"n": version}, version)
    watching.watch("key", seen)
    assert seen.until(5) == [5]
    cluster.kill(leader)
    try:
        for version in range(5, 25):
            swapped(writing, "key", version, version)
        assert seen.until(25) == list(range(6, 26))
    finally:
        cluster.restart(leader)


# All of them


def test_all_members_die_and_come_back(open_store: Open) -> None:
    with EtcdCluster(3, options=SOON_ELECTED) as cluster:
        store = open_store(*cluster.endpoints, call_limit_s=1.0)
        seen = Seen()
        _, first = store.swap("key", {"n": 1}, 0)
        store.watch("key", seen)
        assert seen.next() == first
        seat = store.seat("seat", 30.0)
        mine = seat.claim({}, 0)
        waiting = Background(lambda: store.wait("key", 1, 60.0))
        assert waiting.stays_blocked()
        for member in range(3):
            cluster.kill(member)
        for call in (waiting.result, lambda: store.get("key"), lambda: store.swap("key", {}, 1), seat.holder):
            with pytest.raises(StoreError):
                Background(call).result(1.0 + PROMPT_S)
        for member in range(3):
            cluster.restart(member, wait=False)
        cluster.wait_healthy()
        assert store.get("key") == first
        assert seat.holder() == mine
        second = swapped(store, "key", 2, 1)
        assert seen.next() == second  # by the watch of before


@pytest.mark.slow
def test_a_minority_is_an_outage_and_not_a_wrong_answer(open_store: Open) -> None:
    with EtcdCluster(3) as cluster:
        store = open_store(*cluster.endpoints, call_limit_s=1.0)
        store.swap("key", {"n": 1}, 0)
        waiting = Background(lambda: store.wait("key", 1, 60.0))
        assert waiting.stays_blocked()
        leader = cluster.leader()
        cluster.kill(leader)
        cluster.kill((leader + 1) % 3)
        with pytest.raises(StoreError):
            waiting.result(ELECTION_S)  # a member needs an election's time to see that it is alone
        for call in (lambda: store.get("key"), lambda: store.swap("key", {}, 1)):
            with pytest.raises(StoreError):
                call()
        late = Background(lambda: open_store(*cluster.endpoints, timeout_s=0.5))
        with pytest.raises(StoreError, match="majority|reached"):
            late.result(0.5 + 2 * PROMPT_S)


# Watching through it


def test_a_watch_begins_with_what_is_there_and_shows_each_change_in_order(server: Etcd, open_store: Open) -> None:
    store, other = open_store(server.endpoint), open_store(server.endpoint)
    seen, late = Seen(), Seen()
    stop = store.watch("key", seen)
    for version in range(3):
        other.swap("key", {"n": version}, version)
    assert seen.until(3) == [1, 2, 3]
    store.watch("key", late)
    assert late.until(3) == [3]
    stop()
    stop()
    other.swap("key", {}, 3)
    assert late.until(4) == [4]
    with pytest.raises(queue.Empty):
        seen.next(0.05)


def test_a_watch_shows_a_deletion(server: Etcd, open_store: Open, prefix: str) -> None:
    store = open_store(server.endpoint)
    seen = Seen()
    store.swap("key", {}, 0)
    store.watch("key", seen)
    assert seen.until(1) == [1]
    server.ctl("del", f"{prefix}key")
    assert seen.next() is None


def test_what_a_callback_raises_ends_its_watch_and_no_other(
    server: Etcd, open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: queue.SimpleQueue[str] = queue.SimpleQueue()
    monkeypatch.setattr(threading, "excepthook", lambda arguments: reported.put(str(arguments.exc_value)))
    store = open_store(server.endpoint)
    seen = Seen()

    def fail(entry: Entry | None) -> None:
        raise ValueError("planted")

    store.watch("key", fail)
    store.watch("key", seen)
    for version in range(2):
        store.swap("key", {}, version)
    assert seen.until(2) == [1, 2]
    assert reported.get(timeout=PROMPT_S) == "planted"
    assert reported.empty()


def test_many_watches_share_one_thread_and_one_connection(server: Etcd, open_store: Open) -> None:
    store, other = open_store(server.endpoint), open_store(server.endpoint)
    before = threading.active_count()
    seen = [Seen() for _ in range(300)]
    for number, each in enumerate(seen):
        store.watch(f"key/{number}", each)
    assert threading.active_count() <= before + 4  # ours, and gRPC's few
    for number in range(len(seen)):
        other.swap(f"key/{number}", {"n": number}, 0)
    for number, each in enumerate(seen):
        entry = each.next()
        assert entry is not None and entry.value == {"n": number}


def test_a_watch_of_what_was_compacted_away_reads_it_again(server: Etcd, open_store: Open) -> None:
    store = open_store(server.endpoint)
    store.swap("key", {}, 0)
    store.swap("other", {}, 0)
    server.compact()
    seen = Seen()
    store.watch("key", seen)
    assert seen.until(1) == [1]
    store.swap("key", {}, 1)
    assert seen.until(2) == [2]


def test_a_watch_survives_a_compaction_during_an_outage(server: Etcd, proxy: Proxy, open_store: Open) -> None:
    behind, direct = open_store(proxy.endpoint, call_limit_s=1.0), open_store(server.endpoint)
    seen = Seen()
    direct.swap("key", {}, 0)
    behind.watch("key", seen)
    assert seen.until(1) == [1]
    proxy.cut()
    for version in range(1, 10):
        direct.swap("key", {}, version)
    server.compact()
    proxy.mend()
    assert seen.until(10) == [10]  # those between are forgotten
    direct.swap("key", {}, 10)
    assert seen.until(11) == [11]


def test_a_wait_survives_a_short_outage_and_ends_with_what_came_meanwhile(
    server: Etcd, proxy: Proxy, open_store: Open
) -> None:
    behind, direct = open_store(proxy.endpoint, call_limit_s=10.0), open_store(server.endpoint)
    waiting = Background(lambda: behind.wait("key", 0, 60.0))
    assert waiting.stays_blocked()
    proxy.cut()
    _, entry = direct.swap("key", {}, 0)
    assert waiting.stays_blocked()
    proxy.mend()
    assert waiting.result(10.0) == entry


def test_a_silent_network_is_an_error_within_the_limit_and_the_handle_survives(proxy: Proxy, open_store: Open) -> None:
    store = open_store(proxy.endpoint, call_limit_s=0.5)
    _, entry = store.swap("key", {}, 0)
    proxy.silence()
    for call in (lambda: store.get("key"), lambda: store.swap("key", {}, 1), lambda: store.wait("key", 1, 0.1)):
        with pytest.raises(StoreError):
            Background(call).result(0.5 + PROMPT_S)
    blocked = Background(lambda: open_store(proxy.endpoint, timeout_s=30.0, call_limit_s=30.0))
    assert blocked.stays_blocked()
    proxy.mend()
    current = store.get("key")
    assert current is not None and current.version >= entry.version
    assert isinstance(blocked.result(10.0), EtcdStore)


def test_a_silent_network_does_not_keep_close_from_freeing_a_call(proxy: Proxy, open_store: Open) -> None:
    store = open_store(proxy.endpoint, call_limit_s=60.0)
    proxy.silence()
    reading = Background(lambda: store.get("key"))
    assert reading.stays_blocked()
    store.close()
    with pytest.raises(StoreError, match="closed"):
        reading.result()


def test_a_store_that_begins_anew_is_seen_as_it_is(open_store: Open, server: Etcd) -> None:
    with Etcd() as old, Etcd() as new, Proxy(old.endpoint) as proxy:
        store = open_store(proxy.endpoint, call_limit_s=1.0)
        seen = Seen()
        for version in range(5):
            store.swap("key", {}, version)
        store.watch("key", seen)
        assert seen.until(5) == [5]
        proxy.cut()
        proxy.lead_to(new.endpoint)
        direct = open_store(new.endpoint)
        direct.swap("key", {"anew": True}, 0)
        proxy.mend()
        entry = seen.next()
        assert entry is not None and (entry.version, entry.value) == (1, {"anew": True})


def test_an_entry_that_somebody_else_wrote_is_a_store_error(server: Etcd, open_store: Open, prefix: str) -> None:
    store = open_store(server.endpoint)
    for text in ("no json", '{"value": 1}', '{"value": {}, "writer": 1, "nonce": ""}', "[]"):
        server.ctl("put", f"{prefix}key", text)
        for call in (lambda: store.get("key"), lambda: store.wait("key", 0, 1.0), lambda: store.swap("key", {}, 0)):
            with pytest.raises(StoreError, match="key"):
                call()
