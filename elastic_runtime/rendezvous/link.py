"""A node's side of the connection to the coordinator: records up, announcements down, a beat in between."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from elastic_runtime.core.world import NodeRecord
from elastic_runtime.errors import StoreError
from elastic_runtime.rendezvous import frames
from elastic_runtime.rendezvous.find import Coordinates

BEAT_S = 0.5


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
        hello = frames.line("hello", token=coordinates.token, run_id=run_id, record=frames.record_to_json(record))
        self._writer.write(hello)
        self._tasks = [asyncio.create_task(self._read(reader)), asyncio.create_task(self._beat())]

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
        try:
            while text := await reader.readline():
                self._on_frame(*frames.parse(text))
        except OSError as error:
            reason = str(error.strerror or error)
        self._on_lost(reason)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            self._send(frames.line("beat"))
