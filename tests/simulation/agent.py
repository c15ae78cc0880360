"""A node: the real `Supervisor`, its processes and its link; as `agent/agent.py` drives them."""

from __future__ import annotations

from signal import Signals
from typing import TYPE_CHECKING, Any

from elastic_runtime.core import supervision_events as sv
from elastic_runtime.core.node import Limits, Mode
from elastic_runtime.core.supervision import Supervisor
from tests.simulation.clock import Being
from tests.simulation.coordination import Coordination, Link
from tests.simulation.groups import Broken, Room
from tests.simulation.process import Process
from tests.simulation.script import ElasticScript, static_script

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

BEAT_S = 0.5
OPEN_STORE_S = 0.02
START_S = 0.02


class Agent(Being):
    def __init__(self, cluster: Cluster, name: str, *, slots: int, hosts: bool) -> None:
        super().__init__()
        self.cluster, self.name = cluster, name
        self.vanished = False
        limits = Limits(
            slots=slots,
            max_restarts=cluster.setup.max_restarts,
            shutdown_timeout_s=cluster.setup.shutdown_timeout_s,
            serves_store=hosts,
        )
        self.machine = Supervisor(node=name, address=name, limits=limits)
        self.machine.meeting_port = 1
        self.processes: dict[tuple[int, int], Process] = {}
        self.rooms: dict[Any, Room] = {}
        self.coordination: Coordination | None = None
        self.link: Link | None = None
        self.exit_code: int | None = None
        self.interrupted = 0
        self.closed_with: int | None = None
        self._newest_room = 0
        self._ports = 0
        self._wakes = 0
        if hosts:
            self.coordination = Coordination(cluster, self)

    def start(self) -> None:
        self.machine.store_port = self._open_store()
        self.machine.published = self.machine.record()
        self.link = Link(self.cluster, self)
        self.link.open(self.machine.published)
        self.cluster.clock.after(BEAT_S, self.deliver, self._beat)

    def _open_store(self) -> int:
        self._ports += 1
        return self._ports

    def _beat(self) -> None:
        assert self.link is not None
        self.link.up("beat", None)
        self.cluster.clock.after(BEAT_S, self.deliver, self._beat)

    # -- events -------------------------------------------------------------------------------------------------------

    def on_frame(self, kind: str, content: Any) -> None:
        match kind:
            case "announced":
                self._newest_room = max(self._newest_room, content.generation)
                self.step(content)
            case "closed":
                self.closed_with = content[0]
                self.step(sv.JobClosed(*content))
            case "evicted":
                self.step(sv.JobClosed(1, f"evicted: {content}"))
            case "lost":
                if self.machine.mode is not Mode.STOPPING:
                    self.step(sv.JobClosed(1, "the store's host is gone"))

    def heard_of(self, process: Process, event: sv.Said | sv.Exited) -> None:
        if isinstance(event, sv.Exited):
            del self.processes[process.key]
            self.cluster.checkers.exited(self, process)
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
        self.cluster.checkers.supervised(self)
        if self.machine.mode is Mode.SERVING and self.coordination is not None and not self.coordination.others:
            self.step(sv.OthersLeft())

    # -- effects ------------------------------------------------------------------------------------------------------

    def _carry_out(self, effect: sv.Effect) -> None:
        cluster, link = self.cluster, self.link
        assert link is not None
        match effect:
            case sv.Publish(record):
                link.up("record", record)
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
                cluster.checkers.killed(self, process, signal)
                process.signal(signal)
            case sv.OpenStore():
                cluster.clock.after(OPEN_STORE_S, self.deliver, self._store_opened)
            case sv.EndJob(exit_code, reason):
                link.up("end", (exit_code, reason))
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
        cluster.checkers.started(self, start, process)
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

    # -- its end ------------------------------------------------------------------------------------------------------

    def _exit(self, exit_code: int) -> None:
        assert self.link is not None
        self.exit_code = exit_code
        self.cluster.note(self.name, "agent exits", exit_code)
        self.link.close()
        self._end()

    def crash(self) -> None:
        """Killed: its connections close, its workers die with it."""
        if self.alive:
            self.cluster.note(self.name, "agent is killed")
            assert self.link is not None
            self.link.break_off()
            self._end()

    def vanish(self) -> None:
        """The machine loses power: nobody is told, no connection closes."""
        if self.alive:
            self.cluster.note(self.name, "node vanishes")
            self.vanished = True
            self.alive = False
            for process in self.processes.values():
                process.die(-9, silently=True)

    def _end(self) -> None:
        self.alive = False
        for process in list(self.processes.values()):
            process.die(-9)
        if self.coordination is not None:
            self.coordination.close()
        for process in self.cluster.processes:
            if process.alive and process.wait[0] == "meet" and process.wait[1] is self:
                error = Broken("the meeting is over")
                at = max(self.cluster.clock.now + 0.005, self.cluster.network.clear_at((self.name, process.agent.name)))
                self.cluster.clock.at(at, process.deliver, process.wake, process.wait_id, None, error)
