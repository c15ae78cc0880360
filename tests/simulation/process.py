"""A worker process: runs a script (a generator of waits), hears its agent, is stopped, killed, or crashes."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from elastic_runtime.core.messages import Closed, Down, Failed, Up, World
from elastic_runtime.core.supervision_events import Exited, Said, Start
from tests.simulation.clock import Being
from tests.simulation.groups import Broken, Group, Room

if TYPE_CHECKING:
    from tests.simulation.agent import Agent

Script = Generator[tuple[Any, ...], Any, None]
CHANNEL_S = 0.0003
CONNECT_LIMIT_S = 3.0


class ScriptExit(Exception):
    """The script ends with this exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Process(Being):
    """A script yields what it waits for:

    ("sleep", seconds), ("compute", seconds): the second ends early when a later world is ordered;
    ("news", generation): a world newer than that one, or the end of the job;
    ("meet", host, key, rank, world_size): the group of a generation, whose members meet at the agent `host`;
    ("enter", kind, value): the values that all ranks gave to one collective.
    """

    def __init__(self, agent: Agent, start: Start, ignores_term: bool) -> None:
        super().__init__()
        self.agent = agent
        self.cluster = agent.cluster
        self.slot, self.spawn, self.started_by = start.slot, start.spawn, start
        self.key = (start.slot, start.spawn)
        self.name = f"{agent.name}/{start.slot}.{start.spawn}"
        self.ignores_term = ignores_term
        self.newest: World | None = None
        self.closed: Closed | None = None
        self.ordered_off = 0  # generations below this one are to be left
        self.generation = 0  # the one that this process is forming or in
        self.group: Group | None = None
        self.room: Room | None = None
        self.phase = ""
        self.wait: tuple[Any, ...] = ("sleep",)
        self.wait_id = 0
        self.exit_code: int | None = None
        self.raised: tuple[str, int] | None = None
        self.session: Any = None
        self._script: Script
        self._last_up = 0.0

    def run(self, script: Script) -> None:
        self._script = script
        self.cluster.clock.after(0.001, self.deliver, self.wake, self.wait_id)

    # -- the script ---------------------------------------------------------------------------------------------------

    def wake(self, wait_id: int, value: Any = None, error: Exception | None = None) -> None:
        """Go on, if the script still waits for this."""
        if wait_id != self.wait_id or not self.alive:
            return
        self.wait_id += 1
        try:
            self.wait = self._script.throw(error) if error is not None else self._script.send(value)
        except StopIteration:
            self.die(0)
        except ScriptExit as end:
            self.die(end.code)
        else:
            self._begin(self.wait)

    def _begin(self, wait: tuple[Any, ...]) -> None:
        kind = wait[0]
        if kind == "enter":
            assert self.group is not None
            if self.ordered_off > self.generation:
                self.break_off_later("a later generation was ordered")
            else:
                self.group.enter(self, wait[1], wait[2])
        elif kind == "meet":
            self._meet(*wait[1:])
        elif kind == "news":
            self._hand_over_news()
        else:
            self.cluster.clock.after(wait[1], self.deliver, self.wake, self.wait_id)

    def _meet(self, host: Agent | None, key: Any, rank: int, world_size: int) -> None:
        cluster = self.cluster
        if host is None or self.ordered_off > self.generation:
            self.break_off_later("nobody listens there")
            return
        at = max(cluster.clock.now + cluster.network.delay(), cluster.network.clear_at((host.host, self.agent.host)))
        if host.vanished or at > cluster.clock.now + CONNECT_LIMIT_S:
            error = Broken("nobody answers there")
            cluster.clock.after(CONNECT_LIMIT_S, self.deliver, self.wake, self.wait_id, None, error)
        else:
            cluster.clock.at(at, self._knock, self.wait_id, host, key, rank, world_size)

    def _knock(self, wait_id: int, host: Agent, key: Any, rank: int, world_size: int) -> None:
        if wait_id == self.wait_id and self.alive:
            if host.alive:
                host.deliver(host.admit, self, wait_id, key, rank, world_size)
            elif not host.vanished:
                self.break_off_later("nobody listens there")

    def _hand_over_news(self) -> None:
        if self.newest is not None and self.newest.generation > self.wait[1]:
            self.cluster.clock.after(0.0, self.deliver, self._take_news, self.wait_id)
        elif self.closed is not None:
            error = ScriptExit(self.closed.exit_code)
            self.cluster.clock.after(0.0, self.deliver, self.wake, self.wait_id, None, error)

    def _take_news(self, wait_id: int) -> None:
        self.wake(wait_id, self.newest)

    def break_off_later(self, why: str, from_host: str = "") -> None:
        cluster = self.cluster
        at = cluster.clock.now + 0.002 + 0.02 * cluster.rng.random()
        if from_host:
            at = max(at, cluster.network.clear_at((from_host, self.agent.host)))
        cluster.clock.at(at, self.deliver, self.wake, self.wait_id, None, Broken(why))

    def at(self, phase: str) -> None:
        self.phase = phase
        if self.cluster.traps:
            self.cluster.spring_traps(self)

    # -- the agent ----------------------------------------------------------------------------------------------------

    def told(self, message: Down) -> None:
        if isinstance(message, Closed):
            self.closed = message
        elif self.newest is None or message.generation > self.newest.generation:
            self.newest = message
        if isinstance(message, World) and not message.planned:
            self.ordered_off = max(self.ordered_off, message.generation)
            if self.generation < message.generation and self.wait[0] in ("enter", "meet", "compute"):
                self.break_off_later("a later generation was ordered")
        if self.wait[0] == "news":
            self._hand_over_news()

    def say(self, message: Up) -> None:
        self._send(Said(self.slot, self.spawn, message))

    def _send(self, event: Said | Exited) -> None:
        clock = self.cluster.clock
        self._last_up = max(self._last_up, clock.now + CHANNEL_S * (0.5 + self.cluster.rng.random()))
        clock.at(self._last_up, self.agent.deliver, self.agent.heard_of, self, event)

    def leave_group(self, *, died: bool = False) -> None:
        """Close all connections of the generation; peers that are in a collective get an error."""
        if self.room is not None:
            self.room.leave(self)
        if self.group is not None:
            group, self.group = self.group, None
            group.depart(self, died=died)

    # -- its end ------------------------------------------------------------------------------------------------------

    def signal(self, number: int) -> None:
        if number == 9:
            self.die(-9)
        elif not self.ignores_term:
            self.deliver(self.die, -number)

    def crash(self, error: str) -> None:
        """The script raises."""
        if self.alive:
            self.raised = (error, self.session.step if self.session else -1)
            self.say(Failed(error=error, step=self.raised[1]))
            self.die(1)

    def die(self, code: int, *, silently: bool = False) -> None:
        if not self.alive:
            return
        self.alive, self.exit_code = False, code
        self.cluster.note(self.name, "exits", code, self.phase)
        if not silently:
            self.leave_group(died=True)
            self._send(Exited(self.slot, self.spawn, code))
