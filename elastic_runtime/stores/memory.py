"""A store in this process's memory, for simulations and tests. It knows nothing of other processes.

Values pass through JSON as they do in the real stores, so a fake never accepts or shares what a real one would not.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elastic_runtime.errors import StoreError
from elastic_runtime.stores.base import NOTHING, Entry, check_key, encode


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    text: str
    version: int
    writer: str

    def entry(self) -> Entry:
        return Entry(value=json.loads(self.text), version=self.version, writer=self.writer)


class MemoryServer:
    """What the handles share. `stop` is the death of the host: every call on every handle fails from then on."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.records: dict[str, _Record] = {}  # guarded by `changed`, as is `stopped`
        self.stopped = False

    def handle(self, *, writer: str | None = None) -> MemoryStore:
        """A new handle; `writer` defaults to an identity of its own."""
        return MemoryStore(self, writer=writer or uuid.uuid4().hex)

    def stop(self) -> None:
        with self.changed:
            self.stopped = True
            self.changed.notify_all()


class MemoryStore:
    """A handle on a `MemoryServer`. See `base.Store` for the contract."""

    def __init__(self, server: MemoryServer, *, writer: str) -> None:
        self._server = server
        self._writer = writer
        self._closed = False  # guarded by the server's lock

    @property
    def writer(self) -> str:
        return self._writer

    def get(self, key: str) -> Entry | None:
        check_key(key)
        with self._server.changed:
            self._check_usable()
            record = self._server.records.get(key)
        return record.entry() if record else None

    def swap(self, key: str, value: Mapping[str, Any], version: int) -> tuple[bool, Entry]:
        check_key(key)
        text = encode(value)
        with self._server.changed:
            self._check_usable()
            current = self._server.records.get(key)
            won = version == (current.version if current else 0)
            if won:
                current = _Record(text=text, version=version + 1, writer=self._writer)
                self._server.records[key] = current
                self._server.changed.notify_all()
        return won, current.entry() if current else NOTHING

    def wait(self, key: str, newer_than: int, timeout_s: float) -> Entry | None:
        check_key(key)

        def newer_or_void() -> bool:
            record = self._server.records.get(key)
            return self._closed or self._server.stopped or (record is not None and record.version > newer_than)

        with self._server.changed:
            found = self._server.changed.wait_for(newer_or_void, timeout_s)
            self._check_usable()
            record = self._server.records.get(key) if found else None
        return record.entry() if record else None

    def close(self) -> None:
        with self._server.changed:
            self._closed = True
            self._server.changed.notify_all()

    def _check_usable(self) -> None:
        if self._closed:
            raise StoreError("this handle on the store is closed")
        if self._server.stopped:
            raise StoreError("the store's host is gone")
