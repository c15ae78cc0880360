"""How workers meet and what they compute together: rooms at an agent, groups whose collectives break as gloo's do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster
    from tests.simulation.process import Process

CREATION_LIMIT_S = 3.0
RESULT_SPREAD_S = 0.008  # between the first and the last that has its result


class Broken(Exception):
    """A collective, or the forming of a group, failed."""


class Room:
    """Where the members of one generation meet. Whoever was counted once is waited for, even if it is gone since."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.guests: dict[Process, int] = {}  # who waits here, and its rank
        self.arrived = 0

    def enter(self, process: Process, rank: int, world_size: int) -> None:
        self.guests[process] = rank
        process.room = self
        self.arrived += 1
        if self.arrived == world_size:
            self._cluster.checkers.met(self.guests, world_size)
            self._connect(world_size)

    def leave(self, process: Process) -> None:
        self.guests.pop(process, None)
        process.room = None

    def _connect(self, world_size: int) -> None:
        """Everybody has arrived: all connect to all, within a limit."""
        cluster = self._cluster
        names = [p.agent.host for p in self.guests]
        ready = max(cluster.clock.now + 0.005 + 0.02 * cluster.rng.random(), cluster.network.clear_at(names))
        limit = cluster.clock.now + CREATION_LIMIT_S
        cluster.clock.at(min(ready, limit), self._formed, world_size, ready <= limit, limit)

    def _formed(self, world_size: int, in_time: bool, limit: float) -> None:
        guests = dict(self.guests)
        if in_time and len(guests) == world_size and not any(p.paused for p in guests):
            group = Group(self._cluster, sorted(guests, key=guests.__getitem__))
            for process in guests:
                self.leave(process)
                process.wake(process.wait_id, group)
            return
        for process in guests:
            self._cluster.clock.at(
                limit, process.deliver, process.wake, process.wait_id, None, Broken("no group formed")
            )


class Group:
    """Members by rank. A collective completes for all once all have entered it; a departure breaks it for whoever has
    not got its result yet, with some luck in between."""

    def __init__(self, cluster: Cluster, members: list[Process]) -> None:
        self._cluster = cluster
        self.members = members
        self._hosts = {p.agent.host: None for p in members}
        self._entered: dict[Process, tuple[Any, Any]] = {}
        self._due: dict[Process, int] = {}
        self._departed: dict[Process, bool] = {}
        self._resets: dict[Process, None] = {}

    def enter(self, process: Process, kind: Any, value: Any) -> None:
        if self._departed or self._resets.pop(process, True) is None:
            process.break_off_later("a peer is gone")
            return
        for other, (theirs, _) in self._entered.items():
            self._cluster.checkers.training.same_collective(process, kind, other, theirs)
            break
        self._entered[process] = (kind, value)
        if len(self._entered) == len(self.members):
            self._complete()

    def _complete(self) -> None:
        cluster = self._cluster
        results = [self._entered[p][1] for p in self.members]
        self._entered = {}
        base = max(cluster.clock.now, cluster.network.clear_at(self._hosts)) + 0.001
        for process in self.members:
            self._due[process] = process.wait_id
            at = base + RESULT_SPREAD_S * cluster.rng.random()
            cluster.clock.at(at, process.deliver, process.wake, process.wait_id, results)

    def depart(self, process: Process, *, died: bool) -> None:
        if process in self._departed:
            return
        cluster = self._cluster
        had_result = self._due.get(process) != process.wait_id
        self._departed[process] = died
        self._entered.pop(process, None)
        for other in self.members:
            if other in self._departed or not other.alive:
                continue
            if self._due.get(other) == other.wait_id:
                if cluster.rng.random() < (cluster.setup.late_breaks if had_result else 0.5):
                    cluster.clock.after(0.0, other.deliver, other.wake, other.wait_id, None, Broken("a peer is gone"))
            elif other in self._entered:
                other.break_off_later("a peer is gone", from_host=process.agent.host)

    def break_for(self, process: Process) -> None:
        """Nobody died, but this worker's connections failed: in this collective or the next."""
        if process in self._entered or self._due.get(process) == process.wait_id:
            process.break_off_later("connection reset")
        else:
            self._resets[process] = None
