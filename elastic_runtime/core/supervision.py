"""What an agent does about its workers: start, tell, replace, drain, end.

A state machine: events in, effects out, one after another. It does not know how a process is started or a message
sent, and it never decides about the world: it publishes its node's record and carries out what is announced.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from signal import Signals

from elastic_runtime.core.ending import Ending
from elastic_runtime.core.messages import Adopted, Broken, Closed, Failed, Finished, Left, Ready, Refused, Up
from elastic_runtime.core.node import Limits, Mode, Worker, describe_exit, is_idle, worker_records, world_for
from elastic_runtime.core.restarts import Restarts
from elastic_runtime.core.supervision_events import (
    Announced,
    Effect,
    EndJob,
    Event,
    Exited,
    Interrupted,
    JobClosed,
    Kill,
    Leave,
    OpenStore,
    OthersLeft,
    Publish,
    Said,
    Say,
    Start,
    StoreOpened,
    Tell,
    WakeAt,
)
from elastic_runtime.core.view import Kind
from elastic_runtime.core.world import NodeRecord, WorkerPhase


@dataclass(slots=True)
class Supervisor:
    node: str
    address: str
    limits: Limits
    host: str = ""
    mode: Mode = Mode.WAITING
    store_port: int = 0
    meeting_port: int = 0
    announced: Announced | None = None
    workers: dict[int, Worker] = field(default_factory=dict)  # slot -> the living process in it
    done: dict[int, Worker] = field(default_factory=dict)  # slot -> the process that finished and exited
    spawns: int = 0
    group: int = 0  # start generation that the workers belong to
    failed_group: int = 0
    given_up: str = ""
    ends_job: bool = False  # it has asked for the end: no worker is started any more
    exit_code: int = 0
    ending: Ending = field(default_factory=Ending)
    noticed_at: float | None = None  # first sign of the change that the next generation answers
    published: NodeRecord | None = None
    restarts: Restarts = field(init=False)

    def __post_init__(self) -> None:
        self.restarts = Restarts(slots=self.limits.slots, limit=self.limits.max_restarts)

    def step(self, event: Event, now: float) -> list[Effect]:
        effects = self._take(event, now)
        self.ends_job = self.ends_job or any(isinstance(effect, EndJob) for effect in effects)
        effects += self.ending.escalate(self.workers, now)
        record = self.record()
        if record != self.published and self.mode is not Mode.SERVING:
            self.published = record
            effects.insert(0, Publish(record))  # the others wait for the news, nobody for what else is to be done
        return effects

    def record(self) -> NodeRecord:
        return NodeRecord(
            node=self.node,
            address=self.address,
            slots=self.limits.slots,
            store_port=self.store_port,
            meeting_port=self.meeting_port,
            workers=worker_records(self.workers, self.done, ending=self.mode is Mode.RESTARTING),
            draining=self.mode in (Mode.DRAINING, Mode.STOPPING) and not self.given_up,
            group=self.group,
            failed_group=self.failed_group,
            host=self.host,
            given_up=self.given_up,
        )

    def _take(self, event: Event, now: float) -> list[Effect]:
        match event:
            case Announced():
                return self._announced(event, now)
            case StoreOpened(port):
                self.store_port = port
            case Said(slot, spawn, message) if self._is(slot, spawn):
                return self._said(slot, self.workers[slot], message, now)
            case Exited(slot, spawn) as exited if self._is(slot, spawn):
                return self._exited(slot, self.workers.pop(slot), exited, now)
            case Interrupted(signal):
                return self._interrupted(signal, now)
            case JobClosed(exit_code, reason):
                return self._job_closed(exit_code, reason, now)
            case OthersLeft() if self.mode is Mode.SERVING:
                unfinished = self.exit_code or 128 + Signals.SIGTERM
                return [Say("nobody is left to go on: the job stops unfinished"), Leave(unfinished)]
        return []

    def _is(self, slot: int, spawn: int) -> bool:
        """A message or an exit of a process that was replaced since is of no interest."""
        return slot in self.workers and self.workers[slot].spawn == spawn

    # -- generations ------------------------------------------------------------------------------------------------

    def _announced(self, announced: Announced, now: float) -> list[Effect]:
        if self.announced is not None and announced.generation <= self.announced.generation:
            return []
        self.announced = announced
        noticed_at = now if self.noticed_at is None else self.noticed_at
        self.noticed_at = None
        effects: list[Effect] = []
        if announced.kind is Kind.START and (announced.host_node, announced.store_port) == (self.node, self.store_port):
            self.store_port = 0
            effects.append(OpenStore())
        if self.ends_job or self.mode in (Mode.STOPPING, Mode.SERVING):
            return effects
        if announced.kind is Kind.START:
            left_out = not announced.members and self.mode is not Mode.WORKING
            return effects + ([] if left_out else self._restart_group(now))
        if self.mode in (Mode.WAITING, Mode.WORKING):
            self.mode = Mode.WORKING
            # A slot is empty at a node that joins, and where a worker failed and the restart it asked for never came.
            empty = [slot for slot in range(self.limits.slots) if slot not in self.workers and slot not in self.done]
            if len(empty) == self.limits.slots:
                effects.append(Say("joined a running job: it trains on while the workers get ready"))
            effects += [e for slot in empty for e in self._start(slot)]
        return effects + [e for slot in self.workers for e in self._tell(slot, noticed_at)]

    def _restart_group(self, now: float) -> list[Effect]:
        """End the group of processes, if there is one, and start the next, if this node is in it."""
        self.mode, self.done = Mode.RESTARTING, {}
        if not self.workers:
            return self._start_all()
        assert self.announced is not None
        return [Say(f"the workers are started anew: {self.announced.reason}"), *self._stop(Signals.SIGTERM, now)]

    def _start_all(self) -> list[Effect]:
        assert self.announced is not None
        self.ending = Ending()
        if self.announced.kind is Kind.START and not self.announced.members:
            self.mode, self.group = Mode.WAITING, 0
            return []
        self.mode = Mode.WORKING
        if self.announced.kind is Kind.START:
            self.group = self.announced.generation
        return [e for slot in range(self.limits.slots) for e in self._start(slot)]

    def _start(self, slot: int) -> list[Effect]:
        assert self.announced is not None
        self.spawns += 1
        self.workers[slot] = Worker(spawn=self.spawns)
        return [Start(slot=slot, spawn=self.spawns, announced=self.announced, restarts=self.restarts.spent)]

    def _tell(self, slot: int, noticed_at: float) -> list[Effect]:
        """Tell a worker whose Session is open of the settled generation, once."""
        worker, settled = self.workers[slot], self.announced
        if settled is None or settled.kind is not Kind.LIVE or worker.phase is not WorkerPhase.READY:
            return []
        if worker.told >= settled.generation:
            return []
        worker.tell(settled.generation, as_member=(slot, worker.spawn) in settled.members)
        drained = self.mode is Mode.DRAINING
        world = world_for(settled, slot, worker.spawn, slots=self.limits.slots, drained=drained, noticed_at=noticed_at)
        return [Tell(slot, worker.spawn, world)]

    # -- workers ----------------------------------------------------------------------------------------------------

    def _said(self, slot: int, worker: Worker, message: Up, now: float) -> list[Effect]:
        match message:
            case Ready(max_workers=max_workers, constants=constants):
                worker.phase, worker.max_workers, worker.constants = WorkerPhase.READY, max_workers, constants
                if self.mode is Mode.DRAINING:
                    return [Kill(slot, worker.spawn, Signals.SIGTERM)]
                settled = self.announced
                return self._tell(slot, now) if settled and (slot, worker.spawn) in settled.members else []
            case Adopted(generation=generation):
                worker.adopt(generation)
            case Broken(generation=generation):
                worker.broken = max(worker.broken, generation)
            case Left():
                worker.left = True
            case Finished():
                worker.phase = WorkerPhase.FINISHED
            case Refused(message=text):
                return self._refused(text, now)
            case Failed():
                worker.failure = message
        return []

    def _refused(self, text: str, now: float) -> list[Effect]:
        """The script's own arguments are wrong: all workers' in a job that starts, this node's in one that runs."""
        if self.announced is None or self.announced.kind is Kind.START:
            return [EndJob(2, text)]
        self.given_up, self.mode, self.exit_code = text, Mode.STOPPING, 2
        return [Say(text), *self._stop(Signals.SIGTERM, now)]

    def _exited(self, slot: int, worker: Worker, exited: Exited, now: float) -> list[Effect]:
        self.noticed_at = now if self.noticed_at is None else self.noticed_at
        if worker.phase is WorkerPhase.FINISHED and exited.exit_code != 0:
            self.exit_code = self.exit_code or 1
        if self.mode in (Mode.DRAINING, Mode.STOPPING):
            return self._leave_if_empty()
        if self.mode is Mode.RESTARTING:
            return [] if self.workers else self._start_all()
        elastic = self.announced is not None and self.announced.kind is Kind.LIVE
        if exited.exit_code == 0 and not elastic:
            worker.phase = WorkerPhase.FINISHED
        if worker.phase is WorkerPhase.FINISHED:
            self.done[slot] = worker
            late = f"worker {slot} {describe_exit(exited.exit_code)} after its Session had finished{exited.why}"
            return [Say(late)] if exited.exit_code else []
        return self._failed(slot, worker, exited, elastic, now)

    def _failed(self, slot: int, worker: Worker, exited: Exited, elastic: bool, now: float) -> list[Effect]:
        what = f"worker {slot} {describe_exit(exited.exit_code)}{exited.why}"
        if self.ends_job or (not elastic and self.failed_group == self.group):
            return []  # the group's failure is counted once: whoever was in it fails after it
        if worker.failure is not None:
            what += f": {worker.failure.error}"
            if elastic and self.restarts.is_the_same_again(worker.failure.error, worker.failure.step):
                return [EndJob(1, f"the same failure twice at step {worker.failure.step}: {worker.failure.error}")]
        if not self.restarts.spend(now, elastic=elastic):
            spent = f"the budget of {self.restarts.budget(elastic=elastic)} restart(s) is spent"
            hint = "" if elastic else " (the script has not opened a Session yet: see --max-restarts)"
            self.given_up = f"{what}; {spent}{hint}"
            self.mode, self.exit_code = Mode.STOPPING, 1
            say = Say(f"{self.given_up}; this node leaves the job")
            return [say, *self._stop(Signals.SIGTERM, now), *self._leave_if_empty()]
        if elastic:
            return [Say(f"{what}; a new one takes its place"), *self._start(slot)]
        self.failed_group = self.group
        return [Say(f"{what}; the group restarts ({self.restarts.spent} of {self.restarts.budget(elastic=False)})")]

    # -- leaving ----------------------------------------------------------------------------------------------------

    def _interrupted(self, signal: Signals, now: float) -> list[Effect]:
        if self.mode is Mode.SERVING:
            return [EndJob(1, f"{self.node}, which serves the store, was ended by a second signal")]
        if self.mode is Mode.STOPPING and self.ending.at is None:  # the job is done, its scripts are not
            self.ending.at = now + self.limits.shutdown_timeout_s
            return [Say("the job is done; its scripts get their time to end"), WakeAt(self.ending.at)]
        if self.mode is Mode.STOPPING:
            self.ending.at = now
            return []
        settled = self.announced
        gently = signal is Signals.SIGTERM and self.mode is Mode.WORKING
        if gently and settled is not None and settled.kind is Kind.LIVE:
            self.mode = Mode.DRAINING
            self.ending = Ending(at=now + self.limits.shutdown_timeout_s)
            early = [Kill(s, w.spawn, Signals.SIGTERM) for s, w in self.workers.items() if is_idle(w, s, settled)]
            say = Say("draining: the workers finish their step and leave; a second signal ends them now")
            return [say, *early, WakeAt(now + self.limits.shutdown_timeout_s), *self._leave_if_empty()]
        self.mode, self.exit_code = Mode.STOPPING, 128 + signal
        effects: list[Effect] = [Say(f"ended by {signal.name}")]
        if self.limits.serves_store:
            effects.append(EndJob(1, f"{self.node}, which serves the store, was ended by {signal.name}"))
        return effects + self._stop(signal, now) + self._leave_if_empty()

    def _stop(self, signal: Signals, now: float) -> list[Effect]:
        self.ending = Ending(at=now + self.limits.shutdown_timeout_s)
        return self.ending.begin(self.workers, signal)

    def _leave_if_empty(self) -> list[Effect]:
        if self.workers:
            return []
        if self.limits.serves_store and self.mode is not Mode.SERVING:
            leaving = Publish(self.record())
            self.mode = Mode.SERVING
            text = "own workers are gone; still serving the store until the others end (a second signal ends the job)"
            return [leaving, Say(text)]
        return [Leave(self.exit_code)]

    def _job_closed(self, exit_code: int, reason: str, now: float) -> list[Effect]:
        self.exit_code = self.exit_code or exit_code
        if self.mode is Mode.SERVING or not self.workers:
            return [Leave(self.exit_code)]
        self.mode = Mode.STOPPING
        self.limits, self.ending = replace(self.limits, serves_store=False), Ending()
        effects: list[Effect] = []
        for slot, worker in self.workers.items():
            if worker.phase is WorkerPhase.FINISHED and exit_code == 0:
                continue  # it is past its last commit: let the script come to its end
            if worker.phase is WorkerPhase.READY:
                effects.append(Tell(slot, worker.spawn, Closed(exit_code=exit_code, reason=reason)))
            effects.append(Kill(slot, worker.spawn, Signals.SIGTERM))
        if effects:
            self.ending = Ending(at=now + self.limits.shutdown_timeout_s)
            effects.append(WakeAt(now + self.limits.shutdown_timeout_s))
        return effects
