"""The agent: one event loop, one deciding thread. Everything that happens becomes an event of `core/supervision`.

The loop waits on pidfds (a death is seen at once), channels, signals, the link to the coordinator and timers.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from elastic_runtime.agent.account import Account
from elastic_runtime.agent.crew import Crew, Key
from elastic_runtime.agent.doorplate import Doorplate
from elastic_runtime.agent.interfaces import interface_of
from elastic_runtime.agent.processes import open_many_files
from elastic_runtime.agent.settings import AgentSettings
from elastic_runtime.core.coordinator import Coordinator
from elastic_runtime.core.messages import Up, World
from elastic_runtime.core.node import Mode
from elastic_runtime.core.supervision import Supervisor
from elastic_runtime.core.supervision_events import (
    EndJob,
    Event,
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
    Tick,
    WakeAt,
)
from elastic_runtime.journal import Journal
from elastic_runtime.rendezvous import frames
from elastic_runtime.rendezvous.coordination import Coordination
from elastic_runtime.rendezvous.find import Found
from elastic_runtime.rendezvous.meeting import Meeting
from elastic_runtime.rendezvous.membership import Membership
from elastic_runtime.stores.group_stores import GroupStores

REJOIN = -1  # instead of an exit code: this node was declared gone and may come back as another one


class Agent:
    def __init__(self, settings: AgentSettings, found: Found, address: str, *, came_back: bool) -> None:
        self._settings = settings
        self._found = found
        self._address = address
        self._came_back = came_back
        self._node = _node_name()
        self._journal = Journal(settings.run_dir / "journal.jsonl", self._node)
        limits = replace(settings.limits, serves_store=found.hosts_store)
        self._machine = Supervisor(node=self._node, address=address, host=socket.gethostname(), limits=limits)
        self.crew = Crew(
            settings,
            interface=interface_of(address),
            heard=self._heard,
            ended=self._step,
            note=self._note,
        )
        self._stores = GroupStores(timeout_s=settings.find_timeout_s)
        self._meeting = Meeting()
        self._membership: Membership
        self._doorplate = Doorplate(self._say)
        self._wake: asyncio.TimerHandle | None = None
        self._exit: asyncio.Future[int]
        self._account = Account(self._journal, self._say)

    async def run(self) -> int:
        """Take part in the job until it ends, or this node leaves it. Returns the exit code, or REJOIN."""
        self._loop = asyncio.get_running_loop()
        self._exit = self._loop.create_future()
        self._loop.set_exception_handler(self._on_bug)
        self._membership = self._new_membership()
        self.crew.open()
        open_many_files()
        for number in self._settings.signals:
            self._loop.add_signal_handler(number, self._step, Interrupted(number))
        try:
            self._machine.meeting_port = await self._meeting.open(self._address)
            self._machine.store_port = await self._loop.run_in_executor(None, self._stores.open)
            self._machine.published = self._machine.record()
            opening = asyncio.create_task(self._membership.open())
            either: list[asyncio.Future[Any]] = [opening, self._exit]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not opening.done():  # a signal
                opening.cancel()
                return await self._exit
            opening.result()
            await self._doorplate.open(self._describe)
            self._note("agent_started", "", pid=os.getpid(), slots=self._settings.limits.slots)
            return await self._exit
        finally:
            await self._close()

    def _describe(self) -> dict[str, Any]:
        """What `elasticctl` on this machine needs to reach the coordinator."""
        settings, there = self._settings, self._membership.coordinates
        facts = {"run_id": settings.rendezvous.run_id, "node": self._node, "run_dir": str(settings.run_dir)}
        return facts if there is None else {**facts, "address": there.address, "port": there.port, "token": there.token}

    def _new_membership(self) -> Membership:
        return Membership(
            self._found,
            run_id=self._settings.rendezvous.run_id,
            node=self._node,
            address=self._address,
            silent_after_s=self._settings.silent_after_s,
            record=self._machine.record,
            coordination=self._new_coordination,
            on_frame=self._on_frame,
            on_over=self._on_over,
            note=self._note,
            tell=self._say,
            came_back=self._came_back,
        )

    def _new_coordination(self, on_overruled: Callable[[], None]) -> Coordination:
        return Coordination(
            machine=Coordinator(policy=self._settings.policy, silent_after_s=self._settings.silent_after_s),
            store=self._found.store,
            run_id=self._settings.rendezvous.run_id,
            own_node=self._node,
            journal=self._journal,
            on_alone=lambda: self._step(OthersLeft()),
            on_overruled=on_overruled,
            tell=self._say,
        )

    async def _close(self) -> None:
        if self._wake is not None:
            self._wake.cancel()
        for number in self._settings.signals:
            self._loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)  # the exit code is decided
        self.crew.kill()
        self._doorplate.close()
        await self._membership.close()
        self._meeting.close()
        self._stores.close()
        await self._loop.run_in_executor(None, self.crew.close)  # last: the console may take its time
        self._journal.close()

    def _on_bug(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An exception nobody expected ends the agent with its traceback: a job that hangs would be worse."""
        loop.default_exception_handler(context)
        if not self._exit.done():
            self._exit.set_exception(context.get("exception") or RuntimeError(context["message"]))

    # -- events -------------------------------------------------------------------------------------------------------

    def _on_frame(self, kind: str, fields: dict[str, Any]) -> None:
        match kind:
            case "announced":
                announced = frames.announced_from_json(fields)
                self._note(
                    "announced",
                    announced.reason,
                    world_size=announced.world_size,
                    planned=announced.planned,
                    kind=announced.kind,
                )
                assert self._membership.coordinates is not None
                self._meeting.token = self._membership.coordinates.token
                self._meeting.advance(announced.generation)
                self._account.settled(announced.generation, announced.reason)
                self.crew.events.settled(announced)
                self._step(announced)
            case "closed":
                code, reason = int(fields["exit_code"]), str(fields["reason"])
                if code:
                    self._say(f"the job ends: {reason}")
                self._note("closed", reason, exit_code=code)
                self._step(JobClosed(code, reason))
            case "drain" if self._machine.mode in (Mode.WAITING, Mode.WORKING):  # a second signal would be no drain
                self._step(Interrupted(signal.SIGTERM))
            case "evicted" if fields["rejoin"]:
                self._say(f"the job went on without this node ({fields['reason']}): it joins anew, with new workers")
                if not self._exit.done():
                    self._exit.set_result(REJOIN)
            case "evicted":
                self._say(f"the job goes on without this node: {fields['reason']}")
                self._step(JobClosed(int(fields["exit_code"]), f"evicted: {fields['reason']}"))

    def _on_over(self, reason: str) -> None:
        if self._exit.done() or self._machine.mode is Mode.STOPPING:
            return
        self._say(reason)
        self._step(JobClosed(1, reason))

    def _heard(self, key: Key, pid: int, message: Up) -> None:
        self._account.heard(message, self._generation, key[0], pid)
        self._step(Said(*key, message))

    # -- effects ------------------------------------------------------------------------------------------------------

    def _step(self, event: Event) -> None:
        if self._exit.done():
            return
        for effect in self._machine.step(event, time.monotonic()):
            self._carry_out(effect)
        if self._machine.mode is Mode.SERVING and not self._membership.others:
            self._step(OthersLeft())

    def _carry_out(self, effect: object) -> None:
        match effect:
            case Start():
                self.crew.start(effect)
            case Kill(slot, spawn, number):
                self.crew.signal(slot, spawn, number)
            case Tell(slot, spawn, message):
                if isinstance(message, World):
                    self.crew.announce(slot, spawn, message.rank)
                    message = replace(message, token=self._meeting.token)
                self.crew.tell(slot, spawn, message)
            case Publish(record):
                self._membership.publish(record)
            case OpenStore():
                opening = self._loop.run_in_executor(None, self._stores.open)
                opening.add_done_callback(lambda done: self._step(StoreOpened(done.result())))
            case EndJob(exit_code, reason):
                self._membership.end_job(exit_code, reason)
            case Say(text):
                self._note("said", text)
                self._say(text)
            case WakeAt(at):
                self._wake_at(at)
            case Leave(exit_code):
                event = "drained" if self._machine.mode is Mode.DRAINING else "finished"
                self._note(event, "", exit_code=exit_code)
                if not self._exit.done():
                    self._exit.set_result(exit_code)

    def _wake_at(self, at: float) -> None:
        if self._wake is not None:
            self._wake.cancel()
        self._wake = self._loop.call_later(max(0.0, at - time.monotonic()), self._step, Tick())

    @property
    def _generation(self) -> int:
        return self._machine.announced.generation if self._machine.announced else 0

    def _note(self, event: str, reason: str, **fields: Any) -> None:
        self._journal.write(event, generation=self._generation, reason=reason, **fields)

    def _say(self, text: str) -> None:
        print(f"elasticrun [{self._node}]: {text}", file=sys.stderr, flush=True)


def _node_name() -> str:
    """Unique for ever: an agent that is restarted on a machine is a new node."""
    return f"{socket.gethostname()}-{os.getpid()}-{os.urandom(2).hex()}"
