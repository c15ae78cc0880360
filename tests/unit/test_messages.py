"""What agents and workers tell each other arrives as it was said."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from elastic_runtime.core import messages
from elastic_runtime.core.messages import (
    Adopted,
    Broken,
    Closed,
    Down,
    Failed,
    Finished,
    Left,
    Ready,
    Refused,
    Resumed,
    Up,
    World,
    decode,
    encode,
)

SAID: list[Up | Down] = [
    Ready(max_workers=8, constants="abc", described="batch 16"),
    Adopted(generation=3),
    Resumed(
        generation=4,
        rank=1,
        old_world_size=3,
        world_size=2,
        step=17,
        planned=False,
        redone=1,
        source="0,2",
        pause_s=0.125,
        phases={"settle": 0.1, "state": 0.025},
    ),
    Broken(generation=3, reason='“Connection closed by peer”\n{"is": "Closed"}'),
    Refused(message="größer als der Stapel"),
    Failed(error="ValueError: x", step=-1),
    Left(generation=5, step=20),
    Finished(steps=100),
    World(generation=6, rank=-1, world_size=0, planned=True, reason="", leave=True),
    World(
        generation=7,
        rank=2,
        world_size=4,
        planned=False,
        reason="node b is gone",
        local_rank=1,
        local_world_size=2,
        node_rank=1,
        node_count=2,
        store_host="::1",
        master_port=29500,
        meeting_port=40000,
        token="secret",
        noticed_at=1234.5,
    ),
    Closed(exit_code=1, reason="below min"),
]


@pytest.mark.parametrize("message", SAID, ids=lambda message: type(message).__name__)
def test_a_message_arrives_as_it_was_said(message: Up | Down) -> None:
    packet = encode(message)
    assert decode(packet) == message
    assert json.loads(packet) == {"is": type(message).__name__, **asdict(message)}


def test_all_kinds_are_tried() -> None:
    assert {type(message).__name__ for message in SAID} == set(messages._KINDS)


@pytest.mark.parametrize(
    ("packet", "error"),
    [
        (b"", ValueError),
        (b"{", ValueError),
        (b'{"generation": 1}', KeyError),
        (b'{"is": "Popen", "args": "ls"}', KeyError),
        (b'{"is": "Adopted"}', TypeError),
        (b'{"is": "Adopted", "generation": 1, "more": 2}', TypeError),
    ],
)
def test_what_is_no_message_is_refused(packet: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        decode(packet)
