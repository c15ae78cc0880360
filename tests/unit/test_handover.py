"""A coordinator that goes on from what another one left: whom it waits for, what it takes over, what it decides."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from elastic_runtime.core.coordinator import Coordinator
from elastic_runtime.core.coordinator_events import (
    Announce,
    Effect,
    Evict,
    JobEnded,
    NodeGone,
    NodeReported,
    Note,
    Resized,
    Tick,
    WakeAt,
    Write,
    WriteWon,
)
from elastic_runtime.core.handover import Handover, last_trained
from elastic_runtime.core.view import Generation, Kind, Policy
from elastic_runtime.core.world import NodeRecord, WorkerId, WorkerPhase, WorkerRecord
from elastic_runtime.rendezvous.documents import handover_from_json, handover_to_json

POLICY = Policy(min_nodes=1, max_nodes=4)
NOW = 50.0


def worker(**more: Any) -> WorkerRecord:
    return WorkerRecord(slot=0, spawn=1, phase=WorkerPhase.READY, **more)


def record(name: str, *workers: WorkerRecord, **more: Any) -> NodeRecord:
    return NodeRecord(node=name, address=name, slots=1, workers=workers, **{"store_port": 10, **more})


def member(name: str, adopted: int = 2, **more: Any) -> NodeRecord:
    return record(name, worker(adopted=adopted, member_of=adopted, **more), group=1)


def only(effects: list[Effect], kind: type[Any]) -> list[Any]:
    return [effect for effect in effects if isinstance(effect, kind)]


def world(*names: str) -> tuple[WorkerId, ...]:
    return tuple(WorkerId(name, 0, 1) for name in names)


def left(*names: str) -> Handover:
    """What a coordinator leaves after generation 2, a live one of these nodes."""
    first = Coordinator(policy=replace(POLICY, max_nodes=len(names)))
    for name in names:
        first.step(NodeReported(record(name)), 0.0)
    first.step(WriteWon(1), 0.0)
    writes = [only(first.step(NodeReported(record(name, worker(), group=1)), 0.0), Write) for name in names]
    return stored(writes[-1][0].handover)


def stored(handover: Handover) -> Handover:
    return handover_from_json(json.loads(json.dumps(handover_to_json(handover))))


def successor(handover: Handover, lost: dict[str, str] | None = None, **waits_s: float) -> Coordinator:
    machine = Coordinator(policy=POLICY)
    machine.resume(handover, lost or {}, waits_s, NOW)
    return machine


def notes(effects: list[Effect]) -> list[str]:
    return [note.event for note in only(effects, Note)]


def test_once_all_have_come_nothing_changes() -> None:
    machine = successor(left("a", "b", "c"))
    assert notes(machine.step(NodeReported(member("a")), NOW)) == ["joined"]
    assert notes(machine.step(NodeReported(member("b")), NOW + 0.1)) == ["joined"]
    effects = machine.step(NodeReported(member("c")), NOW + 0.2)
    assert notes(effects) == ["joined", "resumed", "hold"] and only(effects, Write) == []
    assert (machine.generation.number, machine.generation.world) == (2, world("a", "b", "c"))


def test_each_is_told_again_what_is_settled() -> None:
    """The one before may have died between its write and the announcement."""
    machine = successor(left("a", "b"))
    (told,) = only(machine.step(NodeReported(member("a")), NOW), Announce)
    assert (told.generation.number, told.nodes) == (2, ("a",))


def test_as_long_as_some_still_come_nobody_is_late() -> None:
    """A thousand nodes may take longer to link to the new coordinator than a dead one is waited for."""
    machine = successor(left("a", "b", "c", "d"))
    for at, name in ((2.9, "a"), (3.8, "b")):
        assert only(machine.step(NodeReported(member(name)), NOW + at), Write) == []
    assert only(machine.step(NodeReported(member("c")), NOW + 4.7), Write) == []
    assert only(machine.step(Tick(), NOW + 5.6), Write) == []
    (write,) = only(machine.step(Tick(), NOW + 5.7), Write)
    assert "node d did not come to the new coordinator" in write.generation.reason


def test_until_then_nothing_is_decided() -> None:
    machine = successor(left("a", "b", "c"))
    machine.step(NodeReported(member("a")), NOW)
    effects = machine.step(NodeReported(member("b", broken=2)), NOW + 1.0)
    assert only(effects, Write) == []
    assert only(effects, WakeAt) != []
    assert only(machine.step(JobEnded(1, "a failure"), NOW + 1.1), Write) == []
    (write,) = only(machine.step(NodeReported(member("c")), NOW + 1.2), Write)
    assert write.handover.closed == (1, "a failure")


@pytest.mark.parametrize(
    ("lost", "waits_s", "until", "reason"),
    [
        ({}, {}, 3.0, "node c did not come to the new coordinator"),
        ({}, {"c": 1.0}, 1.0, "node c did not come to the new coordinator"),
        ({"c": "refuses connections"}, {}, 0.2, "node c refuses connections"),
    ],
)
def test_who_does_not_come_is_gone(lost: dict[str, str], waits_s: dict[str, float], until: float, reason: str) -> None:
    machine = successor(left("a", "b", "c"), lost, **waits_s)
    machine.step(NodeReported(member("a")), NOW)
    assert only(machine.step(NodeReported(member("b")), NOW + min(0.2, until - 0.01)), Write) == [] or until < 0.5
    now = NOW + max(until, 0.2)
    write = machine.writing or only(machine.step(Tick(), now), Write)[0].generation
    assert (write.number, write.world, write.planned, write.reason) == (3, world("a", "b"), False, reason)


def test_it_wakes_up_for_each_of_them() -> None:
    machine = successor(left("a", "b", "c"), b=1.0)
    (wake,) = only(machine.step(NodeReported(member("a")), NOW), WakeAt)
    assert NOW < wake.time <= NOW + 1.0


def test_who_comes_too_late_is_evicted_and_may_come_back() -> None:
    machine = successor(left("a", "b"))
    machine.step(NodeReported(member("a")), NOW)
    machine.step(Tick(), NOW + 3.0)
    (evicted,) = only(machine.step(NodeReported(member("b")), NOW + 3.1), Evict)
    assert (evicted.node, evicted.rejoin) == ("b", True)


def test_a_node_that_only_stood_by_is_let_in_whenever_it_comes() -> None:
    """It joined after the last write, and stood by in what was announced since."""
    machine = successor(left("a"))
    effects = machine.step(NodeReported(record("new", worker(adopted=2))), NOW)
    assert only(effects, Evict) == [] and "new" in machine.nodes


def test_a_newcomer_is_told_once_it_is_known_that_the_run_goes_on() -> None:
    machine = successor(left("a"))
    assert only(machine.step(NodeReported(record("new")), NOW), Announce) == []
    effects = machine.step(NodeReported(member("a")), NOW + 0.5)
    assert [told.nodes for told in only(effects, Announce)] == [("a",), ("new",)]


def test_a_member_that_came_too_late_without_workers_is_told_too() -> None:
    machine = successor(left("a", "b", "c"), c=1.0)
    machine.step(NodeReported(member("a")), NOW)
    machine.step(Tick(), NOW + 1.0)
    assert only(machine.step(NodeReported(record("c")), NOW + 1.5), Announce) == []
    effects = machine.step(NodeReported(member("b")), NOW + 1.6)
    assert ("c",) in [told.nodes for told in only(effects, Announce)]


# -- what is taken over -----------------------------------------------------------------------------------------------


def test_ranks_stay_as_they_were() -> None:
    handover = replace(left("a", "b"), seniority={WorkerId("a", 0, 1): 9, WorkerId("b", 0, 1): 2})
    machine = successor(handover)
    for name in "ab":
        machine.step(NodeReported(member(name, broken=2)), NOW)
    (write,) = only(machine.step(Tick(), NOW + 1.0), Write)
    assert write.generation.world == world("b", "a")


def test_numbers_go_on_from_the_one_that_stands_in_the_store() -> None:
    machine = successor(replace(left("a"), generation=replace(left("a").generation, number=41)))
    machine.step(NodeReported(member("a", broken=41)), NOW)
    (write,) = only(machine.step(Tick(), NOW + 1.0), Write)
    assert write.generation.number == 42


def test_numbers_go_on_after_a_job_that_never_settled() -> None:
    closed = replace(left("a"), closed=(0, "every worker finished"))
    second = successor(closed)
    second.step(JobEnded(1, "a wrong argument"), NOW)
    assert second.numbered == 2 and second.generation.number == 0
    third = successor(stored(second.handover(closed=(1, "a wrong argument"))))
    third.policy = replace(POLICY, max_nodes=1)
    (write,) = only(third.step(NodeReported(record("b")), NOW), Write)
    assert write.generation.number == 3


def test_a_resize_is_taken_over() -> None:
    first = Coordinator(policy=POLICY)
    first.step(Resized(1), 0.0)
    first.step(NodeReported(record("a")), 0.0)
    machine = successor(stored(replace(left("a", "b"), target=first.handover().target)))
    machine.step(NodeReported(member("a")), NOW)
    (write,) = only(machine.step(NodeReported(member("b")), NOW), Write)
    assert (write.generation.world, write.generation.planned) == (world("a"), True)


def test_a_store_that_a_group_has_used_serves_no_other() -> None:
    first = Coordinator(policy=replace(POLICY, max_nodes=2))
    first.step(NodeReported(record("a")), 0.0)
    (write,) = only(first.step(NodeReported(record("b")), 0.0), Write)
    assert stored(write.handover).used_ports == {"a": 10}
    machine = successor(stored(write.handover), {"b": "refuses connections"})
    assert only(machine.step(NodeReported(record("a", group=1)), NOW), Write) == []  # it has to open another one
    (write,) = only(machine.step(NodeReported(record("a", group=1, store_port=11)), NOW), Write)
    assert (write.generation.kind, write.generation.store_port) == (Kind.START, 11)


def test_a_node_whose_store_was_to_be_used_without_its_knowledge_comes_back_with_another() -> None:
    handover = replace(left("b"), used_ports={"a": 10})
    machine = successor(handover)
    machine.step(NodeReported(member("b")), NOW)
    (evicted,) = only(machine.step(NodeReported(record("a")), NOW), Evict)
    assert evicted.rejoin
    assert only(machine.step(NodeReported(record("c")), NOW), Evict) == []


def test_the_document_forgets_who_is_gone() -> None:
    handover = left("a", "b")
    for number in range(200):
        machine = successor(stored(handover), {handover.nodes[-1]: "refuses connections"})
        machine.step(NodeReported(member("a", adopted=handover.generation.number)), NOW)
        machine.step(WriteWon(machine.numbered), NOW)
        joiner = f"n{number}"
        machine.step(NodeReported(record(joiner, worker(), store_port=number)), NOW)
        machine.step(NodeReported(member("a", adopted=machine.generation.number)), NOW)
        handover = machine.handover()
    assert len(json.dumps(handover_to_json(handover))) < 1500
    assert handover.nodes == ("a", "n199")


# -- the last world that trained --------------------------------------------------------------------------------------


PLANNED = Handover(
    generation=Generation(number=4, kind=Kind.LIVE, world=world("a", "c"), planned=True),
    previous=Generation(number=3, kind=Kind.LIVE, world=world("a", "b")),
    trained=Generation(number=2, kind=Kind.LIVE, world=world("a")),
    nodes=("a", "b", "c"),
)


@pytest.mark.parametrize(("adopted", "trained"), [((2, 2), 2), ((3, 2), 3), ((2, 3), 3), ((4, 3), 3)])
def test_the_last_world_that_trained_is_known_from_the_records(adopted: tuple[int, int], trained: int) -> None:
    records = [member(name, adopted=number) for name, number in zip("ab", adopted, strict=True)]
    assert last_trained(PLANNED, records).number == trained


def test_a_member_of_the_world_that_trains_on_was_lost_in_silence() -> None:
    """b was drained by generation 4, and vanished while it and a still trained in 3: a would wait for it for ever."""
    machine = successor(PLANNED, b=1.0)
    machine.step(NodeReported(member("a", adopted=3)), NOW)
    machine.step(NodeReported(record("c", worker(), group=0)), NOW)
    (write,) = only(machine.step(Tick(), NOW + 1.0), Write)
    assert (write.generation.world, write.generation.planned) == (world("a", "c"), False)
    assert write.generation.reason == "node b did not come to the new coordinator"


def test_one_that_died_after_it_had_come_is_gone() -> None:
    machine = successor(left("a", "b", "c"))
    machine.step(NodeReported(member("a")), NOW)
    machine.step(NodeReported(member("b")), NOW)
    machine.step(NodeGone("b", "closed its connection"), NOW + 0.1)
    (write,) = only(machine.step(NodeReported(member("c")), NOW + 0.2), Write)
    assert write.generation.world == world("a", "c")


# -- runs that are over -----------------------------------------------------------------------------------------------


def test_an_abandoned_run_begins_anew_under_later_numbers() -> None:
    machine = successor(left("a", "b"))
    machine.step(NodeReported(record("new")), NOW)
    effects = machine.step(Tick(), NOW + 3.0)
    assert "abandoned" in notes(effects) and only(effects, Announce) == []
    (write,) = only(effects, Write)
    assert (write.generation.number, write.generation.kind) == (3, Kind.START)
    assert [w.node for w in write.generation.world] == ["new"]


def test_after_a_run_that_ended_nobody_is_waited_for() -> None:
    machine = successor(replace(left("a", "b"), closed=(0, "every worker finished")))
    machine.policy = replace(POLICY, max_nodes=1)
    (write,) = only(machine.step(NodeReported(record("new")), NOW), Write)
    assert (write.generation.number, write.generation.kind) == (3, Kind.START)
