"""The embedded store: torch's TCPStore, served by one of the agents. It lives and dies with that agent.

It speaks in the clear and listens on every interface, so it belongs on a private network. It knows nothing of
membership; what it adds to TCPStore is the contract of `base.Store`: versions, a win that is told from an equal value,
limits on every call, waits that hold up nobody.

A key's entry is one JSON text with version, writer and a nonce, replaced by `compare_set`. Beside it stands a marker
for each recent version, on which waiters block inside the server.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from tenacity import (
    Retrying,
    retry_if_exception_type,
    retry_if_not_exception_type,
    stop_after_delay,
    wait_random_exponential,
)
from torch.distributed import DistError, TCPStore

from elastic_runtime.errors import ConfigurationError, StoreError
from elastic_runtime.stores.base import NOTHING, Entry, check_key, encode
from elastic_runtime.stores.resolver import without_dns
from elastic_runtime.stores.tcp_client import Connection, Unanswered, dial, quiet_torch_log

__all__ = ["TcpStore", "connect", "host", "quiet_torch_log"]

# A winner may die between its swap and its marker; a waiter then learns of it by looking again after this long.
# Shorter: sooner in that rare case. Longer: fewer idle requests to the host.
WAIT_SLICE_S = 5.0

# A waiter reads the entry, then waits for the next version's marker. Markers stay for this many further versions, so
# that being overtaken between the two does not cost it a slice.
MARKERS_KEPT = 16


class TcpStore:
    """A handle on an embedded store; made by `host` and `connect`. See `base.Store` for the contract.

    Each call borrows a connection of its own, because torch's client serves one call at a time and a wait is a call.
    """

    def __init__(
        self, first: Connection, *, host: str, port: int, writer: str, call_limit_s: float, server: TCPStore | None
    ) -> None:
        self._host = host
        self._port = port
        self._writer = writer
        self._call_limit_s = call_limit_s
        self._server = server
        self._lock = threading.Lock()
        self._idle = [first]  # guarded by the lock, as are the next two
        self._borrowed: set[Connection] = set()
        self._closed = False

    @property
    def port(self) -> int:
        return self._port

    @property
    def writer(self) -> str:
        return self._writer

    def get(self, key: str) -> Entry | None:
        check_key(key)
        with self._connection() as connection:
            text = connection.read(_entry_key(key))
        return None if text is None else _entry(key, text)

    def swap(self, key: str, value: Mapping[str, Any], version: int) -> tuple[bool, Entry]:
        check_key(key)
        new = _text(encode(value), version=version + 1, writer=self._writer)
        with self._connection() as connection:
            expected = connection.read(_entry_key(key))
            current = NOTHING if expected is None else _entry(key, expected)
            if current.version != version:
                return False, current
            standing = connection.compare_set(_entry_key(key), (expected or b"").decode(), new)
        if standing != new.encode():
            return False, _entry(key, standing)
        self._mark(key, version + 1)
        return True, _entry(key, standing)

    def wait(self, key: str, newer_than: int, timeout_s: float) -> Entry | None:
        check_key(key)
        deadline = time.monotonic() + timeout_s
        with self._connection() as connection:
            while True:
                text = connection.read(_entry_key(key))
                entry = None if text is None else _entry(key, text)
                if entry is not None and entry.version > newer_than:
                    return entry
                remaining_s = deadline - time.monotonic()
                if remaining_s <= 0:
                    return None
                connection.wait_for(_marker_key(key, newer_than + 1), min(remaining_s, WAIT_SLICE_S))

    def close(self) -> None:
        with self._lock:
            self._closed = True
            connections = [*self._idle, *self._borrowed]
            self._idle = []
            server, self._server = self._server, None
        for connection in connections:
            connection.cut()
        del server  # the last reference: torch's server ends with it

    def _mark(self, key: str, version: int) -> None:
        try:
            with self._connection() as connection:
                connection.set(_marker_key(key, version), "")
                if version > MARKERS_KEPT:
                    connection.delete(_marker_key(key, version - MARKERS_KEPT))
        except StoreError:
            pass  # the swap is won all the same, and waiters look again by themselves

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        """A connection for one call. One that saw an error is thrown away, and the idle ones, as old as it, with it."""
        connection = self._borrow()
        try:
            yield connection
        except BaseException as error:
            with self._lock:
                self._borrowed.discard(connection)
                stale, self._idle = self._idle, []
                closed = self._closed
            for each in (connection, *stale):
                each.cut()
            if closed and isinstance(error, StoreError):
                raise StoreError("this handle on the store is closed") from error
            raise
        with self._lock:
            self._borrowed.discard(connection)
            if not self._closed:
                self._idle.append(connection)

    def _borrow(self) -> Connection:
        with self._lock:
            self._check_open()
            if self._idle:
                connection = self._idle.pop()
                self._borrowed.add(connection)
                return connection
        connection = dial(self._host, self._port, limit_s=self._call_limit_s)
        with self._lock:
            if self._closed:
                connection.cut()
            self._check_open()
            self._borrowed.add(connection)
        return connection

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("this handle on the store is closed")


def host(host: str, port: int, *, timeout_s: float, writer: str | None = None, call_limit_s: float = 5.0) -> TcpStore:
    """Serve a store on this machine and return a handle on it; port 0 takes any free one (`.port` tells).

    `host` is a name or address by which this machine reaches itself. `timeout_s`: for the start; `call_limit_s`: after
    how much silence a call fails. Raises ConfigurationError if the port cannot be had.
    """
    try:
        limit = timedelta(seconds=timeout_s)
        with without_dns():
            server = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, timeout=limit)
    except DistError as error:
        why = "it is in use" if "EADDRINUSE" in str(error) else str(error).partition("\n")[0]
        raise ConfigurationError(f"cannot serve a store on port {port} of this machine: {why}") from error
    return _handle(host, server.port, timeout_s=timeout_s, writer=writer, call_limit_s=call_limit_s, server=server)


def connect(
    host: str, port: int, *, timeout_s: float, writer: str | None = None, call_limit_s: float = 5.0
) -> TcpStore:
    """Connect to the store at host:port, which may be up to `timeout_s` seconds late.

    `call_limit_s`: after how much silence a call fails. Raises StoreError if nobody serves there in time, and
    ConfigurationError if the port is held by something that does not answer as a store.
    """
    return _handle(host, port, timeout_s=timeout_s, writer=writer, call_limit_s=call_limit_s, server=None)


def _handle(
    host: str, port: int, *, timeout_s: float, writer: str | None, call_limit_s: float, server: TCPStore | None
) -> TcpStore:
    late = Retrying(
        retry=retry_if_exception_type(StoreError) & retry_if_not_exception_type(Unanswered),
        wait=wait_random_exponential(multiplier=0.05, max=1.0),
        stop=stop_after_delay(timeout_s),
        reraise=True,
    )
    try:
        first = late(dial, host, port, limit_s=call_limit_s)
    except Unanswered as error:
        raise ConfigurationError(f"{error}: the port is held by something else, name another one") from error
    return TcpStore(
        first, host=host, port=port, writer=writer or uuid.uuid4().hex, call_limit_s=call_limit_s, server=server
    )


def _entry_key(key: str) -> str:
    return f"entry/{key}"


def _marker_key(key: str, version: int) -> str:
    return f"marker/{version}/{key}"


def _text(value: str, *, version: int, writer: str) -> str:
    # The nonce makes every attempt's text its own, so that finding one's text in the store is to have won.
    head = json.dumps({"version": version, "writer": writer, "nonce": secrets.token_hex(8)}, ensure_ascii=False)
    return f'{head[:-1]}, "value": {value}}}'


def _entry(key: str, text: bytes) -> Entry:
    try:
        match json.loads(text):
            case {"value": dict(value), "version": int(version), "writer": str(writer)}:
                return Entry(value=value, version=version, writer=writer)
    except ValueError:
        pass
    raise StoreError(f"what the store holds under {key!r} was not written by this program")
