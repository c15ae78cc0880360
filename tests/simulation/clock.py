"""Virtual time: events in a heap, run in order. Nothing here waits."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

EVENTS = 40_000  # several times as many as the longest run has


class Endless(Exception):
    """Things happen for ever, and nothing comes of it."""


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self._heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._count = 0

    def at(self, time: float, fn: Callable[..., object], *args: Any) -> None:
        self._count += 1
        heappush(self._heap, (time if time > self.now else self.now, self._count, fn, args))

    def after(self, delay: float, fn: Callable[..., object], *args: Any) -> None:
        self._count += 1
        heappush(self._heap, (self.now + delay, self._count, fn, args))

    def run(self, until: float, done: Callable[[], bool]) -> None:
        """Run events until `done()` or the virtual time `until`; those of equal time in the order of their call."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            self.events += 1
            if self.events > EVENTS:
                raise Endless(f"{EVENTS} events and no end")
            self.now, _, fn, args = heappop(heap)
            fn(*args)
            if done():
                return


class Being:
    """Something that lives, may be stopped and continued (as by SIGSTOP and SIGCONT), and dies once.

    What arrives while it is stopped waits in its buffers; what arrives after its death is lost.
    """

    def __init__(self) -> None:
        self.alive = True
        self.paused = False
        self._backlog: list[tuple[Callable[..., object], tuple[Any, ...]]] = []

    def deliver(self, fn: Callable[..., object], *args: Any) -> None:
        if not self.alive:
            return
        if self.paused:
            self._backlog.append((fn, args))
        else:
            fn(*args)

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        waiting, self._backlog = self._backlog, []
        for fn, args in waiting:
            self.deliver(fn, *args)
