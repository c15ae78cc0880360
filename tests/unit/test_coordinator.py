"""The coordinator's machine: a write before an announcement, no number twice, silence judged by its own clock."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_runtime.core.coordinator import END_WAIT_S, Coordinator
from elastic_runtime.core.coordinator_events import (
    Announce,
    Effect,
    End,
    Evict,
    JobEnded,
    NodeGone,
    NodeHeard,
    NodeReported,
    Note,
    Resized,
    Tick,
    WakeAt,
    Write,
    WriteFailed,
    WriteWon,
)
from elastic_runtime.core.view import Generation, Kind, Policy
from elastic_runtime.core.world import NodeRecord, WorkerId, WorkerPhase, WorkerRecord


def record(name: str, *workers: WorkerRecord, **more: Any) -> NodeRecord:
    return NodeRecord(
        node=name, address=name, slots=1, **{"store_port": 10, "group": int(bool(workers)), **more}, workers=workers
    )


def ready(spawn: int = 1, **more: Any) -> WorkerRecord:
    return WorkerRecord(slot=0, spawn=spawn, phase=WorkerPhase.READY, **more)


def only(effects: list[Effect], kind: type[Any]) -> list[Any]:
    return [effect for effect in effects if isinstance(effect, kind)]


def started(*names: str) -> Coordinator:
    """Generation 1 is settled with these nodes, at time 0."""
    machine = Coordinator(policy=Policy(min_nodes=1, max_nodes=len(names)))
    for name in names:
        machine.step(NodeReported(record(name)), 0.0)
    machine.step(WriteWon(1), 0.0)
    return machine


def trains(*names: str) -> Coordinator:
    """Generation 2 is settled, live and adopted, at time 0; a newcomer may come."""
    machine = started(*names)
    machine.policy = Policy(min_nodes=1, max_nodes=9)
    for name in names:
        machine.step(NodeReported(record(name, ready())), 0.0)
    machine.step(WriteWon(2), 0.0)
    for name in names:
        machine.step(NodeReported(record(name, ready(adopted=2))), 0.0)
    assert machine.generation.kind is Kind.LIVE and machine.writing is None
    return machine


def world(*names: str) -> tuple[WorkerId, ...]:
    return tuple(WorkerId(name, 0, 1) for name in names)


def test_a_world_is_announced_once_the_store_has_it() -> None:
    machine = Coordinator(policy=Policy(min_nodes=1, max_nodes=2))
    assert only(machine.step(NodeReported(record("a")), 0.0), Write) == []
    (write,) = only(machine.step(NodeReported(record("b")), 0.1), Write)
    assert (write.generation.number, write.generation.kind, write.generation.store_host) == (1, Kind.START, "a")
    assert machine.generation.number == 0
    assert only(machine.step(NodeReported(record("c")), 0.2), Announce | Write) == []  # nothing while it is written
    effects = machine.step(WriteWon(1), 0.3)
    assert only(effects, Announce) == [Announce(write.generation, ("a", "b", "c"))]
    assert only(effects, Note)[0].event == "settled"


def test_a_failed_write_is_tried_again_later_under_a_new_number() -> None:
    machine = Coordinator(policy=Policy(min_nodes=1, max_nodes=2))
    machine.step(NodeReported(record("a")), 0.0)
    machine.step(NodeReported(record("b")), 0.0)
    effects = machine.step(WriteFailed(1, retry_at=2.0), 1.0)
    assert only(effects, Write) == [] and only(effects, WakeAt) == [WakeAt(1.5)]
    machine.step(NodeGone("b", "died"), 1.1)
    machine.step(NodeReported(record("c")), 1.2)
    (write,) = only(machine.step(Tick(), 2.0), Write)
    assert write.generation.number == 2  # the first may stand in the store, and with another world
    assert [w.node for w in write.generation.world] == ["a", "c"]
    assert machine.step(WriteWon(1), 2.1) is not None and machine.generation.number == 0
    machine.step(WriteWon(2), 2.2)
    assert machine.generation.number == 2


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (NodeGone("b", "closed its connection"), "node b closed its connection"),
        (NodeReported(record("b")), "worker 0 of b died"),
        (NodeReported(record("b", WorkerRecord(slot=0, spawn=2, phase=WorkerPhase.STARTING))), "worker 0 of b died"),
    ],
)
def test_evidence_of_a_death_is_acted_on_at_once(event: Any, reason: str) -> None:
    (write,) = only(trains("a", "b").step(event, 1.0), Write)
    assert (write.generation.world, write.generation.planned, write.generation.reason) == (world("a"), False, reason)


def test_who_dies_while_a_world_is_written_is_a_loss_of_that_world() -> None:
    machine = trains("a", "b")
    (write,) = only(machine.step(NodeReported(record("c", ready(), group=0)), 1.0), Write)
    assert write.generation.world == world("a", "b", "c")
    machine.step(NodeGone("b", "closed its connection"), 1.1)
    machine.step(NodeReported(record("c")), 1.2)
    effects = machine.step(WriteWon(3), 1.3)
    assert machine.generation.world == world("a", "b", "c")
    (write,) = only(effects, Write)
    assert (write.generation.number, write.generation.world, write.generation.planned) == (4, world("a"), False)


def test_a_newcomer_is_told_what_is_settled() -> None:
    machine = trains("a")
    assert only(machine.step(NodeReported(record("b")), 1.0), Announce) == [Announce(machine.generation, ("b",))]
    assert only(machine.step(NodeReported(record("b")), 1.1), Announce) == []


def test_a_node_that_left_and_a_beat_of_it_are_forgotten() -> None:
    machine = trains("a", "b")
    machine.step(NodeGone("b", "left"), 1.0)
    machine.step(NodeHeard("b"), 1.1)
    machine.step(NodeGone("b", "left"), 1.2)
    assert set(machine.nodes) == set(machine.liveness.heard_at) == {"a"}


# -- silence --------------------------------------------------------------------------------------------------------


def beat(machine: Coordinator, names: str, until: float, *, since: float = 0.0) -> list[Effect]:
    """Beats of these nodes every half second; what comes of them."""
    effects = []
    time = since
    while time < until:
        time += 0.5
        for name in names:
            effects += machine.step(NodeHeard(name), time)
    return effects


def test_silence_ends_a_node_and_only_silence() -> None:
    machine = trains("a", "b")
    assert only(beat(machine, "a", 2.5), Evict) == []
    effects = beat(machine, "a", 3.0, since=2.5)
    assert [e.node for e in only(effects, Evict)] == ["b"]
    assert [w.generation.world for w in only(effects, Write)] == [world("a")]
    assert only(beat(machine, "a", 20.0, since=3.0), Evict) == []


def test_it_wakes_up_in_time_to_see_silence() -> None:
    machine = trains("a", "b")
    beat(machine, "a", 2.5)
    assert machine.step(NodeHeard("a"), 2.9) == []  # the timer that is set still holds
    (wake,) = only(machine.step(Tick(), 2.9), WakeAt)
    assert wake.time == pytest.approx(3.0)
    assert [e.node for e in only(machine.step(Tick(), wake.time), Evict)] == ["b"]


def test_its_own_pause_is_not_the_silence_of_others() -> None:
    machine = trains("a", "b")
    beat(machine, "ab", 2.0)
    assert only(machine.step(Tick(), 62.0), Evict) == []
    assert only(beat(machine, "a", 64.0, since=62.0), Evict) == []
    assert [e.node for e in only(beat(machine, "a", 66.0, since=64.0), Evict)] == ["b"]


def test_a_silent_death_in_the_world_that_still_trains_is_a_loss_of_the_planned_one() -> None:
    """b is drained, and silent before the step is over in which it would have left."""
    machine = trains("a", "b")
    beat(machine, "ab", 1.0)
    machine.step(NodeReported(record("b", ready(adopted=2), draining=True)), 1.0)
    machine.step(WriteWon(3), 1.0)
    assert (machine.generation.world, machine.generation.planned) == (world("a"), True)
    (write,) = only(beat(machine, "a", 5.0, since=1.0), Write)
    assert (write.generation.number, write.generation.world, write.generation.planned) == (4, world("a"), False)


# -- ends and refusals ----------------------------------------------------------------------------------------------


def test_the_job_ends_once_and_as_soon_as_the_store_has_it() -> None:
    machine = trains("a")
    (write,) = only(machine.step(JobEnded(2, "a refused argument"), 1.0), Write)
    assert (write.generation.number, write.handover.closed) == (0, (2, "a refused argument"))
    assert only(machine.step(JobEnded(1, "again"), 1.1), Write) == []
    assert only(machine.step(WriteWon(0), 1.2), End) == [End(2, "a refused argument", ("a",))]
    assert machine.step(JobEnded(1, "again"), 1.3) == machine.step(NodeGone("a", "left"), 1.4) == []


def test_the_end_waits_for_the_store_and_not_for_ever() -> None:
    machine = trains("a")
    machine.step(JobEnded(1, "the same failure twice"), 1.0)
    now, ends = 1.0, []
    while not ends:
        now += 0.6
        failed = WriteFailed(0, retry_at=now + 0.5)
        assert only(machine.advance((NodeHeard("a"), failed), now), Announce | End) == []
        ends = only(machine.step(Tick(), now + 0.5), End)
    assert ends == [End(1, "the same failure twice", ("a",))] and END_WAIT_S <= now + 0.5 - 1.0 < END_WAIT_S + 1.2


def test_the_end_waits_for_a_generation_that_is_being_written() -> None:
    machine = trains("a", "b")
    machine.step(NodeGone("b", "closed its connection"), 1.0)
    assert only(machine.step(JobEnded(1, "a failure"), 1.1), Write) == []
    effects = machine.step(WriteWon(3), 1.2)
    assert only(effects, Announce) == []  # an agent would start workers
    (write,) = only(effects, Write)
    assert write.handover.closed == (1, "a failure") and write.handover.generation.number == 3


def test_who_links_to_a_job_that_is_over_is_told() -> None:
    machine = trains("a")
    machine.step(JobEnded(1, "a failure"), 1.0)
    machine.step(WriteWon(0), 1.1)
    assert machine.step(NodeReported(record("b")), 1.2) == [End(1, "a failure", ("b",))]
    assert machine.step(NodeReported(record("b")), 1.3) == []
    machine.step(NodeGone("b", "closed its connection"), 1.4)
    assert machine.step(NodeReported(record("b")), 1.5) == [End(1, "a failure", ("b",))]


def test_other_arguments_than_the_job_s_are_refused() -> None:
    machine = started("a")
    machine.policy = Policy(min_nodes=1, max_nodes=9)
    machine.step(NodeReported(record("a", ready(constants="x"))), 0.0)
    machine.step(WriteWon(2), 0.0)
    machine.step(NodeReported(record("b")), 0.1)
    effects = machine.step(NodeReported(record("b", ready(constants="y"))), 0.2)
    assert [(e.node, e.exit_code) for e in only(effects, Evict)] == [("b", 2)]
    assert only(effects, Write) == [] and set(machine.nodes) == {"a"}


def test_an_exited_worker_s_record_refuses_nobody() -> None:
    machine = started("a")
    machine.policy = Policy(min_nodes=1, max_nodes=9)
    machine.step(NodeReported(record("a", ready(constants="x"))), 0.0)
    machine.step(WriteWon(2), 0.0)
    machine.step(NodeReported(record("b")), 0.1)
    done = WorkerRecord(slot=0, spawn=1, phase=WorkerPhase.FINISHED)
    machine.step(NodeReported(record("a", done)), 0.2)
    assert only(machine.step(NodeReported(record("b", ready(constants="x"))), 0.3), Evict) == []


@pytest.mark.parametrize("again", [1, 3])
def test_a_report_may_come_twice(again: int) -> None:
    machine = trains("a", "b")
    broken = NodeReported(record("b", ready(adopted=2, broken=2)))
    for _ in range(again):
        assert only(machine.step(broken, 1.0), Write) == []
    (write,) = only(machine.step(Tick(), 1.0 + machine.policy.evidence_wait_s), Write)
    assert (write.generation.number, write.generation.world) == (3, world("a", "b"))


def test_generations_are_numbered_from_one() -> None:
    assert (Generation().number, Coordinator(policy=Policy(min_nodes=1, max_nodes=1)).numbered) == (0, 0)


# -- several things at once -----------------------------------------------------------------------------------------


def test_what_comes_at_once_is_decided_on_once() -> None:
    machine = trains("a", "b", "c")
    gone = (NodeGone("b", "closed its connection"), NodeGone("c", "closed its connection"))
    (write,) = only(machine.advance(gone, 1.0), Write)
    assert write.generation.world == world("a")
    assert write.generation.reason == "node b closed its connection; node c closed its connection"


def test_a_batch_is_taken_in_the_order_in_which_it_came() -> None:
    machine = trains("a", "b")
    again = NodeReported(record("b", ready(adopted=2, member_of=2)))
    effects = machine.advance((NodeGone("b", "closed its connection"), again), 1.0)
    assert [e.node for e in only(effects, Evict)] == ["b"]
    assert [w.generation.world for w in only(effects, Write)] == [world("a")]


def test_a_batch_of_beats_costs_nothing_until_the_timer_is_due() -> None:
    machine = trains("a", "b")
    machine.step(Tick(), 0.2)
    beats = (NodeHeard("a"), NodeHeard("b"))
    assert machine.advance(beats, 0.3) == []
    due = machine.look_at
    assert only(machine.advance(beats, due), WakeAt) != []
    assert set(machine.liveness.heard_at.values()) == {due}


def test_after_a_pause_what_was_sent_meanwhile_counts_before_silence() -> None:
    machine = trains("a", "b")
    beat(machine, "ab", 1.0)
    assert only(machine.advance((NodeHeard("a"), NodeHeard("b"), Tick()), 31.0), Evict) == []


def test_one_timer_is_wanted_however_many_reasons_there_are() -> None:
    machine = trains("a", "b")
    effects = machine.advance((NodeReported(record("b", ready(adopted=2, broken=2))), Tick()), 0.0)
    assert only(effects, WakeAt) == [WakeAt(machine.policy.evidence_wait_s)]


# -- machines that fail again and again, and resizes -----------------------------------------------------------------


def rejoin(machine: Coordinator, name: str, now: float) -> list[Effect]:
    machine.step(NodeReported(record(name, host="h")), now)
    return machine.step(NodeReported(record(name, ready(), group=0, host="h")), now)


def settle(machine: Coordinator, now: float) -> None:
    assert machine.writing is not None
    machine.step(WriteWon(machine.writing.number), now)
    for name in list(machine.nodes):
        number = machine.generation.number
        machine.step(NodeReported(record(name, ready(adopted=number, member_of=number), group=0, host="h")), now)


def test_a_machine_that_fails_again_and_again_is_held_back() -> None:
    machine = trains("a")
    for number in range(3):
        assert only(rejoin(machine, f"b{number}", 1.0), Write) != []
        settle(machine, 1.0)
        machine.step(NodeGone(f"b{number}", "closed its connection"), 1.0)
        settle(machine, 1.0)
    effects = rejoin(machine, "b3", 1.0)
    assert only(effects, Write) == []
    machine.liveness.heard_at = dict.fromkeys(machine.nodes, 3.0)
    assert only(machine.step(Tick(), 2.9), Write) == []
    (write,) = only(machine.step(Tick(), 3.0), Write)
    assert [w.node for w in write.generation.world] == ["a", "b3"]


def test_a_job_below_its_least_waits_for_a_node_that_is_held_back() -> None:
    machine = Coordinator(policy=Policy(min_nodes=1, max_nodes=2, join_timeout_s=1.0))
    for at in range(6):
        machine.flapping.lost("h", float(at) / 10)  # free again at 16.5
    machine.step(NodeReported(record("a", host="h")), 1.0)
    machine.silent_after_s = machine.liveness.silent_after_s = 60.0
    assert only(machine.step(Tick(), 10.0), Write) == []
    (write,) = only(machine.step(Tick(), 16.5), Write)
    assert [w.node for w in write.generation.world] == ["a"]


def test_a_resize_is_a_planned_change_both_ways() -> None:
    machine = trains("a", "b")
    (write,) = only(machine.step(Resized(1), 1.0), Write)
    assert (write.generation.world, write.generation.planned) == (world("a"), True)
    assert write.handover.target == 1
    machine.step(WriteWon(3), 1.0)
    for name, member_of in (("a", 3), ("b", 2)):
        machine.step(NodeReported(record(name, ready(adopted=3, member_of=member_of))), 1.0)
    (write,) = only(machine.step(Resized(2), 2.0), Write)
    assert (write.generation.world, write.generation.planned) == (world("a", "b"), True)


def test_the_successor_of_the_only_member_is_who_was_one_last() -> None:
    """b stands by since a resize; a's worker dies, and the new one has no state."""
    machine = trains("a", "b")
    machine.step(Resized(1), 1.0)
    machine.step(WriteWon(3), 1.0)
    machine.step(NodeReported(record("b", ready(adopted=3, member_of=2))), 1.0)
    machine.step(NodeReported(record("a", ready(adopted=3, member_of=3))), 1.0)
    (write,) = only(machine.step(NodeReported(record("a", ready(spawn=2))), 2.0), Write)
    assert (write.generation.world, write.generation.planned) == (world("b"), False)


def test_who_was_drained_hands_the_newest_state_on_and_not_one_that_stands_by() -> None:
    machine = trains("a", "b")
    machine.step(Resized(1), 1.0)
    machine.step(WriteWon(3), 1.0)
    machine.step(NodeReported(record("b", ready(adopted=3, member_of=2))), 1.0)
    machine.step(NodeReported(record("a", ready(adopted=3, member_of=3))), 1.0)
    leaving = record("a", ready(adopted=3, member_of=3), draining=True)
    (write,) = only(machine.step(NodeReported(leaving), 2.0), Write)
    assert write.generation.world == world("a", "b")  # b has the state of generation 2


def test_a_resize_does_not_shut_out_who_is_not_through_yet() -> None:
    machine = trains("a", "b")
    done = WorkerRecord(slot=0, spawn=1, phase=WorkerPhase.FINISHED, adopted=2, member_of=2)
    machine.step(NodeReported(record("a", done)), 1.0)
    machine.step(Resized(1), 1.1)
    machine.step(NodeReported(record("b", ready(adopted=2, member_of=2, broken=2))), 1.2)
    (write,) = only(machine.step(Tick(), 2.0), Write)
    assert write.generation.world == world("b")
