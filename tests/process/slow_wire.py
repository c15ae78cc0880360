"""A wire on which everything takes its time: a proxy that hands on each piece of data after a delay."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from types import TracebackType
from typing import Any

Address = tuple[str, int]


class SlowWire:
    """Listens on a port of its own for one place behind it. `delay_s`: each way."""

    def __init__(self, to: Address, delay_s: float) -> None:
        self._to, self._delay_s = to, delay_s
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        serve = asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(serve, self._loop).result(10.0)
        self.address: Address = self._server.sockets[0].getsockname()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            far_reader, far_writer = await asyncio.open_connection(*self._to)
            await asyncio.gather(self._carry(reader, far_writer), self._carry(far_reader, writer))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """In order, and no piece waits for the one before it."""
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                self._loop.call_later(self._delay_s, writer.write, data)
        self._loop.call_later(self._delay_s, writer.close)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10.0)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
