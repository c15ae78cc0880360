"""What lies between the hosts: delays, partitions, connections in FIFO order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from tests.simulation.clock import Being, Clock


class Network:
    """A cut host neither hears nor is heard; what was sent meanwhile is retransmitted after it, as TCP does. The way to
    a store that lies apart is cut by itself."""

    def __init__(self, clock: Clock, rng: Random, delay_s: float) -> None:
        self._clock = clock
        self._rng = rng
        self._delay_s = delay_s
        self._cut_until: dict[str, float] = {}
        self._no_store_until: dict[str, float] = {}
        self.disturbed_until = 0.0

    def cut(self, host: str, until: float) -> None:
        self._cut_until[host] = max(until, self._cut_until.get(host, 0.0))
        self.disturbed_until = max(until, self.disturbed_until)

    def cut_from_store(self, host: str, until: float) -> None:
        self._no_store_until[host] = max(until, self._no_store_until.get(host, 0.0))
        self.disturbed_until = max(until, self.disturbed_until)

    def clear_at(self, hosts: Iterable[str]) -> float:
        """When all of these hosts reach each other; a host always reaches itself."""
        if not self._cut_until:
            return 0.0
        names = set(hosts)
        return max((self._cut_until.get(host, 0.0) for host in names), default=0.0) if len(names) > 1 else 0.0

    def store_clear_at(self, host: str) -> float:
        return self._no_store_until.get(host, 0.0)

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
