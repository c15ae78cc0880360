"""A request that was carried out and whose answer was lost: it is repeated, and what it did is told truly."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from elastic_runtime.errors import StoreError
from elastic_runtime.stores.base import Entry
from elastic_runtime.stores.etcd import EtcdStore
from elastic_runtime.stores.etcd_connection import Retryable
from tests.etcd.background import Background
from tests.etcd.proxy import Proxy
from tests.etcd.server import Etcd

Open = Callable[..., EtcdStore]


def lose_the_next_answer(store: EtcdStore, method: str, meanwhile: Callable[[], object] = lambda: None) -> None:
    """The next call of this method is carried out, then `meanwhile`, and its caller learns of an outage only."""
    connection = store._members.connection()
    call = connection.call
    lost = threading.Event()

    def once(wanted: Any, request: Any, limit_s: float) -> Any:
        answer = call(wanted, request, limit_s)
        if type(request).__name__ != method or lost.is_set():
            return answer
        lost.set()
        meanwhile()
        raise Retryable("the answer is lost", elsewhere=False)

    connection.call = once  # type: ignore[method-assign]


def test_a_swap_has_won_though_its_answer_is_lost(server: Etcd, open_store: Open) -> None:
    store = open_store(server.endpoint)
    lose_the_next_answer(store, "TxnRequest")
    won, entry = store.swap("key", {"n": 1}, 0)
    assert (won, entry) == (True, Entry(value={"n": 1}, version=1, writer=store.writer))


@pytest.mark.parametrize("others", [1, 2, 25])
def test_a_swap_has_won_though_others_went_on_before_it_could_look(server: Etcd, open_store: Open, others: int) -> None:
    store, other = open_store(server.endpoint), open_store(server.endpoint)
    store.swap("key", {"n": 0}, 0)

    def go_on() -> None:
        for version in range(2, 2 + others):
            assert other.swap("key", {"n": version}, version)[0]
            assert other.swap("another", {}, version - 2)[0]

    lose_the_next_answer(store, "TxnRequest", go_on)
    assert store.swap("key", {"n": 1}, 1) == (True, Entry(value={"n": 1}, version=2, writer=store.writer))
    assert store.swap("key", {"n": 1}, 1)[0] is False


def test_a_swap_has_lost_though_its_answer_is_lost(server: Etcd, open_store: Open) -> None:
    store, other = open_store(server.endpoint), open_store(server.endpoint)
    for version in range(5):
        other.swap("key", {"n": version}, version)
    lose_the_next_answer(store, "TxnRequest")
    won, entry = store.swap("key", {"n": 9}, 2)
    assert (won, entry.version) == (False, 5)


def test_what_is_compacted_before_it_could_look_is_not_guessed(server: Etcd, open_store: Open) -> None:
    store, other = open_store(server.endpoint), open_store(server.endpoint)

    def go_on() -> None:
        for version in range(1, 5):
            other.swap("key", {"n": version}, version)
        server.compact()

    lose_the_next_answer(store, "TxnRequest", go_on)
    with pytest.raises(StoreError, match="compacted"):
        store.swap("key", {"n": 1}, 0)


def test_a_claim_has_won_though_its_answer_is_lost(server: Etcd, open_store: Open) -> None:
    store, other = open_store(server.endpoint), open_store(server.endpoint)
    seat = store.seat("seat", 2.0)
    lose_the_next_answer(store, "TxnRequest")
    mine = seat.claim({"node": "a"}, 0)
    assert mine is not None and mine == other.seat("seat", 2.0).holder()
    seat.release()
    assert other.seat("seat", 2.0).holder() is None


@pytest.mark.slow
def test_a_claim_that_raised_and_has_won_is_kept_and_released(server: Etcd, proxy: Proxy, open_store: Open) -> None:
    store, other = open_store(proxy.endpoint, call_limit_s=1.0), open_store(server.endpoint)
    seat, theirs = store.seat("seat", 3.0), other.seat("seat", 3.0)
    lose_the_next_answer(store, "TxnRequest", proxy.silence)
    claiming = Background(lambda: seat.claim({"node": "a"}, 0))
    with pytest.raises(StoreError):
        claiming.result(5.0)
    proxy.mend()
    mine = theirs.holder()
    assert mine is not None and mine.value == {"node": "a"}
    assert seat.holder() == mine
    assert theirs.wait(mine.term, 4.0) == (False, None)
    seat.release()
    assert theirs.holder() is None
