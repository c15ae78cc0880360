"""The start of a group: all of its nodes say that they are there before any of them goes on, or none goes on.

torch's agents exchange their ranks through the group's store right after, and nothing would free them there if one of
them never came. So the first word under OUTCOME counts: the first node says that all have come, or any node that has
heard of a newer group calls this one off, and all of them read the same. One store a group, so keys need no number.
"""

from __future__ import annotations

from elastic_runtime.errors import StoreError
from elastic_runtime.stores.tcp_client import Connection, dial

OUTCOME = "elastic/roll_call"
GO, OFF = "go", "off"
CALL_LIMIT_S = 5.0
WAIT_SLICE_S = 2.0  # well within the limit of a call


class RollCall:
    """One node's try. Its methods block and raise StoreError; `cut`, from any thread, ends `answer` for good."""

    def __init__(self, host: str, port: int, rank: int, count: int) -> None:
        self._host, self._port = host, port
        self._rank, self._count = rank, count
        self._connection: Connection | None = None
        self._is_cut = False

    def answer(self) -> bool:
        """Say that this node is there and wait for the outcome: whether the group begins."""
        self._connection = connection = dial(self._host, self._port, limit_s=CALL_LIMIT_S)
        try:
            if self._is_cut:
                raise StoreError("the roll call was broken off")
            connection.set(_key(self._rank), "here")
            if self._rank:
                return _await(connection, OUTCOME) == GO.encode()
            for other in range(1, self._count):
                _await(connection, _key(other))
            return _decide(connection, GO)
        finally:
            connection.cut()

    def call_off(self) -> bool:
        """This node goes on without the group, unless it has begun: True then, and it has to take its place."""
        connection = dial(self._host, self._port, limit_s=CALL_LIMIT_S)
        try:
            return _decide(connection, OFF)
        finally:
            connection.cut()

    def cut(self) -> None:
        self._is_cut = True
        if self._connection is not None:
            self._connection.cut()


def _key(rank: int) -> str:
    return f"elastic/here/{rank}"


def _await(connection: Connection, key: str) -> bytes:
    while (text := connection.read(key)) is None:
        connection.wait_for(key, WAIT_SLICE_S)
    return text


def _decide(connection: Connection, word: str) -> bool:
    """Whether the group begins, now that this word was said too: the first one counts."""
    return connection.compare_set(OUTCOME, "", word) == GO.encode()
