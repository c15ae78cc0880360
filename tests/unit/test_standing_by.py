"""Who stands by adopts generations too, and is a member of none: what an agent says of its workers about that."""

from __future__ import annotations

from signal import Signals
from typing import Any

from elastic_runtime.core.messages import Adopted, Ready
from elastic_runtime.core.node import Limits
from elastic_runtime.core.supervision import Supervisor
from elastic_runtime.core.supervision_events import Announced, Exited, Kill, Said, Start, Tick
from elastic_runtime.core.view import Kind
from elastic_runtime.core.world import WorkerId, assignments


def announced(number: int, *members: tuple[int, int], kind: Kind = Kind.LIVE) -> Announced:
    places = assignments(tuple(WorkerId("a", slot, spawn) for slot, spawn in members))
    return Announced(
        generation=number,
        kind=kind,
        planned=True,
        reason="",
        world_size=len(members),
        node_count=1,
        store_host="b",
        store_port=1,
        meeting_port=2,
        host_node="b",
        members={(worker.slot, worker.spawn): place for worker, place in places.items()},
    )


def started() -> Supervisor:
    """One worker, ready in the group of generation 1."""
    machine = Supervisor(node="a", address="a", limits=Limits(slots=1, max_restarts=3), store_port=5)
    machine.step(announced(1, (0, 0), kind=Kind.START), 0.0)
    machine.step(Said(0, 1, Ready(max_workers=9, constants="", described="")), 0.0)
    return machine


def member_of(machine: Supervisor, *events: Any) -> int:
    for event in events:
        machine.step(event, 1.0)
    (worker,) = machine.record().workers
    return worker.member_of


def test_a_worker_is_of_a_world_once_it_has_adopted_it_as_a_member() -> None:
    machine = started()
    assert member_of(machine, announced(2, (0, 1))) == 0
    assert member_of(machine, Said(0, 1, Adopted(generation=2))) == 2
    assert member_of(machine, announced(3), Said(0, 1, Adopted(generation=3))) == 2
    assert machine.record().workers[0].adopted == 3
    assert member_of(machine, announced(4, (0, 1)), Said(0, 1, Adopted(generation=4))) == 4


def test_what_it_adopts_late_was_as_a_member_all_the_same() -> None:
    machine = started()
    assert member_of(machine, announced(2, (0, 1)), announced(3), Said(0, 1, Adopted(generation=2))) == 2
    assert member_of(machine, Said(0, 1, Adopted(generation=3))) == 2


def test_workers_that_are_being_ended_for_a_restart_are_not_counted_on() -> None:
    machine = started()
    assert not machine.record().workers[0].draining
    machine.step(announced(2, (0, 0), kind=Kind.START), 1.0)
    assert machine.record().workers[0].draining


def test_a_group_that_is_ended_and_not_started_again_takes_no_later_workers_with_it() -> None:
    """Left out of the group that is started next, the node waits; its new workers are not those that were to end."""
    machine = started()
    machine.step(announced(2, kind=Kind.START), 1.0)
    machine.step(Exited(0, 1, -15), 1.1)
    assert [e.spawn for e in machine.step(announced(3), 1.2) if isinstance(e, Start)] == [2]
    late = machine.step(Tick(), 1000.0)
    assert not any(isinstance(e, Kill) and e.signal is Signals.SIGKILL for e in late)
