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
CONNECT_S = 1.0  # a machine that is there answers in milliseconds
WELCOME_S = 10.0  # a coordinator that has just begun reads the store first


class Refused(StoreError):
    """Evidence: no process listens there, or not the coordinator whose token this is."""


class Link:
    """`on_frame(kind, fields)` for each frame; `lost` is done, with a reason, when the connection is over."""

    def __init__(self, on_frame: Callable[[str, dict[str, Any]], None]) -> None:
        self._on_frame = on_frame
        self._tasks: list[asyncio.Task[None]] = []
        self._writer: asyncio.StreamWriter | None = None
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def open(self, to: Coordinates, run_id: str, record: NodeRecord, *, silent_after_s: float) -> None:
        """Connect, introduce this node, and wait to be welcomed.

        Raises Refused if nobody listens there, StoreError if nobody answers. `silent_after_s`: how long the other
        machine may leave beats unacknowledged before the connection is lost.
        """
        where = f"{to.address}:{to.port}"
        try:
            connecting = asyncio.open_connection(to.address, to.port, limit=frames.LINE_BYTES)
            reader, writer = await asyncio.wait_for(connecting, CONNECT_S)
        except (ConnectionRefusedError, ConnectionResetError) as error:  # reset: its process ended just now
            raise Refused(f"the coordinator at {where} refuses connections") from error
        except (OSError, TimeoutError) as error:
            why = str(error) or f"no connection within {CONNECT_S:g} s"
            raise StoreError(f"the coordinator at {where} does not answer: {why}") from error
        self._writer = writer
        if not writer.is_closing():  # or it was reset within the moment, and what follows finds that out
            # The beats go one way: their being acknowledged is what shows that the other host is there.
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(silent_after_s * 1000))
        self._send(frames.line("hello", token=to.token, run_id=run_id, record=frames.record_to_json(record)))
        try:
            async with asyncio.timeout(WELCOME_S):
                first = await reader.readline()
        except TimeoutError as error:
            writer.close()
            raise StoreError(f"the coordinator at {where} accepts connections and does not answer") from error
        except OSError:
            first = b""
        if not first:
            writer.close()
            raise Refused(f"{where} closes the connection: the coordinator is gone from there")
        self._beating = asyncio.create_task(self._beat())
        self._tasks = [self._beating, asyncio.create_task(self._read(reader, first))]
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

    async def _read(self, reader: asyncio.StreamReader, text: bytes) -> None:
        reason = "it closed the connection"
        while text:
            self._on_frame(*frames.parse(text))
            try:
                text = await reader.readline()
            except OSError as error:
                reason, text = str(error.strerror or error), b""
        self._beating.cancel()
        if self._writer is not None:
            self._writer.close()
        if not self.lost.done():
            self.lost.set_result(reason)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            self._send(frames.line("beat"))


def _report_bug(task: asyncio.Task[None]) -> None:
    """A task that nobody awaits must not die unseen."""
    if not task.cancelled() and (error := task.exception()) is not None:
        task.get_loop().call_exception_handler({"message": "the link to the coordinator", "exception": error})
