"""What a node does about the coordinator's seat: one row a situation, from what it knows to the move and its reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_runtime.core.succession import (
    RETRY_S,
    Await,
    Claim,
    Connect,
    GiveUp,
    Move,
    Situation,
    next_move,
    why_lost,
)

NOW, RECLAIM_S = 100.0, 0.5
ELECTED = Situation(may_claim=True, passes_on=True)  # as it is where the store lies apart
HELD = replace(ELECTED, term=7, holder="a")
OWN_STORE = Situation(may_claim=True, passes_on=False)  # of the node that hosts it
OTHERS_STORE = Situation(may_claim=False, passes_on=False)

MOVES = {
    "an empty seat": (ELECTED, Claim(over=0, reason="nobody coordinated")),
    "empty, and the coordinator is still linked": (
        replace(ELECTED, linked=True, empty_since=NOW - 0.2),
        Await(reason="the coordinator has lost its seat", until=NOW + 0.3),
    ),
    "it has not come back to it": (
        replace(ELECTED, linked=True, empty_since=NOW - 0.5),
        Claim(over=0, reason="nobody coordinated"),
    ),
    "empty, and nobody is linked": (
        replace(ELECTED, empty_since=NOW),
        Claim(over=0, reason="nobody coordinated"),
    ),
    "empty, and it was its own": (
        replace(ELECTED, coordinating=True, linked=True, empty_since=NOW),
        Claim(over=0, reason="the seat was lost while the store could not be reached"),
    ),
    "held by another": (HELD, Connect(reason="a coordinates")),
    "held by itself": (replace(HELD, mine=True, coordinating=True), Connect(reason="it coordinates itself")),
    "the holder refuses": (
        replace(HELD, refused=7),
        Claim(over=7, reason="a refuses connections: its process is gone"),
    ),
    "the one before refused": (replace(HELD, refused=6), Connect(reason="a coordinates")),
    "refuses, after it was silent": (
        replace(HELD, refused=7, silent=7, silent_at=NOW),
        Claim(over=7, reason="a refuses connections: its process is gone"),
    ),
    "the holder is silent": (
        replace(HELD, silent=7, silent_at=NOW - 0.1),
        Await(reason="a does not answer; its lease decides", until=NOW - 0.1 + RETRY_S),
    ),
    "it may answer again": (replace(HELD, silent=7, silent_at=NOW - RETRY_S), Connect(reason="a coordinates")),
    "the one before was silent": (replace(HELD, silent=6, silent_at=NOW), Connect(reason="a coordinates")),
    "its own store is empty": (OWN_STORE, Claim(over=0, reason="nobody coordinated")),
    "another's store is empty": (OTHERS_STORE, Await(reason="nobody coordinates yet")),
    "the host of the store refuses": (
        replace(OTHERS_STORE, term=1, holder="a", refused=1),
        GiveUp(reason="a refuses connections: its process is gone"),
    ),
    "the host of the store is silent": (
        replace(OTHERS_STORE, term=1, holder="a", silent=1, silent_at=NOW),
        GiveUp(reason="a does not answer"),
    ),
}


@pytest.mark.parametrize(("situation", "move"), MOVES.values(), ids=MOVES)
def test_the_move_and_its_reason(situation: Situation, move: Move) -> None:
    assert next_move(situation, NOW, reclaim_s=RECLAIM_S) == move


@pytest.mark.parametrize(
    ("refused", "silent", "over", "term", "known"),
    [
        (7, 0, 7, 7, "refuses connections: its process is gone"),
        (7, 0, 0, 7, "was silent, and its lease ran out"),  # it refused, and the seat is empty since
        (0, 7, 0, 7, "was silent, and its lease ran out"),
        (0, 6, 0, 7, ""),  # the one before it
        (0, 0, 0, 7, ""),  # it lost its seat and was heard all the time: it may come
        (0, 0, 0, 0, ""),  # there was none
    ],
)
def test_what_is_known_to_have_become_of_the_one_before(
    refused: int, silent: int, over: int, term: int, known: str
) -> None:
    assert why_lost(replace(ELECTED, refused=refused, silent=silent), over, term) == known
