"""A node: the real `Supervisor`, its processes and its link; as `agent/agent.py` drives them."""

from __future__ import annotations

from signal import Signals
from typing import TYPE_CHECKING, Any

from elastic_runtime.core import supervision_events as sv
from elastic_runtime.core.node import Limits, Mode
from elastic_runtime.core.supervision import Supervisor
from tests.simulation.anchored import Anchored
from tests.simulation.clock import Being
from tests.simulation.coordination import Coordination
from tests.simulation.groups import Broken, Room
from tests.simulation.link import Link
from tests.simulation.membership import Elected
from tests.simulation.process import Process
from tests.simulation.script import ElasticScript, static_script

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

BEAT_S = 0.5
OPEN_STORE_S = 0.02
START_S = 0.02


class Agent(Being):
    """`hosts`: whether it serves the store and coordinates for ever. `came_from`: what it was before it was evicted."""

    def __init__(self, cluster: Cluster, name: str, host: str, *, hosts: bool, came_from: Agent | None = None) -> None:
        super().__init__()
        self.cluster, self.name, self.host = cluster, name, host
        self.came_from = came_from
        self.vanished = False
        setup = cluster.setup
        limits = Limits(
            slots=setup.slots,
            max_restarts=setup.max_restarts,
            shutdown_timeout_s=setup.shutdown_timeout_s,
            serves_store=hosts,
        )
        self.machine = Supervisor(node=name, address=name, host=host if setup.elected else "", limits=limits)
        self.machine.meeting_port = 1
        self.processes: dict[tuple[int, int], Process] = {}
        self.rooms: dict[Any, Room] = {}
        self.anchor: Coordination | None = None  # where it coordinates for ever
        self.coordinations: list[Coordination] = []
        self.membership: Anchored | Elected = Elected(self) if setup.elected else Anchored(self)
        self.exit_code: int | None = None
        self.rejoins = False
        self.failed_to_join = False
        self.interrupted = 0
        self.closed_with: int | None = None
        self._newest_room = 0
        self._ports = 0
        self._wakes = 0
        if hosts:
            self.anchor = Coordination(cluster, self, lambda: None)

    @property
    def link(self) -> Link | None:
        return self.membership.link

    @property
    def coordination(self) -> Coordination | None:
        return self.membership.coordination if isinstance(self.membership, Elected) else self.anchor

    def is_of_the_job(self) -> bool:
        """Whether it joined and does not know that the job went on without it."""
        if isinstance(self.membership, Elected):
            return self.membership.joined and not self.rejoins and self.cluster.checkers.succession.is_counted(self)
        return self.link is not None and not self.link.cut_by_server

    def start(self) -> None:
        self.machine.store_port = self._open_store()
        self.machine.published = self.machine.record()
        self.membership.open(self.machine.published)
        self.cluster.clock.after(BEAT_S, self.deliver, self._beat)

    def _open_store(self) -> int:
        self._ports += 1
        return self._ports

    def _beat(self) -> None:
        self.membership.beat()
        self.cluster.clock.after(BEAT_S, self.deliver, self._beat)

    # -- events -------------------------------------------------------------------------------------------------------

    def on_frame(self, kind: str, content: Any) -> None:
        match kind:
            case "announced":
                self._newest_room = max(self._newest_room, content.generation)
                self._close_old_rooms()
                self.step(content)
            case "closed":
                self.closed_with = content[0]
                self.step(sv.JobClosed(*content))
            case "evicted":
                exit_code, reason, rejoin = content
                if rejoin and self.cluster.setup.elected:
                    self._rejoin(reason)
                else:
                    self.step(sv.JobClosed(exit_code, f"evicted: {reason}"))

    def on_over(self, reason: str) -> None:
        self.step(sv.JobClosed(1, reason))

    def heard_of(self, process: Process, event: sv.Said | sv.Exited) -> None:
        if isinstance(event, sv.Exited):
            del self.processes[process.key]
            if self.exit_code is None:
                self.cluster.checkers.supervision.exited(self, process)
        self.step(event)

    def interrupt(self, signal: Signals) -> None:
        self.interrupted += 1
        self.step(sv.Interrupted(signal))

    def step(self, event: sv.Event) -> None:
        if self.exit_code is not None:
            return
        effects = self.machine.step(event, self.cluster.clock.now)
        self.cluster.note(self.name, event, effects)
        for effect in effects:
            self._carry_out(effect)
        self.cluster.checkers.supervision.supervised(self)
        if self.machine.mode is Mode.SERVING and self.anchor is not None and not self.anchor.others:
            self.step(sv.OthersLeft())

    # -- effects ------------------------------------------------------------------------------------------------------

    def _carry_out(self, effect: sv.Effect) -> None:
        cluster = self.cluster
        match effect:
            case sv.Publish(record):
                self.membership.publish(record)
            case sv.Tell(slot, spawn, message):
                process = self.processes[slot, spawn]
                cluster.clock.after(0.0003, process.deliver, process.told, message)
            case sv.WakeAt(time):
                self._wakes += 1
                cluster.clock.at(time, self.deliver, self._tick, self._wakes)
            case sv.Start():
                self._start(effect)
            case sv.Kill(slot, spawn, signal):
                process = self.processes[slot, spawn]
                cluster.checkers.supervision.killed(self, process, signal)
                process.signal(signal)
            case sv.OpenStore():
                cluster.clock.after(OPEN_STORE_S, self.deliver, self._store_opened)
            case sv.EndJob(exit_code, reason):
                self.membership.end_job(exit_code, reason)
            case sv.Leave(exit_code):
                self._exit(exit_code)

    def _tick(self, number: int) -> None:
        if number == self._wakes:
            self.step(sv.Tick())

    def _store_opened(self) -> None:
        self.step(sv.StoreOpened(self._open_store()))

    def _start(self, start: sv.Start) -> None:
        cluster = self.cluster
        process = Process(self, start, ignores_term=cluster.rng.random() < cluster.setup.deaf_to_term)
        cluster.checkers.supervision.started(self, start, process)
        self.processes[process.key] = process
        cluster.processes.append(process)
        if cluster.setup.job.elastic:
            process.session = ElasticScript(process, cluster.setup.job)
            process.run(process.session.main())
        else:
            process.run(static_script(process, cluster.setup.job))

    # -- the meeting that it serves -----------------------------------------------------------------------------------

    def admit(self, process: Process, wait_id: int, key: Any, rank: int, world_size: int) -> None:
        if process.wait_id != wait_id or not process.alive:
            return
        if key[0] == "live" and key[1] < self._newest_room - 1:
            process.break_off_later("turned away")
            return
        if key not in self.rooms:
            self.rooms[key] = Room(self.cluster)
        self.rooms[key].enter(process, rank, world_size)

    def _close_old_rooms(self) -> None:
        """Whoever waits in the room of a generation that is over is turned away."""
        for key in [key for key in self.rooms if key[0] == "live" and key[1] < self._newest_room - 1]:
            for process in list(self.rooms.pop(key).guests):
                process.break_off_later("turned away", from_host=self.host)

    # -- its end ------------------------------------------------------------------------------------------------------

    def _exit(self, exit_code: int) -> None:
        self.exit_code = exit_code
        self.cluster.note(self.name, "agent exits", exit_code)
        self._close()

    def _rejoin(self, reason: str) -> None:
        """It was declared gone: it ends with its workers, and comes back as another node."""
        if self.exit_code is None:
            self.cluster.note(self.name, "joins anew", reason)
            self.cluster.checkers.succession.rejoins(self)
            self.exit_code, self.rejoins = 1, True
            self._close()

    def fails_to_join(self) -> None:
        self.failed_to_join = True
        self._exit(1)

    def _close(self) -> None:
        self.cluster.checkers.succession.leaves(self)
        self._end_workers()
        self.membership.close(self._end)

    def crash(self) -> None:
        """Killed: its connections close, its workers die with it."""
        if self.alive:
            self.cluster.note(self.name, "agent is killed")
            self.cluster.checkers.succession.dies(self, silently=False)
            self.membership.break_off()
            self._end_workers()
            self._end()

    def vanish(self) -> None:
        """The machine loses power: nobody is told, no connection closes."""
        if self.alive:
            self.cluster.note(self.name, "node vanishes")
            self.cluster.checkers.succession.dies(self, silently=True)
            self.vanished = True
            self.alive = False
            for process in self.processes.values():
                process.die(-9, silently=True)

    def _end_workers(self) -> None:
        for process in list(self.processes.values()):
            process.die(-9)

    def _end(self) -> None:
        self.alive = False
        if self.anchor is not None:
            self.anchor.close()
        for coordination in self.coordinations:
            coordination.process_ends()
        for process in self.cluster.processes:
            if process.alive and process.wait[0] == "meet" and process.wait[1] is self:
                error = Broken("the meeting is over")
                at = max(self.cluster.clock.now + 0.005, self.cluster.network.clear_at((self.host, process.agent.host)))
                self.cluster.clock.at(at, process.deliver, process.wake, process.wait_id, None, error)
        if self.rejoins:
            self.cluster.come_back(self)
