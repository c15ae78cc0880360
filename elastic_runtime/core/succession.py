"""Who coordinates: what a node does about the coordinator's seat, from what it knows of it.

The seat lies in the store. Holding it is a claim and no more: what a coordinator settles is fenced by a
compare-and-set of its own, so a wrong claim costs time and never agreement. Evidence beats timeouts: a holder whose
machine refuses a connection has no process there, and is overruled at once; one that is only silent keeps the seat
until its lease has run out.
"""

from __future__ import annotations

from dataclasses import dataclass

RETRY_S = 2.0  # between two tries to reach a coordinator that does not answer: only the way to it may be broken


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What one node knows. A term is the number of a holding of the seat; 0 stands for none."""

    may_claim: bool  # where the store is one node's own, only that node
    passes_on: bool  # whether the seat can go to another node at all
    term: int = 0  # the holding that stands
    holder: str = ""  # its node
    mine: bool = False
    coordinating: bool = False  # this node's coordination is running, whether or not it still has the seat
    linked: bool = False
    refused: int = 0  # the newest term whose holder refused a connection
    silent: int = 0  # the newest term whose holder did not answer when it was last tried
    silent_at: float = 0.0  # when that was
    empty_since: float | None = None  # since when this node has seen nobody on the seat


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    over: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Connect:
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Await:
    """Until the seat changes, or until `until`."""

    reason: str
    until: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    reason: str


Move = Claim | Connect | Await | GiveUp


def next_move(situation: Situation, now: float, *, reclaim_s: float) -> Move:
    """`reclaim_s`: how long a coordinator that is still linked may take to come back to a seat it lost by silence."""
    if situation.term == 0:
        return _empty(situation, now, reclaim_s)
    if situation.refused == situation.term:
        reason = f"{situation.holder} refuses connections: its process is gone"
        if not situation.passes_on:
            return GiveUp(reason=reason)
        return Claim(over=situation.term, reason=reason)
    if situation.silent == situation.term:
        reason = f"{situation.holder} does not answer"
        if not situation.passes_on:
            return GiveUp(reason=reason)
        if now < situation.silent_at + RETRY_S:
            return Await(reason=f"{reason}; its lease decides", until=situation.silent_at + RETRY_S)
    return Connect(reason="it coordinates itself" if situation.mine else f"{situation.holder} coordinates")


def _empty(situation: Situation, now: float, reclaim_s: float) -> Move:
    if not situation.may_claim:
        return Await(reason="nobody coordinates yet")
    if situation.coordinating:
        return Claim(over=0, reason="the seat was lost while the store could not be reached")
    if situation.linked and situation.empty_since is not None and now < situation.empty_since + reclaim_s:
        return Await(reason="the coordinator has lost its seat", until=situation.empty_since + reclaim_s)
    return Claim(over=0, reason="nobody coordinated")


def why_lost(situation: Situation, over: int, term: int) -> str:
    """What is known to have become of the coordinator of `term`, the last before a claim over `over`; empty: nothing.

    One whose machine refused a connection is gone; one that did not answer this node, and let its lease run out, too.
    Of any other its own node may still come.
    """
    if over and over == situation.refused:
        return "refuses connections: its process is gone"
    if term and term in (situation.refused, situation.silent):
        return "was silent, and its lease ran out"
    return ""
