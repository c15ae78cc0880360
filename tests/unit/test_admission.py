"""Who may take part: one row a case, from a record and what is known to who is turned away."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_runtime.core.admission import turn_away
from elastic_runtime.core.view import Generation, Kind
from elastic_runtime.core.world import NodeRecord, WorkerId, WorkerPhase, WorkerRecord


def worker(phase: WorkerPhase = WorkerPhase.READY, **more: Any) -> WorkerRecord:
    return WorkerRecord(slot=0, spawn=1, phase=phase, **{"constants": "x", **more})


def node(name: str, *workers: WorkerRecord, **more: Any) -> NodeRecord:
    return NodeRecord(node=name, address=name, slots=1, store_port=1, workers=workers, **more)


HERE = {"a": node("a", worker(adopted=3, member_of=3), group=1)}
LIVE = Generation(number=3, kind=Kind.LIVE, world=(WorkerId("a", 0, 1),))

TURNED_AWAY = {
    "a newcomer": (node("b"), {}, None),
    "a newcomer whose worker is ready": (node("b", worker()), {}, None),
    "its worker trained, and it is expected": (node("b", worker(member_of=2), group=1), {"expected": True}, None),
    "its worker trained": (node("b", worker(member_of=2)), {}, "rejoins"),
    "its worker only stood by": (node("b", worker(adopted=3)), {}, None),
    "its group was started": (node("b", worker(), group=1), {}, "rejoins"),
    "its group was started, and it is expected": (node("b", worker(), group=1), {"expected": True}, None),
    "its store may have been used": (node("b"), {"stale": True}, "rejoins"),
    "other arguments": (node("b", worker(constants="y")), {}, "ends with 2"),
    "other arguments, and it is expected": (node("b", worker(constants="y")), {"expected": True}, "ends with 2"),
    "arguments are not known yet": (node("b", worker(WorkerPhase.STARTING, constants="")), {}, None),
    "through, and said nothing more": (node("b", worker(WorkerPhase.FINISHED, constants="")), {}, None),
    "another launcher": (node("b", front="torchrun"), {}, "ends with 2"),
    "another launcher before all": (node("b", worker(member_of=2), front="torchrun"), {}, "ends with 2"),
}


@pytest.mark.parametrize(("record", "known", "what"), TURNED_AWAY.values(), ids=TURNED_AWAY)
def test_who_is_turned_away(record: NodeRecord, known: dict[str, bool], what: str | None) -> None:
    evicted = turn_away(record, HERE, [LIVE], **{"expected": False, **known})
    if what is None:
        assert evicted is None
    else:
        assert evicted is not None and evicted.node == "b" and evicted.reason
        assert (f"ends with {evicted.exit_code}" if not evicted.rejoin else "rejoins") == what


def test_the_first_of_all_is_let_in() -> None:
    assert turn_away(node("a", worker(), front="torchrun"), {}, [], expected=False) is None
