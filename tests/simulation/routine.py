"""A routine of an agent, as a coroutine on its loop is: a generator of what it waits for."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.simulation.store import StoreOut

if TYPE_CHECKING:
    from tests.simulation.agent import Agent

Waits = Generator[tuple[Any, ...], Any, Any]


class Routine:
    """It yields

    ("ask", request): what `request(agent, reply)` is answered; raised if that is StoreOut;
    ("sleep", seconds);
    (what, for_s): until `has_come(what)`, which is looked at when poked, or for so long (None: for ever).
    """

    def __init__(self, agent: Agent, has_come: Callable[[str], bool]) -> None:
        self._agent, self._clock = agent, agent.cluster.clock
        self._has_come = has_come
        self._waits: Waits
        self._what = ""
        self._wait_id = 0
        self._over = False

    def start(self, waits: Waits) -> None:
        self._waits = waits
        self._resume(self._wait_id)

    def stop(self) -> None:
        self._over = True

    def poke(self) -> None:
        if self._what and self._has_come(self._what):
            self._clock.after(0.0, self._agent.deliver, self._resume, self._wait_id)

    def _resume(self, wait_id: int, value: Any = None) -> None:
        if wait_id != self._wait_id or self._over:
            return
        self._wait_id += 1
        self._what = ""
        try:
            wait = self._waits.throw(value) if isinstance(value, Exception) else self._waits.send(value)
        except StopIteration:
            return
        except StoreOut:
            self._agent.fails_to_join()
            return
        resume = partial(self._resume, self._wait_id)
        match wait:
            case ("ask", request):
                request(self._agent, resume)
            case ("sleep", seconds):
                self._clock.after(seconds, self._agent.deliver, resume)
            case (what, for_s):
                self._what = what
                if for_s is not None:
                    self._clock.after(for_s, self._agent.deliver, resume)
                self.poke()
