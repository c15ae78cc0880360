"""Calls to whichever member of etcd answers. One connection at a time; the member that answered last is kept.

A member that refuses, or is silent for its share of a call's time, is left for the next one in the list.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tenacity import Retrying, retry_if_exception_type, sleep_using_event, wait_random_exponential

from elastic_runtime.errors import StoreError
from elastic_runtime.stores.etcd_connection import LEAST_LIMIT_S, Address, Connection, Refused, Retryable
from elastic_runtime.stores.security import Security

_BACKOFF = wait_random_exponential(multiplier=0.02, max=0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """`retried`: an attempt before this one failed, and may have been carried out all the same."""

    response: Any
    connection: Connection
    retried: bool


class Members:
    """The endpoints of one etcd. See `Connection` for what is called on them."""

    def __init__(self, rpc: Any, endpoints: Sequence[Address], security: Security, *, call_limit_s: float) -> None:
        self.rpc = rpc
        self.call_limit_s = call_limit_s
        self.endpoints = tuple(endpoints)
        self.security = security
        self._lock = threading.Lock()
        self._preferred = 0  # guarded by the lock, as is the next
        self._current: Connection | None = None
        self._closed = threading.Event()

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def call(
        self,
        method: Callable[[Connection], Any],
        request: Any,
        *,
        limit_s: float | None = None,
        rounds: int | None = None,
    ) -> Answer:
        """Call until a member answers, for at most `limit_s` (a call's limit), and `rounds` times each. Raises
        StoreError."""
        return self.attempt(
            lambda connection, share_s: connection.call(method, request, share_s), limit_s=limit_s, rounds=rounds
        )

    def attempt(
        self,
        action: Callable[[Connection, float], Any],
        *,
        limit_s: float | None = None,
        rounds: int | None = None,
    ) -> Answer:
        """The same with an action that is told how many seconds it may take."""
        deadline = time.monotonic() + (self.call_limit_s if limit_s is None else limit_s)
        members = len(self.endpoints)
        failed = 0

        def once() -> Answer:
            nonlocal failed
            share_s = (deadline - time.monotonic()) / (members - failed % members)
            connection = self.connection()
            try:
                response = action(connection, max(LEAST_LIMIT_S, share_s))
            except Retryable as error:
                failed += 1
                if error.elsewhere:
                    self.leave(connection)
                raise
            return Answer(response=response, connection=connection, retried=failed > 0)

        retrying = Retrying(
            retry=retry_if_exception_type(Retryable),
            wait=lambda state: _BACKOFF(state) if failed % members == 0 else 0.0,  # another member may be fine
            stop=lambda state: (
                self.closed
                or (rounds is not None and failed >= rounds * members)
                or time.monotonic() + state.upcoming_sleep >= deadline
            ),
            sleep=sleep_using_event(self._closed),
            reraise=True,
        )
        try:
            return retrying(once)
        except StoreError as error:
            self.check_open(error)
            raise

    def connection(self) -> Connection:
        """The present connection, a new one if there is none."""
        with self._lock:
            self.check_open()
            if self._current is None:
                self._current = self._connect(self._preferred)
            return self._current

    def leave(self, connection: Connection) -> None:
        """Cut a connection, and turn to the next member unless that was done already."""
        with self._lock:
            if self._current is connection:
                self._current = None
                self._preferred = (connection.index + 1) % len(self.endpoints)
        connection.cut()

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            connection, self._current = self._current, None
        if connection is not None:
            connection.cut()

    def check_open(self, cause: BaseException | None = None) -> None:
        if self.closed:
            raise StoreError("this handle on the store is closed") from cause

    def _connect(self, index: int) -> Connection:
        try:
            return Connection(
                self.rpc,
                self.endpoints[index],
                self.security,
                index=index,
                ping_limit_s=self.call_limit_s / 2,
            )
        except OSError as error:
            raise Refused(f"a certificate or key cannot be read: {error}") from error
