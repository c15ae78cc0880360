"""The worker processes of a node, between the agent that decides about them and the system that runs them."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable
from dataclasses import replace

from elastic_runtime.agent.failures import Death, Failures
from elastic_runtime.agent.guardian import Guardian
from elastic_runtime.agent.logs import Logs
from elastic_runtime.agent.processes import Process, adopt_orphans, end_orphans, reap_strangers, start_process
from elastic_runtime.agent.settings import AgentSettings
from elastic_runtime.agent.torch_events import TorchEvents
from elastic_runtime.agent.worker_environment import JobFacts, worker_environment
from elastic_runtime.channel import Channel
from elastic_runtime.core.messages import Down, Failed, Up
from elastic_runtime.core.supervision_events import Exited, Start
from elastic_runtime.environment import RUN_DIR

Key = tuple[int, int]  # slot, spawn


class Crew:
    """Calls back on the event loop: `heard` for each message of a worker, `ended` once for each, after its messages."""

    def __init__(
        self,
        settings: AgentSettings,
        *,
        interface: str | None,
        heard: Callable[[Key, int, Up], None],
        ended: Callable[[Exited], None],
        note: Callable[..., None],
    ) -> None:
        self._settings = settings
        self._heard, self._ended, self._note = heard, ended, note
        self._processes: dict[Key, Process] = {}
        slots = settings.limits.slots
        self._logs = Logs(settings.output, run_dir=settings.run_dir, role=settings.role, slots=slots)
        self.failures = Failures(settings.entrypoint)
        self.events = TorchEvents(
            settings.event_log,
            run_id=settings.rendezvous.run_id,
            role=settings.role,
            entrypoint=settings.entrypoint,
            backend="c10d" if settings.rendezvous.backend == "tcp" else settings.rendezvous.backend,
            max_restarts=settings.limits.max_restarts or 0,
        )
        self._job = JobFacts(
            run_id=settings.rendezvous.run_id,
            run_dir=settings.run_dir,
            role=settings.role,
            slots=slots,
            max_restarts=settings.limits.max_restarts or 0,
            interface=interface,
            inherited=settings.environment,
            virtual_local_rank=settings.virtual_local_rank,
        )

    def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._guardian = Guardian(f"{RUN_DIR}={self._settings.run_dir}", self._settings.environment)
        adopt_orphans()
        self._loop.add_signal_handler(signal.SIGCHLD, self._reap_strangers)

    def start(self, start: Start) -> None:
        ours, theirs = Channel.pair()
        key = (start.slot, start.spawn)

        def environment_of(slot: int) -> dict[str, str]:
            return worker_environment(self._job, replace(start, slot=slot), theirs.fileno())

        output = self._logs.place(start, environment_of)
        place = start.announced.members.get((start.slot, 0)) or start.announced.members.get(key)
        prefix = self._settings.command_prefixes.get(start.slot, ())
        command = [part.replace("${local_rank}", str(start.slot)) for part in (*prefix, *self._settings.command)]
        rank = place.rank if place else None
        process = start_process(command, output, ours, theirs, rank=rank)
        ours.set_blocking(False)
        self._processes[key] = process
        self.failures.replaced(start.slot)
        self.events.started(start, rank, process.pid)
        self._loop.add_reader(process.pidfd, self._on_exit, key)
        self._loop.add_reader(ours.fileno(), self._on_packet, key)
        self._note("worker_started", "", slot=start.slot, spawn=start.spawn, pid=process.pid)

    def tell(self, slot: int, spawn: int, message: Down) -> None:
        self._processes[slot, spawn].channel.send(message)

    def announce(self, slot: int, spawn: int, rank: int) -> None:
        """The rank that a failure of this worker is told under from now on."""
        self._processes[slot, spawn].rank = rank if rank >= 0 else None

    def signal(self, slot: int, spawn: int, number: signal.Signals) -> None:
        self._note("worker_signalled", number.name, slot=slot)
        self._processes[slot, spawn].signal_group(number)

    def kill(self) -> None:
        """SIGKILL for whoever is left, and for what the workers left behind."""
        for process in self._processes.values():
            process.signal_group(signal.SIGKILL)
            process.reap()
            self._logs.ended(process.output)
        self._processes.clear()
        self._guardian.dismiss()
        self._loop.remove_signal_handler(signal.SIGCHLD)
        end_orphans({RUN_DIR: str(self._settings.run_dir)})

    def close(self) -> None:
        """Blocks until all output is where it belongs."""
        self._logs.close()

    def _on_packet(self, key: Key) -> None:
        process = self._processes[key]
        while True:
            try:
                message = process.channel.receive()
            except BlockingIOError:
                return
            if message is None:
                self._loop.remove_reader(process.channel.fileno())
                return
            if isinstance(message, Failed):
                process.told = message.error
            self._heard(key, process.pid, message)  # type: ignore[arg-type]

    def _on_exit(self, key: Key) -> None:
        process = self._processes[key]
        self._loop.remove_reader(process.pidfd)
        with contextlib.suppress(ValueError, KeyError):
            self._on_packet(key)  # what it said before it died comes first
        self._loop.remove_reader(process.channel.fileno())
        del self._processes[key]
        signalled_at = process.signalled_at
        exit_code = process.reap()
        self._logs.ended(process.output)
        death = Death(
            slot=key[0],
            rank=process.rank,
            pid=process.pid,
            exit_code=exit_code,
            at=time.time(),
            signalled_at=signalled_at,
            output=process.output,
        )
        why = self.failures.add(death, told=process.told)
        place = {"slot": key[0], "spawn": key[1], "rank": process.rank}
        self._note("worker_exited", why.strip(), **place, pid=process.pid, exit_code=exit_code)
        self.events.ended(death)
        self._ended(Exited(*key, exit_code, why))
        self._reap_strangers()

    def _reap_strangers(self) -> None:
        reap_strangers({self._guardian.pid, *(process.pid for process in self._processes.values())})
