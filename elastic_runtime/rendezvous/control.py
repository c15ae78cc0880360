"""Questions and orders to a running job: what a person asks the coordinator, and its answers.

A control connection comes to the coordinator's port and is told from a link by its first line, which carries the job's
token. Requests and answers are frames, one request at a time. What a request means is the `Governor`'s to say; only
the journal is read here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from elastic_runtime.errors import ConfigurationError, StoreError
from elastic_runtime.rendezvous import frames
from elastic_runtime.rendezvous.tail import Tail

HELLO = "control"
MOST_EVENTS = 10_000
REQUEST_BYTES = 16 << 10
ANSWER_BYTES = 64 << 20  # a status of many thousand nodes
IDLE_S = 60.0  # how long the other side may say nothing, or take nothing
LOOK_EVERY_S = 0.25  # how soon a new line of the journal is seen


class Governor(Protocol):
    """Who answers. An order returns a sentence that says what will happen; it does not wait for that.

    Raises ConfigurationError, with what to do, for an order that cannot be carried out. Nothing here blocks.
    """

    @property
    def journal(self) -> Path:
        """The coordinator's own journal."""

    def status(self) -> dict[str, Any]:
        """The job as the coordinator sees it now, fit for JSON."""

    def drain(self, node: str) -> str:
        """Ask the node to leave. A unique beginning of its name will do."""

    def resize(self, nodes: int) -> str:
        """Let at most so many nodes take part."""


# -- the coordinator's side -------------------------------------------------------------------------------------------


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, governor: Governor) -> None:
    """Answer the requests of a control connection, whose hello was read and checked, until it ends or is idle.

    The connection is the caller's to close.
    """
    try:
        while (text := await _request(reader)) is not None:
            kind, fields = _understood(text)
            if kind == "events":
                await _serve_events(fields, reader, writer, governor.journal)
            else:
                writer.write(_answer(kind, fields, governor))
            await _taken(writer)
    except OSError:
        return  # it is gone, or has said or taken nothing for too long


async def _request(reader: asyncio.StreamReader) -> bytes | None:
    """The next line; b"" for one that is too long, None at the end."""
    try:
        async with asyncio.timeout(IDLE_S):
            text = await reader.readline()
    except ValueError:  # asyncio's word for a line over the reader's own limit
        return b""
    if not text.endswith(b"\n"):
        return None
    return text if len(text) <= REQUEST_BYTES else b""


def _understood(text: bytes) -> tuple[str, dict[str, Any]]:
    try:
        return frames.parse(text)
    except (ValueError, RecursionError):
        return "", {}


def _answer(kind: str, fields: Mapping[str, Any], governor: Governor) -> bytes:
    try:
        match kind:
            case "status":
                return frames.line("answer", status=governor.status())
            case "drain":
                return frames.line("answer", text=governor.drain(_name(fields.get("node"))))
            case "resize":
                return frames.line("answer", text=governor.resize(_count("nodes", fields.get("nodes"), least=1)))
    except ConfigurationError as error:
        return _refusal(str(error))
    known = "status, drain, resize and events"
    return _refusal(f"{kind!r} is no request: there are {known}" if kind else f"this is no request of {known}")


def _refusal(text: str) -> bytes:
    return frames.line("refused", text=text)


def _name(node: object) -> str:
    if not isinstance(node, str) or not node.strip():
        raise ConfigurationError("name the node to drain: `elasticctl status` lists them")
    return node.strip()


def _count(what: str, number: object, *, least: int, most: int | None = None) -> int:
    if type(number) is not int or number < least or (most is not None and number > most):
        limits = f"from {least} to {most}" if most is not None else f"of at least {least}"
        raise ConfigurationError(f"{what} is a whole number {limits}, not {number!r}")
    return number


async def _serve_events(
    fields: Mapping[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: Path
) -> None:
    try:
        last = _count("last", fields.get("last"), least=0, most=MOST_EVENTS)
    except ConfigurationError as error:
        writer.write(_refusal(str(error)))
        return
    tail = Tail(path)
    tail.start_before_end(last)
    await _send(tail, writer)
    if fields.get("follow") is not True:
        writer.write(frames.line("end"))
        return
    gone = asyncio.ensure_future(reader.read(1))  # nothing more is to be said, so whatever comes is the end
    try:
        while not gone.done():
            await asyncio.wait({gone}, timeout=LOOK_EVERY_S)
            await _send(tail, writer)
    except asyncio.CancelledError:
        await _send(tail, writer, wait=False)  # this process ends, and these lines say why
        raise
    finally:
        gone.cancel()
    raise ConnectionResetError


async def _send(tail: Tail, writer: asyncio.StreamWriter, *, wait: bool = True) -> None:
    """All that is new, a block at a time. Without `wait` what the connection does not take at once may be lost."""
    while lines := tail.read():
        for line in lines:
            with contextlib.suppress(ValueError, AttributeError):  # not a line of the journal's
                writer.write(_event(json.loads(line)))
        if wait:
            await _taken(writer)


def _event(entry: dict[str, Any]) -> bytes:
    return frames.line("event", **{name: value for name, value in entry.items() if name != "is"})


async def _taken(writer: asyncio.StreamWriter) -> None:
    async with asyncio.timeout(IDLE_S):
        await writer.drain()


# -- the other side ---------------------------------------------------------------------------------------------------


class Control:
    """A control connection; made by `connect`. One request at a time, from one thread.

    Every method raises ConfigurationError for what the job refuses, StoreError if it does not answer within
    `timeout_s` or ends the connection. An order whose answer did not come may have been carried out.
    """

    def __init__(self, sock: socket.socket, where: str, timeout_s: float) -> None:
        self._socket, self._where, self._timeout_s = sock, where, timeout_s
        self._received = b""

    @classmethod
    def connect(cls, address: str, port: int, token: str, run_id: str, timeout_s: float) -> Control:
        where = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        try:
            sock = socket.create_connection((address, port), timeout=timeout_s)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a followed stream may be silent for long
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
            sock.sendall(frames.line(HELLO, token=token, run_id=run_id))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise StoreError(f"the job's coordinator at {where} does not answer: {reason}") from error
        return cls(sock, where, timeout_s)

    def status(self) -> dict[str, Any]:
        """The job as its coordinator sees it."""
        status = self._ask("status").get("status")
        if not isinstance(status, dict):
            raise self._strange("a status")
        return status

    def drain(self, node: str) -> str:
        """Ask a node to leave. Returns what will happen."""
        return str(self._ask("drain", node=node).get("text", ""))

    def resize(self, nodes: int) -> str:
        """Let at most so many nodes take part. Returns what will happen."""
        return str(self._ask("resize", nodes=nodes).get("text", ""))

    def events(self, *, last: int, follow: bool = False) -> Iterator[dict[str, Any]]:
        """The last lines of the coordinator's journal, oldest first, as far as it has them. With `follow` also those to
        come, until the connection ends; it is of no further use then, nor if the iterator is left before its end."""
        self._send("events", last=last, follow=follow)
        kind, fields = self._receive(None if follow else self._timeout_s)
        while kind == "event":
            yield fields
            try:
                kind, fields = self._receive(None if follow else self._timeout_s)
            except StoreError:
                if follow:
                    return
                raise

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Control:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _ask(self, kind: str, **fields: Any) -> dict[str, Any]:
        self._send(kind, **fields)
        answer, found = self._receive(self._timeout_s)
        if answer != "answer":
            raise self._strange("an answer")
        return found

    def _send(self, kind: str, **fields: Any) -> None:
        try:
            self._socket.settimeout(self._timeout_s)
            self._socket.sendall(frames.line(kind, **fields))
        except OSError as error:
            raise StoreError(f"the connection to {self._where} is lost: {error.strerror or error}") from error

    def _receive(self, limit_s: float | None) -> tuple[str, dict[str, Any]]:
        """The next frame; a refusal is raised."""
        deadline = None if limit_s is None else time.monotonic() + limit_s
        pieces, size = [self._received], len(self._received)
        while b"\n" not in pieces[-1]:
            try:
                self._socket.settimeout(None if deadline is None else max(0.001, deadline - time.monotonic()))
                piece = self._socket.recv(1 << 16)
            except OSError as error:
                raise StoreError(f"no answer from {self._where}: {error.strerror or error}") from error
            if not piece:
                raise StoreError(f"{self._where} ended the connection: it is not, or no longer, this job's coordinator")
            pieces.append(piece)
            size += len(piece)
            if size > ANSWER_BYTES:
                raise self._strange("a line of a bearable length")
        text, _, self._received = b"".join(pieces).partition(b"\n")
        try:
            kind, fields = frames.parse(text)
        except (ValueError, RecursionError):
            raise self._strange("a frame") from None
        if kind == "refused":
            raise ConfigurationError(str(fields.get("text", "refused")))
        return kind, fields

    def _strange(self, wanted: str) -> StoreError:
        return StoreError(f"{self._where} answered, but not with {wanted}: something else listens there")
