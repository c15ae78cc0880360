"""Why a node takes part, or does not: asked from the same view that worlds are decided from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from elastic_runtime.core.explain import NodeState, explain
from elastic_runtime.core.view import Generation, Kind, Policy, View
from elastic_runtime.core.world import NodeRecord, WorkerId, WorkerPhase, WorkerRecord


def node(name: str, phase: WorkerPhase = WorkerPhase.READY, **more: Any) -> NodeRecord:
    adopted, feeds = 2 if name in "ab" else 0, more.pop("feeds", 8)
    worker = WorkerRecord(slot=0, spawn=1, phase=phase, adopted=adopted, max_workers=feeds)
    return NodeRecord(node=name, address=name, slots=1, store_port=1, workers=(worker,), host=f"host-{name}", **more)


def view(*nodes: NodeRecord, **more: Any) -> View:
    """Generation 2 is a and b."""
    world = tuple(WorkerId(name, 0, 1) for name in "ab")
    generation = Generation(number=2, kind=Kind.LIVE, world=world, reason="all 2 workers opened a Session")
    return View(
        **{"policy": Policy(min_nodes=1, max_nodes=4), **more},
        generation=generation,
        settled_at=0.0,
        nodes={n.node: n for n in (node("a"), node("b"), *nodes)},
        gone={},
        seniority={},
        trained=generation,
        used_ports={},
    )


def told_of(name: str, seen: View, now: float = 1.0) -> tuple[NodeState, str]:
    (found,) = [entry for entry in explain(seen, now) if entry.node == name]
    return found.state, found.why


def test_a_member_is_told_its_ranks_and_the_reason_of_its_world() -> None:
    entries = {entry.node: entry for entry in explain(view(), 1.0)}
    assert {name: entry.ranks for name, entry in entries.items()} == {"a": (0,), "b": (1,)}
    assert entries["a"].why == "in generation 2: all 2 workers opened a Session"


@pytest.mark.parametrize(
    ("newcomer", "more", "state", "words"),
    [
        (node("c", given_up="the budget is spent"), {}, NodeState.LEFT_OUT, "gave up: the budget is spent"),
        (node("c", draining=True), {}, NodeState.DRAINING, "asked to leave"),
        (node("c"), {"held_back": {"c": 31.0}}, NodeState.LEFT_OUT, "host-c lost nodes again and again: it waits 30 s"),
        (node("c"), {"target": 2}, NodeState.STANDBY, "a resize lets at most 2"),
        (node("c"), {"policy": Policy(min_nodes=1, max_nodes=2)}, NodeState.STANDBY, "--nnodes lets at most 2"),
        (node("c", WorkerPhase.STARTING), {}, NodeState.STARTING, "until their Sessions are open"),
        (replace(node("c"), workers=()), {}, NodeState.STARTING, "until their Sessions are open"),
        (node("c", WorkerPhase.FINISHED), {}, NodeState.STANDBY, "have finished"),
        (node("c", feeds=2), {}, NodeState.STANDBY, "work for 2 worker(s) and no more"),
        (node("c"), {}, NodeState.STARTING, "in the next generation"),
    ],
)
def test_a_newcomer_is_told_why_it_is_not_in(
    newcomer: NodeRecord, more: dict[str, Any], state: NodeState, words: str
) -> None:
    found, why = told_of("c", view(newcomer, **more))
    assert found is state
    assert words in why


def test_a_member_that_drains_finishes_its_step() -> None:
    seen = view()
    leaving = replace(seen, nodes={**seen.nodes, "b": node("b", draining=True)})
    assert told_of("b", leaving) == (NodeState.DRAINING, "it was asked to leave and finishes its step")
