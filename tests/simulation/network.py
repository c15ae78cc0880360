"""What lies between the nodes: delays, partitions, links in FIFO order, and the store that holds the header."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from tests.simulation.clock import Being, Clock

WRITE_TIMEOUT_S = 1.0


class Network:
    """A cut node neither hears nor is heard; what was sent meanwhile is retransmitted after it, as TCP does."""

    def __init__(self, clock: Clock, rng: Random, delay_s: float) -> None:
        self._clock = clock
        self._rng = rng
        self._delay_s = delay_s
        self._cut_until: dict[str, float] = {}

    def cut(self, node: str, until: float) -> None:
        self._cut_until[node] = max(until, self._cut_until.get(node, 0.0))

    def clear_at(self, nodes: Iterable[str]) -> float:
        """When all of these nodes reach each other; a node always reaches itself."""
        if not self._cut_until:
            return 0.0
        names = set(nodes)
        return max((self._cut_until.get(node, 0.0) for node in names), default=0.0) if len(names) > 1 else 0.0

    def delay(self) -> float:
        return self._delay_s * (0.5 + self._rng.random())


class Pipe:
    """One direction of a connection: in order, to a being that may be stopped."""

    def __init__(self, clock: Clock, network: Network, ends: tuple[str, str], to: Being) -> None:
        self._clock, self._network, self._ends, self._to = clock, network, ends, to
        self._last = 0.0

    def send(self, fn: Callable[..., object], *args: Any) -> None:
        self._last = max(self._last, self._clock.now + self._network.delay(), self._network.clear_at(self._ends))
        self._clock.at(self._last, self._to.deliver, fn, *args)


class HeaderStore:
    """One key with compare-and-set. Under a fault a swap raises, and may have been applied all the same."""

    def __init__(self, clock: Clock, rng: Random, delay_s: float) -> None:
        self._clock, self._rng, self._delay_s = clock, rng, delay_s
        self.value: Any = None
        self.version = 0
        self.out_until = 0.0
        self.lose_replies = 0
        self.on_applied: Callable[[Any], None] = lambda value: None

    def swap(self, value: Any, version: int, reply: Callable[[bool | None, int, Any], object]) -> None:
        """`reply(won, version, value)` with what stands there; won None: no answer came in time."""
        self._clock.after(self._delay_s * (0.5 + self._rng.random()), self._arrive, value, version, reply)

    def _arrive(self, value: Any, version: int, reply: Callable[[bool | None, int, Any], object]) -> None:
        if self._clock.now < self.out_until:
            self._clock.after(WRITE_TIMEOUT_S * self._rng.random(), reply, None, 0, None)
            return
        won = version == self.version
        if won:
            self.value, self.version = value, version + 1
            self.on_applied(value)
        if self.lose_replies:
            self.lose_replies -= 1
            self._clock.after(WRITE_TIMEOUT_S * self._rng.random(), reply, None, 0, None)
            return
        self._clock.after(self._delay_s * self._rng.random(), reply, won, self.version, self.value)
