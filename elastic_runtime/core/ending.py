"""How workers are ended: a signal, some time to follow it, then SIGKILL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from signal import Signals

from elastic_runtime.core.node import Worker
from elastic_runtime.core.supervision_events import Effect, Kill, WakeAt


@dataclass(slots=True)
class Ending:
    """`at`: when patience ends, None while nobody is being ended. Moving it closer hurries."""

    at: float | None = None
    killed: bool = False

    def begin(self, workers: Mapping[int, Worker], signal: Signals) -> list[Effect]:
        assert self.at is not None
        return [*(Kill(slot, worker.spawn, signal) for slot, worker in workers.items()), WakeAt(self.at)]

    def escalate(self, workers: Mapping[int, Worker], now: float) -> list[Effect]:
        """SIGKILL, once, for whoever is left when the time is up."""
        if self.at is None or now < self.at or self.killed or not workers:
            return []
        self.killed = True
        return [Kill(slot, worker.spawn, Signals.SIGKILL) for slot, worker in workers.items()]
