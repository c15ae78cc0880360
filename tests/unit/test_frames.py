"""What goes over a link: records up, announcements down."""

from __future__ import annotations

import ipaddress

import pytest

from elastic_runtime.core.supervision_events import Announced, announced_to
from elastic_runtime.core.view import Generation, Kind
from elastic_runtime.core.world import NodeRecord, WorkerId, WorkerPhase, WorkerRecord, assignments
from elastic_runtime.rendezvous import frames

RECORD = NodeRecord(
    node="host-1-ab",
    address="fe80::1",
    slots=2,
    store_port=29501,
    meeting_port=4000,
    workers=(
        WorkerRecord(
            slot=0, spawn=3, phase=WorkerPhase.READY, adopted=4, broken=3, max_workers=8, constants="c", draining=True
        ),
        WorkerRecord(slot=1, spawn=2, phase=WorkerPhase.FINISHED),
    ),
    draining=True,
    group=1,
    failed_group=2,
    given_up="the budget is spent",
)
WORLD = (WorkerId("b", 0, 1), WorkerId("b", 1, 2), WorkerId("a", 0, 7))
GENERATION = Generation(
    number=5,
    kind=Kind.LIVE,
    world=WORLD,
    planned=True,
    reason="a joined",
    store_host="b.host",
    store_port=1,
    meeting_port=2,
)


@pytest.mark.parametrize(
    "record", [RECORD, NodeRecord(node="n", address="a", slots=1, store_port=0)], ids=["full", "empty"]
)
def test_a_record_arrives_as_it_was_published(record: NodeRecord) -> None:
    text = frames.line("record", record=frames.record_to_json(record))
    assert text.endswith(b"\n") and text.count(b"\n") == 1
    kind, fields = frames.parse(text)
    found = frames.record_from_json(fields["record"])
    assert (kind, found) == ("record", record)
    assert all(isinstance(worker.phase, WorkerPhase) for worker in found.workers)


def test_each_node_is_announced_its_own_members() -> None:
    found = {node: told(node) for node in ("a", "b", "c")}
    places = assignments(WORLD)
    assert found["a"] == Announced(
        generation=5,
        kind=Kind.LIVE,
        planned=True,
        reason="a joined",
        world_size=3,
        node_count=2,
        store_host="b.host",
        store_port=1,
        meeting_port=2,
        host_node="b",
        members={(0, 7): places[WORLD[2]]},
    )
    assert found["b"].members == {(0, 1): places[WORLD[0]], (1, 2): places[WORLD[1]]}
    assert found["c"].members == {} and (found["c"].world_size, found["c"].node_count) == (3, 2)
    assert all(isinstance(each.kind, Kind) for each in found.values())


def test_a_world_of_nobody_is_announced_too() -> None:
    found = told("a", Generation(number=6, kind=Kind.LIVE))
    assert (found.world_size, found.host_node, found.members) == (0, "", {})


def told(node: str, generation: Generation = GENERATION) -> Announced:
    """What arrives there."""
    kind, fields = frames.parse(frames.announced(announced_to(node, generation)))
    assert kind == "announced"
    return frames.announced_from_json(fields)


@pytest.mark.parametrize(
    "text",
    [b"", b"\n", b"GET / HTTP/1.1\r\n", b"[1]\n", b'{"kind": "record"}\n', b'{"is": 3}\n', b"[" * 100_000 + b"\n"],
)
def test_what_is_no_frame_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):
        frames.parse(text)


def test_loopback_listens_to_loopback_only() -> None:
    with frames.listening_socket("127.0.0.1") as sock:
        assert ipaddress.ip_address(sock.getsockname()[0]).is_loopback and sock.getsockname()[1] > 0
