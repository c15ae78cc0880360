"""A node's side of the connection to the coordinator: records up, announcements down, a beat in between."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any

from elastic_runtime.core.world import NodeRecord
from elastic_runtime.errors import StoreError
from elastic_runtime.rendezvous import frames
from elastic_runtime.rendezvous.find import Coordinates

BEAT_S = 0.5
HOST_SILENT_AFTER_S = 10.0  # without it nothing can be settled, so it is given longer than others


class Link:
    """`on_frame(kind, fields)` for each frame, `on_lost(reason)` once when the coordinator is gone."""

    def __init__(self, on_frame: Callable[[str, dict[str, Any]], None], on_lost: Callable[[str], None]) -> None:
        self._on_frame, self._on_lost = on_frame, on_lost
        self._tasks: list[asyncio.Task[None]] = []
        self._writer: asyncio.StreamWriter | None = None

    async def open(self, coordinates: Coordinates, run_id: str, record: NodeRecord) -> None:
        """Connect and introduce this node. Raises StoreError if nobody answers there."""
        try:
            reader, self._writer = await asyncio.open_connection(
                coordinates.address, coordinates.port, limit=frames.LINE_BYTES
            )
        except OSError as error:
            where = f"{coordinates.address}:{coordinates.port}"
            raise StoreError(f"the coordinator at {where} does not answer: {error.strerror or error}") from error
        # The beats go one way: their being acknowledged is what shows that the other host is there.
        sock = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(HOST_SILENT_AFTER_S * 1000))
        hello = frames.line("hello", token=coordinates.token, run_id=run_id, record=frames.record_to_json(record))
        self._writer.write(hello)
        self._tasks = [asyncio.create_task(self._read(reader)), asyncio.create_task(self._beat())]
        for task in self._tasks:
            task.add_done_callback(_report_bug)

    def publish(self, record: NodeRecord) -> None:
        self._send(frames.line("record", record=frames.record_to_json(record)))

    def end_job(self, exit_code: int, reason: str) -> None:
        self._send(frames.line("end", exit_code=exit_code, reason=reason))

    async def close(self) -> None:
        """Say goodbye, so that the end of the connection is not taken for a death."""
        self._send(frames.line("bye"))
        for task in self._tasks:
            task.cancel()
        if self._writer is not None:
            with contextlib.suppress(OSError, asyncio.TimeoutError):
                await asyncio.wait_for(self._writer.drain(), 1.0)
            self._writer.close()

    def _send(self, packet: bytes) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(packet)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        reason = "it closed the connection"
        while True:
            try:
                text = await reader.readline()
            except OSError as error:
                reason = str(error.strerror or error)
                break
            if not text:
                break
            self._on_frame(*frames.parse(text))
        self._on_lost(reason)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            self._send(frames.line("beat"))


def _report_bug(task: asyncio.Task[None]) -> None:
    """A task that nobody awaits must not die unseen."""
    if not task.cancelled() and (error := task.exception()) is not None:
        task.get_loop().call_exception_handler({"message": "the link to the coordinator", "exception": error})
