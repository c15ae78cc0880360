"""The coordinator's service: links in, the store out, `core/coordinator` in between.

Runs on an agent's event loop. The only blocking calls, reading and writing the handover, go through one thread, so
that a slow store never delays the sight of a death. What arrives in one turn of the loop is decided on once.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
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
from elastic_runtime.core.explain import NodeState, explain
from elastic_runtime.core.handover import Handover
from elastic_runtime.core.supervision_events import announced_to
from elastic_runtime.errors import StoreError
from elastic_runtime.journal import Journal
from elastic_runtime.rendezvous import control, frames
from elastic_runtime.rendezvous.find import Coordinates
from elastic_runtime.rendezvous.governor import JobGovernor
from elastic_runtime.rendezvous.kept import KeptHandover
from elastic_runtime.stores.base import Store

WRITE_RETRY_S = 0.5
REACH_S = 3.0
BACKLOG = 4096  # all nodes come at once, and one that finds no place tries again after a second, as TCP has it
END = "end of the connection"
TOLD = ("waiting", "evicted", "refused", "abandoned")  # notes that a person should see


class Coordination:
    """Serve membership until `close`: `listen`, then `lead` once the seat is this node's.

    `on_alone` is called whenever no node but the own one is linked, `on_overruled` when another coordinator has written
    to the store.
    """

    def __init__(
        self,
        *,
        machine: Coordinator,
        store: Store,
        run_id: str,
        own_node: str,
        journal: Journal,
        on_alone: Callable[[], None],
        on_overruled: Callable[[], None],
        tell: Callable[[str], None],
    ) -> None:
        self._machine = machine
        self._store = store
        self._run_id = run_id
        self._own_node = own_node
        self._journal = journal
        self._on_alone = on_alone
        self._on_overruled = on_overruled
        self._tell = tell  # a line for the person who watches
        self._links: dict[str, asyncio.StreamWriter] = {}
        self._controls: set[asyncio.StreamWriter] = set()
        self._said_goodbye: set[str] = set()
        self._wake: asyncio.TimerHandle | None = None
        self._writer = ThreadPoolExecutor(1, "elastic-store")
        self._server: asyncio.Server | None = None
        self._loop = asyncio.get_running_loop()
        self._leads = asyncio.Event()
        self._events: list[Event] = []
        self._closed = False

    async def listen(self, address: str, token: str) -> Coordinates:
        """Nodes can connect from here on, and are heard once this coordination leads."""
        sock = frames.listening_socket(address)
        port = sock.getsockname()[1]
        self._coordinates = Coordinates(node=self._own_node, address=address, port=port, token=token)
        self._kept = KeptHandover(self._store, token)
        self._server = await asyncio.start_server(self._serve, sock=sock, limit=frames.LINE_BYTES, backlog=BACKLOG)
        return self._coordinates

    async def lead(
        self, lost: Mapping[str, str], waits_s: Mapping[str, float], why: str, *, may_begin_anew: bool
    ) -> Handover:
        """Overrule whoever led before and go on from what was left, which is returned; see `Coordinator.resume`. A job
        that is over is not led, unless another may begin. Raises StoreError if the store is out; may be repeated."""
        left = await self._loop.run_in_executor(self._writer, self._kept.fence)
        if left.closed is not None and not may_begin_anew:
            return left
        self._governor = JobGovernor(
            machine=self._machine,
            run_id=self._run_id,
            coordinates=self._coordinates,
            why=why,
            journal=self._journal.path,
            ask_to_leave=lambda node: self._send(node, frames.line("drain")),
            step=self._step,
        )
        self._machine.resume(left, lost, waits_s, time.monotonic())
        self._leads.set()
        self._step(Tick())
        return left

    @property
    def leads(self) -> bool:
        return self._leads.is_set()

    @property
    def others(self) -> int:
        return len(self._links.keys() - {self._own_node})

    async def close(self) -> None:
        self._closed = True
        if self._wake is not None:
            self._wake.cancel()
        if self._server is not None:
            self._server.close()
        for link in list(self._links.values()):
            with contextlib.suppress(OSError, asyncio.TimeoutError):
                await asyncio.wait_for(link.drain(), 1.0)
            link.close()
        self._links.clear()
        for visitor in list(self._controls):
            visitor.close()
        await self._loop.run_in_executor(None, self._writer.shutdown)

    # -- links --------------------------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One node, from its hello to the end of its connection, which is evidence that it is gone."""
        node = ""
        try:
            kind, hello = await _next_frame(reader)
            if hello.get("token") != self._coordinates.token or hello.get("run_id") != self._run_id:
                return
            await self._leads.wait()
            if kind == control.HELLO:
                self._controls.add(writer)
                await control.serve(reader, writer, self._governor)
            if kind != "hello" or reader.at_eof():  # who has not waited for so long is not here by what it said then
                return
            record = frames.record_from_json(hello["record"])
            writer.write(frames.line("welcome"))
            if unreachable := await _unreachable(record.address, record.meeting_port, writer):
                writer.write(frames.line("evicted", reason=unreachable, exit_code=2, rejoin=False))
                return
            node = record.node
            self._links[node] = writer
            self._step(NodeReported(record))
            kind, fields = await _next_frame(reader)
            while kind != END and self._links.get(node) is writer:  # an evicted node has no say any more
                self._heard(node, kind, fields)
                kind, fields = await _next_frame(reader)
            self._unlink(node, writer, "left" if node in self._said_goodbye else fields.get("reason", "was evicted"))
        except asyncio.CancelledError:
            pass  # the loop is closing; asyncio prints a trace for a connection that ends so
        finally:
            self._controls.discard(writer)
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
        """Take note; decide at the end of this turn of the loop."""
        if not self._events:
            self._loop.call_soon(self._advance)
        self._events.append(event)

    def _advance(self) -> None:
        events, self._events = self._events, []
        if self._closed:
            return
        if self._own_node in self._links:
            events.append(NodeHeard(self._own_node))  # this process runs, whatever its own beats do
        for effect in self._machine.advance(events, time.monotonic()):
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Write(generation, handover):
                self._loop.create_task(self._write(generation.number, handover))
            case Announce(generation, nodes):
                for node in nodes:
                    self._send(node, frames.announced(announced_to(node, generation)))
            case Evict(node, reason, exit_code, rejoin):
                self._send(node, frames.line("evicted", reason=reason, exit_code=exit_code, rejoin=rejoin))
                link = self._links.pop(node, None)
                if link is not None:
                    link.close()
                    self._tell_if_alone()
            case End(exit_code, reason, nodes):
                for node in nodes:
                    self._send(node, frames.line("closed", exit_code=exit_code, reason=reason))
            case Note(event, reason):
                if event in TOLD:
                    self._tell(reason)
                generation = self._machine.generation
                self._journal.write(
                    event,
                    generation=generation.number,
                    reason=reason,
                    **(self._settled_facts() if event == "settled" else {}),
                )
            case WakeAt(at):
                self._wake_at(at)

    def _settled_facts(self) -> dict[str, Any]:
        now = time.monotonic()
        explained = explain(self._machine.view(now), now)
        return {
            "world": [asdict(worker) for worker in self._machine.generation.world],
            "left_out": {e.node: f"{e.state}: {e.why}" for e in explained if e.state is not NodeState.MEMBER},
        }

    def _send(self, node: str, packet: bytes) -> None:
        link = self._links.get(node)
        if link is not None and not link.is_closing():
            link.write(packet)

    def _wake_at(self, at: float) -> None:
        if self._wake is not None:
            self._wake.cancel()
        delay = max(0.0, at - time.monotonic())
        self._wake = self._loop.call_later(delay, lambda: self._step(Tick()))

    # -- the store ----------------------------------------------------------------------------------------------------

    async def _write(self, number: int, handover: Handover) -> None:
        try:
            won = await self._loop.run_in_executor(self._writer, self._kept.replace, handover)
        except (StoreError, RuntimeError):  # RuntimeError: this coordination was closed meanwhile
            self._step(WriteFailed(number, time.monotonic() + WRITE_RETRY_S))
            return
        if won:
            self._step(WriteWon(number))
        elif not self._closed:
            self._on_overruled()


async def _unreachable(address: str, port: int, link: asyncio.StreamWriter) -> str:
    """Why other nodes cannot reach the address that a node announces; empty if they can."""
    if link.get_extra_info("peername")[0] == address:
        return ""
    try:
        _, probe = await asyncio.wait_for(asyncio.open_connection(address, port), REACH_S)
    except (OSError, TimeoutError) as error:
        why = str(error) or f"no answer within {REACH_S:g} s"
        return f"its address {address!r} cannot be reached from the coordinator ({why}): set --local-addr"
    probe.close()
    return ""


async def _next_frame(reader: asyncio.StreamReader) -> tuple[str, dict[str, Any]]:
    """The next frame, or (END, {"reason"}) when the connection is over."""
    try:
        text = await reader.readline()
        return frames.parse(text) if text else (END, {"reason": "closed its connection"})
    except OSError as error:
        return END, {"reason": f"lost its connection: {error.strerror or error}"}
    except ValueError as error:
        return END, {"reason": f"sent something that is no frame: {error}"}
