"""What an agent does about its workers: one event after another, and what comes of the last."""

from __future__ import annotations

from collections.abc import Mapping
from signal import SIGINT, SIGKILL, SIGTERM
from typing import Any

import pytest

from elastic_runtime.core.messages import Adopted, Broken, Closed, Failed, Finished, Ready, Refused
from elastic_runtime.core.node import Limits, Mode
from elastic_runtime.core.restarts import WINDOW_S, Restarts
from elastic_runtime.core.supervision import Supervisor
from elastic_runtime.core.supervision_events import (
    Announced,
    EndJob,
    Exited,
    Interrupted,
    JobClosed,
    Kill,
    Leave,
    OpenStore,
    OthersLeft,
    Publish,
    Said,
    Start,
    StoreOpened,
    Tell,
    Tick,
    WakeAt,
)
from elastic_runtime.core.view import Kind
from elastic_runtime.core.world import Assignment, WorkerPhase

READY = Ready(max_workers=4, constants="c", described="")


def place(rank: int) -> Assignment:
    return Assignment(rank=rank, world_size=3, local_world_size=1, node_rank=0, node_count=3, local_index=0)


def announced(
    number: int, kind: Kind, members: Mapping[tuple[int, int], int], *, planned: bool = True, host: str = "other"
) -> Announced:
    return Announced(
        generation=number,
        kind=kind,
        planned=planned,
        reason="why",
        world_size=3,
        node_count=3,
        store_host="h",
        store_port=1,
        meeting_port=2,
        host_node=host,
        members={key: place(rank) for key, rank in members.items()},
    )


def start(number: int = 1, slots: int = 1, **more: Any) -> Announced:
    return announced(number, Kind.START, {(slot, 0): slot for slot in range(slots)}, **more)


def live(number: int = 2, members: Mapping[tuple[int, int], int] | None = None, **more: Any) -> Announced:
    return announced(number, Kind.LIVE, {(0, 1): 0} if members is None else members, **more)


def agent(*events: Any, slots: int = 1, restarts: int | None = 3, serves_store: bool = False) -> Supervisor:
    limits = Limits(slots=slots, max_restarts=restarts, shutdown_timeout_s=5.0, serves_store=serves_store)
    machine = Supervisor(node="n", address="n", limits=limits, store_port=1)
    machine.published = machine.record()  # it introduces itself with it
    for event in events:
        machine.step(event, 0.0)
    return machine


def brief(effects: list[Any]) -> list[str]:
    """Without what is only said."""
    told = []
    for effect in effects:
        match effect:
            case Start(slot=slot, spawn=spawn):
                told.append(f"start {slot}.{spawn}")
            case Kill(slot, spawn, signal):
                told.append(f"{signal.name} {slot}.{spawn}")
            case Tell(slot, spawn, Closed(exit_code=code)):
                told.append(f"closed {slot}.{spawn} {code}")
            case Tell(slot, spawn, world):
                told.append(f"tell {slot}.{spawn} {world.generation}:{world.rank}{' leave' if world.leave else ''}")
            case EndJob(code) | Leave(code):
                told.append(f"{'end job' if isinstance(effect, EndJob) else 'leave'} {code}")
            case WakeAt(at):
                told.append(f"wake {at:g}")
            case OpenStore():
                told.append("open store")
            case Publish():
                told.append("publish")
    return told


REFUSED = Said(0, 1, Refused(message="m"))
OPEN = (start(), Said(0, 1, READY))
TRAINS = (*OPEN, live(), Said(0, 1, Adopted(generation=2)))
DRAINS = (*TRAINS, Interrupted(SIGTERM))
CASES: dict[str, tuple[tuple[Any, ...], list[str]]] = {
    "a group starts": ((start(),), ["publish", "start 0.1"]),
    "another node's store": ((start(host="n"),), ["publish", "open store", "start 0.1"]),
    "a store is open again": ((start(host="n"), StoreOpened(7)), ["publish"]),
    "not a member yet": ((announced(1, Kind.START, {}),), []),
    "a node joins what runs": ((live(5, {}),), ["publish", "start 0.1"]),
    "an old announcement": ((*TRAINS, live(2)), []),
    "a Session is open": (OPEN, ["publish"]),
    "the live world is told": ((*OPEN, live()), ["tell 0.1 2:0"]),
    "also to whoever stands by": ((*OPEN, live(2, {})), ["tell 0.1 2:-1"]),
    "not to whoever is importing": ((start(), live()), []),
    "to a member as it gets ready": ((start(), live(), Said(0, 1, READY)), ["publish", "tell 0.1 2:0"]),
    "a newcomer waits for its own": ((live(5, {}), Said(0, 1, READY)), ["publish"]),
    "adopted": (TRAINS, ["publish"]),
    "adopted, said again": ((*TRAINS, Said(0, 1, Adopted(generation=2))), []),
    "broken": ((*TRAINS, Said(0, 1, Broken(generation=2, reason=""))), ["publish"]),
    "a worker dies": ((*TRAINS, Exited(0, 1, -9)), ["publish", "start 0.2"]),
    "it ends without finishing": ((*TRAINS, Exited(0, 1, 0)), ["publish", "start 0.2"]),
    "words of the one before": ((*TRAINS, Exited(0, 1, -9), Said(0, 1, READY)), []),
    "death of the one before": ((*TRAINS, Exited(0, 1, -9), Exited(0, 1, -9)), []),
    "it finishes": ((*TRAINS, Said(0, 1, Finished(steps=9)), Exited(0, 1, 0)), []),
    "a refused argument ends a job that starts": ((start(), REFUSED), ["end job 2"]),
    "and only a node of one that runs": (
        (live(5, {}), REFUSED),
        ["publish", "SIGTERM 0.1", "wake 5"],
    ),
    "a plain worker ends": ((start(), Exited(0, 1, 0)), ["publish"]),
    "a plain worker fails": ((start(), Exited(0, 1, 1)), ["publish"]),
    "the group starts anew": ((start(), start(2)), ["publish", "SIGTERM 0.1", "wake 5"]),
    "when the old one is gone": ((start(), start(2), Exited(0, 1, -15)), ["publish", "start 0.2"]),
    "at once if it is": ((start(), Exited(0, 1, 1), start(2)), ["publish", "start 0.2"]),
    "a restart that never came": ((*OPEN, Exited(0, 1, 1), live(2, {})), ["publish", "start 0.2"]),
    "a restart the job's end forestalls": ((start(), REFUSED, Exited(0, 1, 1), start(2)), []),
    "drained": (DRAINS, ["publish", "wake 5"]),
    "drained: it is told to go": ((*DRAINS, live(3, {})), ["tell 0.1 3:-1 leave"]),
    "drained: not if it has to hand over": ((*DRAINS, live(3)), ["tell 0.1 3:0"]),
    "drained: it is gone": ((*DRAINS, live(3, {}), Exited(0, 1, 0)), ["publish", "leave 0"]),
    "drained: it dies": ((*DRAINS, Exited(0, 1, -9)), ["publish", "leave 0"]),
    "drained: a second signal": ((*DRAINS, Interrupted(SIGTERM)), ["SIGTERM 0.1", "wake 5"]),
    "drained while importing": ((start(), live(2, {}), Interrupted(SIGTERM)), ["publish", "SIGTERM 0.1", "wake 5"]),
    "SIGTERM before the Session": ((start(), Interrupted(SIGTERM)), ["publish", "SIGTERM 0.1", "wake 5"]),
    "and then it leaves": ((start(), Interrupted(SIGTERM), Exited(0, 1, -15)), ["publish", "leave 143"]),
    "SIGINT": ((*TRAINS, Interrupted(SIGINT)), ["publish", "SIGINT 0.1", "wake 5"]),
    "a second SIGINT": ((*TRAINS, Interrupted(SIGINT), Interrupted(SIGINT)), ["SIGKILL 0.1"]),
    "the job is done": ((*TRAINS, Said(0, 1, Finished(steps=9)), JobClosed(0, "")), ["publish"]),
    "and its script ends": (
        (*TRAINS, Said(0, 1, Finished(steps=9)), JobClosed(0, ""), Exited(0, 1, 0)),
        ["publish", "leave 0"],
    ),
    "its script fails": (
        (*TRAINS, Said(0, 1, Finished(steps=9)), JobClosed(0, ""), Exited(0, 1, 3)),
        ["publish", "leave 1"],
    ),
    "the job ends badly": ((*TRAINS, JobClosed(1, "why")), ["publish", "closed 0.1 1", "SIGTERM 0.1", "wake 5"]),
    "with nobody to end": ((JobClosed(1, "why"),), ["leave 1"]),
}


@pytest.mark.parametrize("name", CASES)
def test_what_comes_of_the_last_event(name: str) -> None:
    events, expected = CASES[name]
    assert brief(agent(*events[:-1]).step(events[-1], 0.0)) == expected


def test_records_say_what_workers_are() -> None:
    machine = agent(*TRAINS, Said(0, 1, Broken(generation=2, reason="")))
    (worker,) = machine.record().workers
    assert (worker.phase, worker.adopted, worker.broken, worker.max_workers) == (WorkerPhase.READY, 2, 2, 4)
    machine.step(Said(0, 1, Finished(steps=1)), 0.0)
    machine.step(Exited(0, 1, 0), 0.0)
    (worker,) = machine.record().workers
    assert (worker.phase, worker.adopted, worker.spawn, machine.workers) == (WorkerPhase.FINISHED, 2, 1, {})


def test_workers_belong_to_the_group_they_were_started_in() -> None:
    machine = agent(start(), Said(0, 1, READY), start(2))
    assert machine.record().group == 1  # they are being ended: nobody may count on them
    machine.step(Exited(0, 1, -15), 0.0)
    assert machine.record().group == 2


def test_a_group_fails_once_however_many_of_its_workers_end() -> None:
    machine = agent(start(1, 3), slots=3, restarts=1)
    for slot in range(3):
        machine.step(Exited(slot, slot + 1, 1), 0.0)
    assert (machine.restarts.spent, machine.given_up, machine.failed_group) == (1, "", 1)
    assert brief(machine.step(start(2, 3), 0.0)) == ["publish", "start 0.4", "start 1.5", "start 2.6"]
    assert brief(machine.step(Exited(0, 4, 1), 0.0))[:3] == ["publish", "SIGTERM 1.5", "SIGTERM 2.6"]
    assert machine.given_up and machine.mode is Mode.STOPPING


def test_a_spent_budget_takes_the_node_out() -> None:
    machine = agent(*TRAINS, restarts=1)
    machine.step(Exited(0, 1, -9), 1.0)
    assert brief(machine.step(Exited(0, 2, -9), 2.0)) == ["publish", "wake 7", "leave 1"]
    assert "budget of 1" in machine.record().given_up and not machine.record().draining


def test_the_same_failure_at_the_same_step_ends_the_job() -> None:
    machine = agent(*TRAINS, restarts=9)
    for spawn, step in ((1, 5), (2, 6), (3, 5)):
        machine.step(Said(0, spawn, Failed(error="boom", step=step)), 0.0)
        effects = machine.step(Exited(0, spawn, 1), 0.0)
    assert "end job 1" in brief(effects) and machine.restarts.spent == 2
    assert brief(machine.step(live(3, {}), 0.0)) == [], "a world settled meanwhile starts no worker any more"


def test_patience_ends_with_sigkill_once() -> None:
    machine = agent(*DRAINS)
    assert brief(machine.step(Tick(), 4.9)) == []
    assert brief(machine.step(Tick(), 5.0)) == [f"{SIGKILL.name} 0.1"]
    assert brief(machine.step(Tick(), 6.0)) == []


def test_the_store_s_host_serves_on() -> None:
    machine = agent(*DRAINS, live(3, {}), serves_store=True)
    assert brief(machine.step(Exited(0, 1, 0), 0.0)) == ["publish"]
    assert machine.mode is Mode.SERVING
    assert brief(machine.step(start(9, host="n"), 0.0)) == ["open store"]
    assert brief(machine.step(Interrupted(SIGTERM), 0.0)) == ["end job 1"]
    assert brief(machine.step(JobClosed(0, ""), 0.0)) == ["leave 0"]
    alone = agent(*DRAINS, live(3, {}), Exited(0, 1, 0), serves_store=True)
    assert brief(alone.step(OthersLeft(), 0.0)) == ["leave 143"]
    assert brief(agent(*TRAINS, serves_store=True).step(OthersLeft(), 0.0)) == []


def test_a_change_is_noticed_when_its_first_sign_is() -> None:
    machine = agent(*TRAINS, slots=1)
    machine.step(Said(0, 1, Broken(generation=2, reason="")), 7.0)
    (tell,) = [e for e in machine.step(live(3), 8.0) if isinstance(e, Tell)]
    assert tell.message.noticed_at == 8.0
    two = agent(start(1, 2), *(Said(slot, slot + 1, READY) for slot in (0, 1)), slots=2)
    two.step(live(2, {(0, 1): 0, (1, 2): 1}), 1.0)
    two.step(Exited(1, 2, -9), 7.0)
    (tell,) = [e for e in two.step(live(3, planned=False), 8.0) if isinstance(e, Tell)]
    assert tell.message.noticed_at == 7.0


# -- the budget -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slots", "limit", "elastic", "budget"),
    [(2, None, True, 6), (2, None, False, 0), (2, 5, True, 5), (2, 5, False, 5), (2, 0, True, 0)],
)
def test_the_budget(slots: int, limit: int | None, elastic: bool, budget: int) -> None:
    restarts = Restarts(slots=slots, limit=limit)
    assert restarts.budget(elastic=elastic) == budget
    assert [restarts.spend(0.0, elastic=elastic) for _ in range(budget + 1)] == [True] * budget + [False]
    assert restarts.spent == budget


def test_without_a_limit_it_comes_back_with_time() -> None:
    limitless, limited = Restarts(slots=1, limit=None), Restarts(slots=1, limit=1)
    assert [limitless.spend(float(t), elastic=True) for t in range(4)] == [True, True, True, False]
    assert limitless.spend(WINDOW_S + 0.5, elastic=True)
    assert limited.spend(0.0, elastic=True) and not limited.spend(2 * WINDOW_S, elastic=True)
