"""Where the time of a change goes: a stopwatch whose marks are the phases that the journal shows."""

from __future__ import annotations

import time
from collections.abc import Sequence

from elastic_runtime.core.messages import Resumed, World

PHASES = ("detect", "leave", "settle", "group", "state", "first_step")


class Phases:
    """`begin` at the first sign of a change, `mark` at the end of each phase, `resumed` at the first commit after it.

    `detect` runs from the agent's first sign of the change to this worker's reaction; it is no part of a planned
    change's pause, since the worker trained meanwhile.
    """

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0)
        self._last: float | None = None
        self._planned = True
        self._source = "own"
        self._change: tuple[int, World] | None = None

    def begin(self, *, noticed_at: float, planned: bool) -> None:
        self._reset()
        now = time.monotonic()
        if noticed_at:
            self._seconds["detect"] = max(0.0, now - noticed_at)
        self._planned, self._last = planned, now

    def mark(self, phase: str, source: Sequence[int] = ()) -> None:
        now = time.monotonic()
        if self._last is not None:
            self._seconds[phase] += now - self._last
        self._last = now
        if source:
            self._source = ",".join(map(str, source))

    def entered(self, old_world_size: int, world: World) -> None:
        self._change = (old_world_size, world)

    def pause_s(self) -> float:
        """Seconds without training so far: everything after the reaction, before the first step's own work."""
        return sum(self._seconds[phase] for phase in ("leave", "settle", "group", "state"))

    def resumed(self, step: int) -> Resumed | None:
        """At a commit: the finished account of the change before it, if there was one."""
        if self._change is None:
            return None
        self.mark("first_step")
        old_world_size, world = self._change
        account = Resumed(
            generation=world.generation,
            rank=world.rank,
            old_world_size=old_world_size,
            world_size=world.world_size,
            step=step,
            planned=self._planned,
            redone=int(not self._planned and self._source == "own"),
            source=self._source,
            pause_s=self.pause_s(),
            phases=self._seconds,
        )
        self._reset()
        return account
