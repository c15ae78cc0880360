"""When a world is replaced by the next: one row a case, from what is known to what is decided."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from elastic_runtime.core.membership import Close, Decision, Hold, Settle, decide
from elastic_runtime.core.view import Generation, Kind, Policy, View
from elastic_runtime.core.world import NodeRecord, WorkerId, WorkerPhase, WorkerRecord

POLICY = Policy(min_nodes=1, max_nodes=4, last_call_s=1.0, evidence_wait_s=0.5, admit_wait_s=2.0, start_grace_s=5.0)
NOW = 100.0
PHASES = {"s": WorkerPhase.STARTING, "r": WorkerPhase.READY, "f": WorkerPhase.FINISHED}


def worker(text: str, slot: int, *, spawn: int = 1) -> WorkerRecord:
    """`r3`: ready, has adopted generation 3; `r3!4`: the collective of 4 broke under it; `s`, `r`, `f`."""
    adopted, _, broken = text[1:].partition("!")
    return WorkerRecord(
        slot=slot, spawn=spawn, phase=PHASES[text[0]], adopted=int(adopted or 0), broken=int(broken or 0)
    )


def node(name: str, workers: str = "", **more: Any) -> NodeRecord:
    records = tuple(worker(text, slot) for slot, text in enumerate(workers.split()))
    settings = {"slots": max(1, len(records)), "store_port": 10, "group": 1, **more}
    return NodeRecord(node=name, address=name, workers=records, **settings)


def ids(text: str, *, spawn: int = 1) -> tuple[WorkerId, ...]:
    return tuple(WorkerId(word[0], int(word[1:] or 0), spawn) for word in text.split())


def live(world: str, number: int = 3, *, planned: bool = False) -> Generation:
    return Generation(number=number, kind=Kind.LIVE, world=ids(world), planned=planned)


def start(world: str, number: int = 1) -> Generation:
    return Generation(number=number, kind=Kind.START, world=ids(world, spawn=0))


def view(generation: Generation, *nodes: NodeRecord, **more: Any) -> View:
    settings = {
        "policy": POLICY,
        "settled_at": NOW - 1.0,
        "gone": {},
        "seniority": dict.fromkeys(generation.world, 2),
        "trained": Generation(),
        "used_ports": {},
        "joined_at": {n.node: NOW - 0.2 for n in nodes},
        **more,
    }
    return View(generation=generation, nodes={n.node: n for n in nodes}, **settings)


def brief(decision: Decision) -> str:
    match decision:
        case Hold(until=until):
            return "hold" if until is None else f"hold until {until - NOW:+.1f}"
        case Close(exit_code=code):
            return f"close {code}"
        case Settle(kind=kind, world=world, planned=planned):
            names = " ".join(f"{w.node}{w.slot}" for w in world) or "nobody"
            return f"{kind.value}{'' if planned else ' now'}: {names}"


STARTING = {
    "a last call for more nodes": (view(Generation(), node("a"), node("b")), "hold until +0.8"),
    "the call is over": (view(Generation(), node("a"), node("b"), joined_at={"a": 98.0, "b": 99.0}), "start: a0 b0"),
    "no call when all are here": (view(Generation(), *map(node, "abcd")), "start: a0 b0 c0 d0"),
    "one node too many": (view(Generation(), *map(node, "abcde")), "start: a0 b0 c0 d0"),
    "a node has several slots": (
        view(Generation(), node("a", slots=2), joined_at={"a": 0.0}),
        "start: a0 a1",
    ),
    "the store is being opened": (view(Generation(), node("a", store_port=0), joined_at={"a": 0.0}), "hold"),
    "workers are importing": (view(start("a b"), node("a", "s"), node("b", "r")), "hold"),
    "all opened a Session": (view(start("a b"), node("a", "r"), node("b", "r")), "live: a0 b0"),
    "of another group than the settled one": (
        view(start("a b", 2), node("a", "r", group=2), node("b", "r", group=1)),
        "hold",
    ),
    "different arguments": (
        view(start("a b"), node("a", "r"), replace(node("b"), workers=(replace(worker("r", 0), constants="x"),))),
        "close 2",
    ),
    "a worker failed": (view(start("a b"), node("a", "s"), node("b", "", failed_group=1)), "start now: a0 b0"),
    "an earlier group failed": (view(start("a b", 2), node("a", "s"), node("b", "s", failed_group=1)), "hold"),
    "a node is lost": (view(start("a b"), node("b", "s")), "start now: b0"),
    "a node gave up": (view(start("a b"), node("a", given_up="budget"), node("b", "s")), "start now: b0"),
    "never on a store that a group has used": (view(start("a b"), node("b", "s"), used_ports={"b": 10}), "hold"),
    "a newcomer waits for a Session": (view(start("a"), node("a", "s"), node("b")), "hold until +4.0"),
    "no Session came": (view(start("a"), node("a", "s"), node("b"), settled_at=90.0), "start now: a0 b0"),
    "a Session came": (view(start("a"), node("a", "s r"), node("b"), settled_at=90.0), "hold"),
    "some have finished already": (view(start("a"), node("a", "s f"), node("b"), settled_at=90.0), "hold"),
    "plain scripts are through": (view(start("a b"), node("a", "f"), node("b", "f")), "close 0"),
    "one is not": (view(start("a b"), node("a", "f"), node("b", "s")), "hold"),
    "all gave up": (view(start("a"), node("a", given_up="budget")), "close 1"),
}

LIVE = {
    "nothing to change": (view(live("a b"), node("a", "r3"), node("b", "r3")), "hold"),
    "a worker is importing": (view(live("a"), node("a", "r3"), node("b", "s")), "hold"),
    "a worker joins": (view(live("a"), node("a", "r3"), node("b", "r")), "live: a0 b0"),
    "not before the last change is adopted": (
        view(live("a b"), node("a", "r3"), node("b", "r2"), node("c", "r")),
        "hold",
    ),
    "siblings are admitted together": (view(live("a"), node("a", "r3"), node("b", "r s")), "hold until +2.0"),
    "not for ever": (
        view(live("a"), node("a", "r3"), node("b", "r s"), ready_since={"b": 90.0}),
        "live: a0 b0",
    ),
    "a member does not wait for its sibling": (
        view(live("a a1"), node("a", "r3 s"), gone={"a/1": "died"}),
        "live now: a0",
    ),
    "a drained node leaves": (view(live("a b"), node("a", "r3"), node("b", "r3", draining=True)), "live: a0"),
    "a node that gave up is out": (view(live("a b"), node("a", "r3"), node("b", "r3", given_up="x")), "live: a0"),
    "a death": (view(live("a b"), node("a", "r3"), gone={"b": "node b died"}), "live now: a0"),
    "a death takes newcomers along": (
        view(live("a b"), node("a", "r3"), node("c", "r"), gone={"b": "died"}),
        "live now: a0 c0",
    ),
    "a death before the change is adopted": (
        view(live("a b c", planned=True), node("a", "r2"), node("b", "r2"), gone={"c": "died"}),
        "live now: a0 b0",
    ),
    "nobody is left": (view(live("a"), node("a", "s"), gone={"a/0": "died"}), "live now: nobody"),
    "nobody has come since": (view(live("", 4), node("a", "s")), "hold"),
    "somebody has": (view(live("", 4), node("a", "r")), "live: a0"),
    "a broken collective waits for evidence": (
        view(live("a b"), node("a", "r3!3"), node("b", "r3"), broken_since=99.9),
        "hold until +0.4",
    ),
    "none came": (view(live("a b"), node("a", "r3!3"), node("b", "r3"), broken_since=99.0), "live now: a0 b0"),
    "evidence came": (
        view(live("a b"), node("a", "r3!3"), gone={"b": "died"}, broken_since=99.9),
        "live now: a0",
    ),
    "an older collective broke": (view(live("a b"), node("a", "r3!2"), node("b", "r3")), "hold"),
    "the last holder of the state hands over": (
        view(live("a"), node("a", "r3", draining=True), node("b", "r")),
        "live: a0 b0",
    ),
    "and waits while its successor is importing": (
        view(live("a"), node("a", "r3", draining=True), node("b", "s")),
        "hold",
    ),
    "and goes when that has it": (
        view(live("a b"), node("a", "r3", draining=True), node("b", "r3")),
        "live: b0",
    ),
    "one that was told to go is not counted on": (
        view(live("b"), node("a", "r2", draining=True), node("b", "s"), trained=live("a", 2), gone={"b/0": "died"}),
        "live now: nobody",
    ),
}

FINISHING = {
    "all have finished": (view(live("a b"), node("a", "f3"), node("b", "f3")), "close 0"),
    "one has not": (view(live("a b"), node("a", "f3"), node("b", "r3")), "hold"),
    "one is not known to have adopted": (view(live("a b"), node("a", "f3"), node("b", "r2")), "hold"),
    "no change any more": (view(live("a b"), node("a", "f3"), node("b", "r3"), node("c", "r")), "hold"),
    "a newcomer is not waited for": (
        view(live("a b", 4, planned=True), node("a", "f3"), node("b", "r"), trained=live("a", 3)),
        "close 0",
    ),
    "a member of the world before is": (
        view(live("a b c", 4, planned=True), node("a", "f3"), node("b", "r3"), node("c", "r"), trained=live("a b", 3)),
        "hold",
    ),
    "it would wait for those who finished": (
        view(live("a b c", 4), node("a", "f3"), node("b", "r3!3"), node("c", "r"), trained=live("a b", 3)),
        "live now: b0 c0",
    ),
    "a death does not bring the finished back": (
        view(live("a b c"), node("a", "f3"), node("b", "r3"), gone={"c": "died"}),
        "live now: b0",
    ),
    "the rest died": (view(live("a b"), node("a", "f3"), gone={"b": "died"}), "close 0"),
    "below min it still ends well": (
        view(live("a b"), node("a", "f3"), node("b", "r3"), policy=replace(POLICY, min_nodes=3)),
        "hold",
    ),
}

MIN2 = replace(POLICY, min_nodes=2, join_timeout_s=10.0)
BELOW_MIN = {
    "before the first start": (view(Generation(), node("a"), policy=MIN2, below_min_since=95.0), "hold until +5.0"),
    "nobody came": (view(Generation(), node("a"), policy=MIN2, below_min_since=90.0), "close 1"),
    "the world is taken apart": (
        view(live("a b"), node("a", "r3"), gone={"b": "died"}, policy=MIN2),
        "live now: nobody",
    ),
    "in order, if nobody died": (
        view(live("a b"), node("a", "r3"), node("b", "r3", draining=True), policy=MIN2),
        "live: nobody",
    ),
    "after the last change is adopted": (
        view(live("a b"), node("a", "r3"), node("b", "r2", draining=True), policy=MIN2),
        "hold",
    ),
    "then it waits": (view(live("", 4), node("a", "r4"), policy=MIN2, below_min_since=99.0), "hold until +9.0"),
    "a silent peer in the world before": (
        view(live("", 4, planned=True), node("a", "r3"), gone={"b": "was silent"}, policy=MIN2),
        "live now: nobody",
    ),
    "enough are back": (
        view(
            live("", 4), node("a", "r4"), node("c", "r"), policy=MIN2, trained=live("a b"), seniority={ids("a")[0]: 2}
        ),
        "live: a0 c0",
    ),
}

CASES = {"starting": STARTING, "live": LIVE, "finishing": FINISHING, "below min": BELOW_MIN}


@pytest.mark.parametrize(
    ("known", "decided"),
    [pytest.param(*case, id=f"{table}: {name}") for table, cases in CASES.items() for name, case in cases.items()],
)
def test_from_what_is_known_to_what_is_decided(known: View, decided: str) -> None:
    assert brief(decide(known, NOW)) == decided
    assert decide(known, NOW) == decide(known, NOW)


# -- more workers than the batch feeds ------------------------------------------------------------------------------


def fed(record: NodeRecord, max_workers: int) -> NodeRecord:
    return replace(record, workers=tuple(replace(w, max_workers=max_workers) for w in record.workers))


@pytest.mark.parametrize(
    ("generation", "nodes", "decided"),
    [
        (start("a a1 b b1"), [node("a", "r r"), node("b", "r r")], "live: a0 a1 b0"),
        (live("a a1 b"), [node("a", "r3 r3"), node("b", "r3 r")], "hold"),
        (live("b b1 c"), [node("b", "r3 r3"), node("c", "r3"), node("a", "r r")], "hold"),
    ],
)
def test_what_the_batch_does_not_feed_stands_by(generation: Generation, nodes: list[NodeRecord], decided: str) -> None:
    assert brief(decide(view(generation, *(fed(n, 3) for n in nodes)), NOW)) == decided


def test_no_member_is_sent_away_for_a_newcomer_beside_an_elder() -> None:
    """Node a has the oldest worker and a new one: together they would push the last member, and its state, out."""
    nodes = [fed(node("a", "r3 r"), 3), fed(node("b", "r3"), 3), fed(node("c", "r3"), 3)]
    ages = {ids("a")[0]: 2, ids("b")[0]: 3, ids("c")[0]: 3}
    known = view(live("a b c"), *nodes, seniority=ages)
    assert brief(decide(known, NOW)) == "hold"
    assert brief(decide(replace(known, gone={"d": "died"}), NOW)) == "live now: a0 b0 c0"


def test_reasons_are_for_people() -> None:
    joined = decide(view(live("a b"), node("a", "r3"), node("b", "r3", draining=True), node("c", "r")), NOW)
    died = decide(view(live("a b"), node("a", "r3"), gone={"b/0": "worker 0 of b died"}), NOW)
    assert joined.reason == "1 worker(s) of c joined, 1 worker(s) of b drained"
    assert died.reason == "worker 0 of b died"
