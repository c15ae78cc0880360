"""A worker's client of the meeting of its generation, as the `Store` that torch's process groups want."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

CONNECT_LIMIT_S = 3.0
FOREVER_S = 10.0 * 365 * 86400


class MeetingStore(dist.Store):
    """Blocking requests over one connection. `cut` frees whoever is blocked in one, from any thread."""

    def __init__(self, host: str, port: int, *, generation: int, token: str) -> None:
        """Raises OSError if nobody listens there."""
        super().__init__()
        self._sock = socket.create_connection((host, port), timeout=CONNECT_LIMIT_S)
        self._sock.settimeout(None)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._lines = self._sock.makefile("rb")
        self._turn = threading.Lock()
        self._say("hello", generation=generation, token=token)

    def arrive(self, world_size: int) -> None:
        """Wait until all members of the generation are here, however long their step in flight takes."""
        if self.add("arrived", 1) == world_size:
            self.set("all", b"1")
        self._wait(["all"], FOREVER_S)

    def set(self, key: str, value: str | bytes) -> None:
        data = value.encode() if isinstance(value, str) else bytes(value)
        self._ask("set", key=key, value=base64.b64encode(data).decode())

    def get(self, key: str) -> bytes:
        return base64.b64decode(self._wait([key], CONNECT_LIMIT_S)[0])

    def add(self, key: str, amount: int) -> int:
        return int(self._ask("add", key=key, amount=amount)["value"])

    def wait(self, keys: Sequence[str], timeout: timedelta = timedelta(seconds=CONNECT_LIMIT_S)) -> None:
        self._wait(list(keys), timeout.total_seconds())

    def cut(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.cut()
        self._lines.close()
        self._sock.close()

    def _wait(self, keys: list[str], timeout_s: float) -> list[str]:
        values: list[str] | None = self._ask("wait", keys=keys, timeout_s=timeout_s)["values"]
        if values is None:
            raise TimeoutError(f"the other workers did not set {keys} within {timeout_s:g} s")
        return values

    def _ask(self, kind: str, **fields: Any) -> dict[str, Any]:
        with self._turn:
            self._say(kind, **fields)
            text = self._lines.readline()
        if not text:
            raise ConnectionError("the meeting of this generation is over")
        answer: dict[str, Any] = json.loads(text)
        return answer

    def _say(self, kind: str, **fields: Any) -> None:
        self._sock.sendall(json.dumps({"is": kind, **fields}).encode() + b"\n")
