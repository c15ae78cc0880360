"""The handover through JSON and back."""

from __future__ import annotations

import json

import pytest

from elastic_runtime.core.handover import Handover
from elastic_runtime.core.view import Generation, Kind
from elastic_runtime.core.world import WorkerId
from elastic_runtime.rendezvous.documents import handover_from_json, handover_to_json


def through_json(handover: Handover) -> Handover:
    return handover_from_json(json.loads(json.dumps(handover_to_json(handover))))


def world(*names: str, spawn: int = 1) -> tuple[WorkerId, ...]:
    return tuple(WorkerId(name, slot, spawn) for name in names for slot in (0, 1))


START = Generation(
    number=3,
    kind=Kind.START,
    world=world("a", "b", spawn=0),
    planned=True,
    reason="start",
    store_host="a",
    store_port=9,
)
LIVE = Generation(number=4, kind=Kind.LIVE, world=world("b", "gone", "a"), reason="b", store_host="b", meeting_port=8)

HANDOVERS = {
    "nothing yet": Handover(),
    "a start": Handover(generation=START, nodes=("a", "b"), used_ports={"a": 9}),
    "worlds with members that are gone": Handover(
        generation=LIVE,
        previous=START,
        trained=Generation(number=2, kind=Kind.LIVE, world=(WorkerId("before", 5, 17), WorkerId("a", 1, 3))),
        seniority={WorkerId("a", 0, 1): 2, WorkerId("b", 1, 1): 4, WorkerId("a", 1, 1): 2},
        used_ports={"a": 9, "gone": 7},
        nodes=("b", "a", "stands by"),
        target=2,
    ),
    "nobody is in the world": Handover(generation=Generation(number=9, kind=Kind.LIVE, planned=True), nodes=("a",)),
    "closed": Handover(generation=LIVE, nodes=(), closed=(2, "a refused argument")),
    "workers of one node apart from each other": Handover(
        generation=Generation(
            number=1, kind=Kind.LIVE, world=(WorkerId("a", 0, 1), WorkerId("b", 0, 1), WorkerId("a", 1, 2))
        ),
        nodes=("c", "b", "a"),
    ),
    "names that JSON escapes": Handover(generation=Generation(number=1, world=world('ä"\\')), nodes=('ä"\\',)),
}


@pytest.mark.parametrize("handover", HANDOVERS.values(), ids=HANDOVERS)
def test_what_is_read_is_what_was_written(handover: Handover) -> None:
    back = through_json(handover)
    assert back == handover
    assert (back.generation.kind, back.closed, list(back.nodes)) == (
        handover.generation.kind,
        handover.closed,
        list(handover.nodes),
    )
    assert through_json(back) == handover


def test_it_holds_each_name_once() -> None:
    names = [f"a-machine-with-a-long-name-{number}" for number in range(100)]
    generation = Generation(number=7, kind=Kind.LIVE, world=world(*names), reason="")
    text = json.dumps(
        handover_to_json(
            Handover(
                generation=generation,
                previous=generation,
                trained=generation,
                seniority=dict.fromkeys(generation.world, 7),
                nodes=tuple(names),
            )
        )
    )
    assert all(text.count(f'"{name}"') == 1 for name in names)
