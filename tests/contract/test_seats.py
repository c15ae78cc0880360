"""One suite for every kind of seat: one holder at a time, told apart by its term, and nobody polls to learn of it."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import pytest

from elastic_runtime.errors import StoreError
from elastic_runtime.stores import etcd
from elastic_runtime.stores.base import Holder, Seat, Store
from elastic_runtime.stores.memory import MemoryServer
from elastic_runtime.stores.seat import KeySeat
from tests.etcd.background import PROMPT_S, Background, Program
from tests.etcd.server import Etcd

TTL_S = 2.0
EXPIRY_S = TTL_S + 2.0  # etcd looks twice a second for leases that ran out, and the machine may be busy


class Place(Protocol):
    """One seat, with a way to come to it anew as another process would."""

    def seat(self) -> Seat: ...

    def store(self) -> Store: ...


class MemoryPlace:
    def __init__(self) -> None:
        self._server = MemoryServer()
        self._stores: list[Store] = []

    def seat(self) -> Seat:
        self._stores.append(self._server.handle())
        return KeySeat(self._stores[-1], "seat")

    def store(self) -> Store:
        return self._stores[-1]


class EtcdPlace:
    def __init__(self, server: Etcd) -> None:
        self.server = server
        self.prefix = f"{uuid.uuid4()}/"
        self._stores: list[etcd.EtcdStore] = []

    def seat(self) -> etcd.EtcdSeat:
        self._stores.append(etcd.connect([self.server.endpoint], prefix=self.prefix, timeout_s=10.0))
        return self._stores[-1].seat("seat", TTL_S)

    def store(self) -> Store:
        """Of the seat that was made last."""
        return self._stores[-1]

    def close(self) -> None:
        for store in self._stores:
            store.close()


@pytest.fixture(params=["memory", "etcd"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    if request.param == "memory":
        yield MemoryPlace()
        return
    place = EtcdPlace(request.getfixturevalue("etcd_server"))
    yield place
    place.close()


@pytest.fixture
def leased(etcd_server: Etcd) -> Iterator[EtcdPlace]:
    place = EtcdPlace(etcd_server)
    yield place
    place.close()


def test_an_empty_seat_has_no_holder(place: Place) -> None:
    seat = place.seat()
    assert seat.holder() is None
    assert seat.wait(0, 0.1) == (False, None)


def test_who_claims_an_empty_seat_holds_it_for_everybody(place: Place) -> None:
    seat, other = place.seat(), place.seat()
    mine = seat.claim({"node": "a"}, 0)
    assert mine is not None and mine.value == {"node": "a"} and mine.term > 0
    assert seat.holder() == other.holder() == mine
    assert other.wait(0, 60.0) == (True, mine)


def test_a_seat_that_is_held_is_not_claimed_as_empty(place: Place) -> None:
    seat, other = place.seat(), place.seat()
    mine = seat.claim({"node": "a"}, 0)
    assert other.claim({"node": "b"}, 0) is None
    assert seat.claim({"node": "a"}, 0) is None
    assert other.holder() == mine


def test_a_holder_is_overruled_under_its_term_only_and_the_terms_differ(place: Place) -> None:
    seat, other = place.seat(), place.seat()
    first = seat.claim({"node": "a"}, 0)
    assert first is not None
    assert other.claim({"node": "b"}, first.term + 1000) is None
    second = other.claim({"node": "b"}, first.term)
    assert second is not None and second.term > first.term
    assert seat.holder() == second
    assert seat.claim({"node": "a"}, first.term) is None
    third = other.claim({"node": "c"}, second.term)  # by the holder itself
    assert third is not None and third.term > second.term
    assert seat.holder() == third


def test_of_many_that_claim_at_once_exactly_one_holds(place: Place) -> None:
    seats = [place.seat() for _ in range(6)]
    barrier = threading.Barrier(len(seats))
    over = 0

    def claim(number: int) -> Holder | None:
        barrier.wait(PROMPT_S)
        return seats[number].claim({"number": number}, over)

    with ThreadPoolExecutor(len(seats)) as pool:
        for _ in range(10):
            won = [each for each in pool.map(claim, range(len(seats))) if each is not None]
            assert len(won) == 1
            assert seats[0].holder() == won[0]
            over = won[0].term


def test_a_wait_ends_when_the_seat_is_claimed_and_again_when_it_changes_hands(place: Place) -> None:
    seat, other = place.seat(), place.seat()
    waiting = Background(lambda: other.wait(0, 60.0))
    assert waiting.stays_blocked()
    first = seat.claim({"node": "a"}, 0)
    assert first is not None
    assert waiting.result() == (True, first)
    waiting = Background(lambda: seat.wait(first.term, 60.0))
    assert waiting.stays_blocked()
    second = other.claim({"node": "b"}, first.term)
    assert waiting.result() == (True, second)


def test_a_wait_runs_out(place: Place) -> None:
    seat = place.seat()
    mine = seat.claim({}, 0)
    assert mine is not None
    began = time.monotonic()
    assert seat.wait(mine.term, 0.3) == (False, None)
    assert 0.29 <= time.monotonic() - began < PROMPT_S


def test_a_release_by_whoever_holds_nothing_changes_nothing(place: Place) -> None:
    seat, other = place.seat(), place.seat()
    other.release()
    mine = seat.claim({"node": "a"}, 0)
    other.release()
    assert seat.holder() == mine


def test_a_release_by_whoever_was_overruled_changes_nothing(place: Place) -> None:
    seat, other = place.seat(), place.seat()
    first = seat.claim({"node": "a"}, 0)
    assert first is not None
    second = other.claim({"node": "b"}, first.term)
    seat.release()
    seat.release()
    assert other.holder() == second


def test_what_is_no_json_object_is_refused(place: Place) -> None:
    seat = place.seat()
    with pytest.raises(TypeError):
        seat.claim([1], 0)  # type: ignore[arg-type]
    assert seat.holder() is None


def test_closing_the_store_frees_who_waits_for_the_seat(place: Place) -> None:
    seat = place.seat()
    waiting = Background(lambda: seat.wait(0, 60.0))
    assert waiting.stays_blocked()
    place.store().close()
    with pytest.raises(StoreError, match="closed"):
        waiting.result()
    for call in (seat.holder, lambda: seat.claim({}, 0), lambda: seat.wait(0, 60.0)):
        with pytest.raises(StoreError, match="closed"):
            call()


# Leases

HOLD = """
import sys
from elastic_runtime.stores import etcd
store = etcd.connect([("127.0.0.1", int(sys.argv[1]))], prefix=sys.argv[2], timeout_s=10.0)
seat = store.seat("seat", float(sys.argv[3]))
print(seat.claim({"node": "theirs"}, 0).term, flush=True)
while sys.stdin.readline():
    holder = seat.holder()
    print(holder and holder.term, flush=True)
"""


@pytest.fixture
def held(leased: EtcdPlace) -> Iterator[Callable[[], Program]]:
    started: list[Program] = []

    def start() -> Program:
        started.append(Program(HOLD, leased.server.endpoint[1], leased.prefix, TTL_S))
        return started[-1]

    yield start
    for each in started:
        each.kill()


def test_a_release_empties_the_seat_at_once(leased: EtcdPlace) -> None:
    seat, other = leased.seat(), leased.seat()
    mine = seat.claim({"node": "a"}, 0)
    assert mine is not None
    waiting = Background(lambda: other.wait(mine.term, 60.0))
    assert waiting.stays_blocked()
    seat.release()
    assert waiting.result() == (True, None)
    second = other.claim({"node": "b"}, 0)
    assert second is not None and second.term > mine.term


def test_a_seat_is_kept_for_longer_than_its_time_of_silence(leased: EtcdPlace) -> None:
    seat, other = leased.seat(), leased.seat()
    mine = seat.claim({"node": "a"}, 0)
    assert mine is not None
    assert other.wait(mine.term, TTL_S + 1.5) == (False, None)
    assert other.holder() == mine


def test_a_holder_that_is_killed_loses_the_seat_in_time(leased: EtcdPlace, held: Callable[[], Program]) -> None:
    seat = leased.seat()
    theirs = held()
    term = int(theirs.line())
    waiting = Background(lambda: seat.wait(term, 60.0))
    theirs.kill()
    assert waiting.result(EXPIRY_S) == (True, None)
    assert seat.claim({"node": "a"}, 0) is not None


@pytest.mark.slow
def test_a_holder_that_was_stopped_finds_the_seat_lost_and_is_not_put_back(
    leased: EtcdPlace, held: Callable[[], Program]
) -> None:
    seat = leased.seat()
    theirs = held()
    term = int(theirs.line())
    theirs.stop()
    assert Background(lambda: seat.wait(term, 60.0)).result(EXPIRY_S) == (True, None)
    theirs.resume()
    theirs.go()
    assert theirs.line() == "None"
    mine = seat.claim({"node": "a"}, 0)
    assert mine is not None
    assert seat.wait(mine.term, TTL_S / 2) == (False, None)
    theirs.go()
    assert theirs.line() == str(mine.term)


def test_closing_the_store_loses_the_seat_by_silence(leased: EtcdPlace) -> None:
    seat, other = leased.seat(), leased.seat()
    mine = other.claim({}, 0)  # of the store that was made last
    assert mine is not None
    leased.store().close()
    assert Background(lambda: seat.wait(mine.term, 60.0)).result(EXPIRY_S) == (True, None)


def test_a_time_of_silence_that_etcd_does_not_grant_is_refused(leased: EtcdPlace) -> None:
    leased.seat()
    store = leased.store()
    assert isinstance(store, etcd.EtcdStore)
    with pytest.raises(ValueError, match="2 s"):
        store.seat("other", 1.0)


def test_no_lease_is_left_by_claims_that_lost(leased: EtcdPlace) -> None:
    def leases() -> int:
        return len(leased.server.ctl("lease", "list").splitlines())

    seat, other = leased.seat(), leased.seat()
    before = leases()
    mine = seat.claim({}, 0)
    for _ in range(5):
        assert other.claim({}, 0) is None
    assert leases() == before + 1
    for _ in range(5):
        assert mine is not None
        mine = seat.claim({}, mine.term)
    assert leases() == before + 1
    seat.release()
    assert leases() == before
