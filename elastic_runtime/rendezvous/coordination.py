"""The coordinator's service: links in, the store out, `core/coordinator` in between.

Runs on the event loop of the agent that hosts the store. The only blocking call, writing the header, goes through one
thread, so that a slow store never delays the sight of a death.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from elastic_runtime.core.coordinator import Coordinator
from elastic_runtime.core.coordinator_events import (
    Announce,
    Effect,
    End,
    Event,
    Evict,
    JobEnded,
    NodeGone,
    NodeHeard,
    NodeReported,
    Note,
    Tick,
    WakeAt,
    Write,
    WriteFailed,
    WriteWon,
)
from elastic_runtime.core.view import Generation
from elastic_runtime.errors import StoreError
from elastic_runtime.journal import Journal
from elastic_runtime.rendezvous import frames
from elastic_runtime.rendezvous.find import HEADER, new_token
from elastic_runtime.stores.base import Store

WRITE_RETRY_S = 0.5
END = "end of the connection"
TOLD = ("waiting", "evicted", "refused")  # notes that a person should see


class Coordination:
    """Serve membership until `close`. `on_alone` is called whenever no node but `own_node` is linked."""

    def __init__(
        self,
        *,
        machine: Coordinator,
        store: Store,
        run_id: str,
        own_node: str,
        journal: Journal,
        on_alone: Callable[[], None],
        tell: Callable[[str], None],
    ) -> None:
        self._machine = machine
        self._store = store
        self._run_id = run_id
        self._own_node = own_node
        self._journal = journal
        self._on_alone = on_alone
        self._tell = tell  # a line for the person who watches
        self._token = new_token()
        self._links: dict[str, asyncio.StreamWriter] = {}
        self._said_goodbye: set[str] = set()
        self._version = 0
        self._wake: asyncio.TimerHandle | None = None
        self._writer = ThreadPoolExecutor(1, "elastic-store")
        self._server: asyncio.Server | None = None
        self._loop = asyncio.get_running_loop()

    async def open(self, address: str) -> None:
        """Listen and publish the header with `address`: from here on nodes can join."""
        sock = frames.listening_socket(address)
        self._server = await asyncio.start_server(self._serve, sock=sock, limit=frames.LINE_BYTES)
        self._address, self._port = address, sock.getsockname()[1]
        await self._write_header(Generation())

    @property
    def others(self) -> int:
        return len(self._links.keys() - {self._own_node})

    async def close(self) -> None:
        if self._wake is not None:
            self._wake.cancel()
        if self._server is not None:
            self._server.close()
        for link in list(self._links.values()):
            with contextlib.suppress(OSError):
                await asyncio.wait_for(link.drain(), 1.0)
            link.close()
        self._writer.shutdown(wait=True)

    # -- links --------------------------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One node, from its hello to the end of its connection, which is evidence that it is gone."""
        node = ""
        try:
            kind, hello = await _next_frame(reader)
            if kind != "hello" or hello.get("token") != self._token or hello.get("run_id") != self._run_id:
                return
            node = hello["record"]["node"]
            self._links[node] = writer
            self._step(NodeReported(frames.record_from_json(hello["record"])))
            kind, fields = await _next_frame(reader)
            while kind != END and self._links.get(node) is writer:  # an evicted node has no say any more
                self._heard(node, kind, fields)
                kind, fields = await _next_frame(reader)
            self._unlink(node, writer, "left" if node in self._said_goodbye else fields.get("reason", "was evicted"))
        except asyncio.CancelledError:
            pass  # the loop is closing; asyncio prints a trace for a connection that ends so
        finally:
            writer.close()

    def _unlink(self, node: str, writer: asyncio.StreamWriter, reason: str) -> None:
        if self._links.get(node) is writer:
            del self._links[node]
            self._step(NodeGone(node, reason))
            self._tell_if_alone()

    def _tell_if_alone(self) -> None:
        if not self.others:
            self._on_alone()

    def _heard(self, node: str, kind: str, fields: dict[str, object]) -> None:
        match kind:
            case "record":
                self._step(NodeReported(frames.record_from_json(fields["record"])))  # type: ignore[arg-type]
            case "beat":
                self._step(NodeHeard(node))
            case "end":
                self._step(JobEnded(int(str(fields["exit_code"])), str(fields["reason"])))
            case "bye":
                self._said_goodbye.add(node)

    # -- the machine --------------------------------------------------------------------------------------------------

    def _step(self, event: Event) -> None:
        for effect in self._machine.step(event, time.monotonic()):
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Write(generation):
                self._loop.create_task(self._write(generation))
            case Announce(generation, nodes):
                for node, packet in frames.announcements(generation, nodes).items():
                    self._send(node, packet)
            case Evict(node, reason, exit_code):
                self._send(node, frames.line("evicted", reason=reason, exit_code=exit_code))
                link = self._links.pop(node, None)
                if link is not None:
                    link.close()
                    self._tell_if_alone()
            case End(exit_code, reason):
                for node in list(self._links):
                    self._send(node, frames.line("closed", exit_code=exit_code, reason=reason))
            case Note(event, reason):
                if event in TOLD:
                    self._tell(reason)
                generation = self._machine.generation
                self._journal.write(
                    event,
                    generation=generation.number,
                    reason=reason,
                    **({"world": [asdict(w) for w in generation.world]} if event == "settled" else {}),
                )
            case WakeAt(at):
                self._wake_at(at)

    def _send(self, node: str, packet: bytes) -> None:
        link = self._links.get(node)
        if link is not None and not link.is_closing():
            link.write(packet)

    def _wake_at(self, at: float) -> None:
        if self._wake is not None:
            self._wake.cancel()
        delay = max(0.0, at - time.monotonic())
        self._wake = self._loop.call_later(delay, lambda: self._step(Tick()))

    async def _write(self, generation: Generation) -> None:
        try:
            await self._write_header(generation)
        except StoreError:
            self._step(WriteFailed(generation.number, time.monotonic() + WRITE_RETRY_S))
        else:
            self._step(WriteWon(generation.number))

    async def _write_header(self, generation: Generation) -> None:
        """Compare-and-set the header. A lost reply is told from a lost race by the writer that stands there."""
        value = {
            "run_id": self._run_id,
            "address": self._address,
            "port": self._port,
            "token": self._token,
            "generation": generation.number,
            "kind": generation.kind,
            "size": len(generation.world),
            "store": [generation.store_host, generation.store_port],
        }

        def write() -> int:
            won, entry = self._store.swap(HEADER, value, self._version)
            if not won and entry.writer == self._store.writer and entry.value != value:
                won, entry = self._store.swap(HEADER, value, entry.version)  # on top of one whose answer was lost
            if not won and not (entry.writer == self._store.writer and entry.value == value):
                raise StoreError(f"another coordinator ({entry.writer}) wrote the header of {self._run_id!r}")
            return entry.version

        self._version = await self._loop.run_in_executor(self._writer, write)


async def _next_frame(reader: asyncio.StreamReader) -> tuple[str, dict[str, Any]]:
    """The next frame, or (END, {"reason"}) when the connection is over."""
    try:
        text = await reader.readline()
        return frames.parse(text) if text else (END, {"reason": "closed its connection"})
    except OSError as error:
        return END, {"reason": f"lost its connection: {error.strerror or error}"}
    except ValueError as error:
        return END, {"reason": f"sent something that is no frame: {error}"}
