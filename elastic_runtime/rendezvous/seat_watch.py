"""A seat asked from an event loop: its methods block, so they run in threads of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from elastic_runtime.stores.base import Holder, Seat

T = TypeVar("T")

WATCH_S = 60.0


class SeatWatch:
    """At most one watch matters at a time. One for a term that is over ends by itself, so threads do not pile up."""

    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(3, "elastic-seat")
        self._watching: tuple[int, asyncio.Future[tuple[bool, Holder | None]]] | None = None

    async def ask(self, call: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(self._threads, call)

    def changed(self, term: int) -> asyncio.Future[Any]:
        """Done when the seat is not held under `term` any more, when the store fails, or after a while."""
        if self._watching is None or self._watching[0] != term:
            call = self._loop.run_in_executor(self._threads, self._seat.wait, term, WATCH_S)
            call.add_done_callback(look_at)
            self._watching = (term, call)
        return self._watching[1]

    def check(self) -> None:
        """Forget a watch that has ended. Raises StoreError if the store ended it."""
        if self._watching is not None and self._watching[1].done():
            call, self._watching = self._watching[1], None
            call.result()

    def close(self) -> None:
        """The store is to be closed before: that frees whoever is blocked."""
        self._threads.shutdown(wait=False)


def look_at(call: asyncio.Future[Any]) -> None:
    """A result that nobody fetches is no error to report."""
    if not call.cancelled():
        call.exception()
