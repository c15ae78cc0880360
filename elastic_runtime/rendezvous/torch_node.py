"""A node whose agent is torch's own: its place in the membership, and the group of processes that it is in.

Lives on one event loop. All that torch's agent does is to ask for the next group: for the first one, after its workers
failed, and when it is told that something waits (`waits`). It says neither when its workers run nor when they are done,
so the record names no workers, and a group begins once all of its agents have asked for it (`torch_group`).
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousInfo,
)

from elastic_runtime.core.coordinator import Coordinator
from elastic_runtime.core.supervision_events import Announced
from elastic_runtime.core.view import Kind, Policy
from elastic_runtime.core.world import NodeRecord
from elastic_runtime.journal import Journal
from elastic_runtime.rendezvous import frames
from elastic_runtime.rendezvous.coordination import Coordination
from elastic_runtime.rendezvous.find import Found, Rendezvous, find_store, own_address
from elastic_runtime.rendezvous.membership import Membership
from elastic_runtime.rendezvous.torch_group import AGENT_STORE_S, enter, in_thread
from elastic_runtime.stores.group_stores import GroupStores

CLOSED_S = 5.0  # for the coordinator to say that the job is closed


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    rendezvous: Rendezvous
    policy: Policy
    local_addr: str | None  # None: found out by `own_address`
    silent_after_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Over:
    """Why there is no next group for this node. `stops`: its workers are to be ended now. `rejoins`: as another one."""

    error: RendezvousError
    stops: bool
    rejoins: bool = False


class TorchNode:
    """One incarnation. `join` once, then `next_group` again and again, then `end_job` or not, then `leave`."""

    def __init__(self, settings: NodeSettings, journal: Path) -> None:
        self._settings = settings
        self.node = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(2).hex()}"
        self._loop = asyncio.get_running_loop()
        self._journal = Journal(journal, self.node)
        self._stores = GroupStores(timeout_s=AGENT_STORE_S)
        self._found: Found | None = None
        self._membership: Membership | None = None
        self._address = ""
        self._store_port = self._meeting_port = 0
        self._announced: Announced | None = None
        self._group = self._failed_group = 0
        self._past = 0  # the newest generation that was entered, or given up before it began
        self._leaving: asyncio.Task[None] | None = None
        self._has_joined = self._has_left = False
        self._changed = asyncio.Event()
        self.over: Over | None = None
        self.closed: tuple[int, str] | None = None
        self.is_member = False  # whether torch's agent has a group and does not ask for another one

    @property
    def waits(self) -> bool:
        """Whether torch's agent is to end its workers and to ask for the next group: because of a loss, a failure
        elsewhere, a newcomer, or because it has no place in the job any more."""
        if self.over is not None:
            return self.over.stops
        return self._announced is not None and self._announced.generation > self._group

    async def join(self) -> None:
        """Take a place in the job. Raises ConfigurationError or StoreError if that cannot be."""
        rendezvous, silent_after_s = self._settings.rendezvous, self._settings.silent_after_s
        limit_s = self._settings.policy.join_timeout_s
        find = partial(find_store, rendezvous, timeout_s=limit_s, silent_after_s=silent_after_s)
        self._found = found = await in_thread(find)
        given = self._settings.local_addr
        self._address = given if given else await in_thread(partial(own_address, found))
        self._store_port = self._meeting_port = await in_thread(self._stores.open)
        self._membership = Membership(
            found,
            run_id=rendezvous.run_id,
            node=self.node,
            address=self._address,
            silent_after_s=silent_after_s,
            record=self._record,
            coordination=self._new_coordination,
            on_frame=self._on_frame,
            on_over=lambda reason: self._end(RendezvousConnectionError(reason), stops=True),
            note=self._note,
            tell=self._say,
        )
        await self._membership.open()
        self._has_joined = True
        if self.over is not None:
            self._begin_to_leave()

    async def next_group(self) -> RendezvousInfo:
        """The next group that this node is in, as soon as all of its nodes have asked for it.

        Asked for while the present one is the newest, it means that the workers here have failed.
        """
        self.is_member = False
        if self._announced is not None and self._announced.generation == self._group:
            self._failed_group = self._group
            self._publish()
        while True:
            announced = await self._next_start()
            self._past = announced.generation
            is_void = partial(self._is_void, announced)
            if (info := await enter(announced, self.node, is_void=is_void, changed=self._changed)) is not None:
                break
        self._group, self.is_member = announced.generation, True
        self._publish()
        self._note("group", announced.reason, rank=info.rank, nodes=info.world_size)
        return info

    async def end_job(self, exit_code: int, reason: str) -> None:
        """End the job for everybody; returns once that is known, or after a while."""
        if self._membership is None or self.over is not None:
            return
        self._membership.end_job(exit_code, reason)
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSED_S):
                while self.over is None:
                    self._changed.clear()
                    await self._changed.wait()

    async def leave(self) -> None:
        """With a goodbye. May be repeated."""
        await self._begin_to_leave()

    def _begin_to_leave(self) -> asyncio.Task[None]:
        if self._leaving is None:
            self._leaving = self._loop.create_task(self._leave())
        return self._leaving

    async def _leave(self) -> None:
        found, membership = self._found, self._membership
        if membership is not None:
            if self.over is None and found is not None and found.hosts_store and membership.others:
                await self.end_job(1, f"{self.node}, which serves the store, was ended")
            membership.publish(self._record(draining=True))
            await membership.close()
        elif found is not None:
            found.store.close()
        self._stores.close()
        self._note("left", "" if self.over is None else str(self.over.error))
        self._has_left = True
        self._journal.close()

    # -- what the coordinator says ------------------------------------------------------------------------------------

    def _on_frame(self, kind: str, fields: dict[str, Any]) -> None:
        match kind:
            case "announced":
                self._take(frames.announced_from_json(fields))
            case "closed":
                code, reason = int(fields["exit_code"]), str(fields["reason"])
                self.closed = (code, reason)
                self._end(RendezvousClosedError(f"the job has ended: {reason}"), stops=code != 0)
            case "drain" if self._found is not None and self._found.hosts_store:
                self._say("this node serves the store and cannot leave before the others")
            case "drain":
                self._say("asked to leave")
                os.kill(os.getpid(), signal.SIGTERM)  # torch's agent ends its workers, then itself
            case "evicted" if self.over is None:
                reason, rejoins = str(fields["reason"]), bool(fields["rejoin"])
                self._say(f"the job goes on without this node: {reason}{'; it joins anew' if rejoins else ''}")
                error = RendezvousError(f"the job goes on without this node: {reason}")
                self._end(error, stops=True, rejoins=rejoins)
                if self._has_joined:  # what is being opened is not to be closed under it
                    self._begin_to_leave()

    def _take(self, announced: Announced) -> None:
        if self._announced is not None and announced.generation <= self._announced.generation:
            return
        self._announced = announced
        self._note("announced", announced.reason, world_size=announced.world_size)
        if announced.host_node == self.node and announced.store_port == self._store_port:
            self._store_port = 0  # used: no two groups may share one
            self._loop.create_task(self._open_another())
        self._changed.set()

    async def _open_another(self) -> None:
        self._store_port = self._meeting_port = await in_thread(self._stores.open)
        self._publish()

    def _end(self, error: RendezvousError, *, stops: bool, rejoins: bool = False) -> None:
        if self.over is None:
            self.over = Over(error=error, stops=stops, rejoins=rejoins)
            self._note("over", str(error))
            self._changed.set()

    def fail(self, error: BaseException) -> None:
        """A bug: the agent is to end by it and not to wait for what never comes."""
        self._end(RendezvousError(f"the rendezvous is broken: {error!r}"), stops=True)

    # -- groups -------------------------------------------------------------------------------------------------------

    async def _next_start(self) -> Announced:
        while (announced := self._startable()) is None:
            self._changed.clear()
            await self._changed.wait()
        return announced

    def _startable(self) -> Announced | None:
        if self.over is not None:
            raise self.over.error
        newest = self._announced
        if newest is None or newest.kind is not Kind.START or not newest.members:
            return None  # left out: there is no room, or not yet
        return newest if newest.generation > self._past else None

    def _is_void(self, announced: Announced) -> bool:
        return self.over is not None or self._announced is not announced

    # -- what others are told -----------------------------------------------------------------------------------------

    def _record(self, *, draining: bool = False) -> NodeRecord:
        return NodeRecord(
            node=self.node,
            address=self._address,
            slots=1,
            store_port=self._store_port,
            meeting_port=self._meeting_port,
            draining=draining,
            group=self._group,
            failed_group=self._failed_group,
            host=socket.gethostname(),
            front="torchrun",
        )

    def _publish(self) -> None:
        if self._membership is not None and self._leaving is None:
            self._membership.publish(self._record())

    def _new_coordination(self, on_overruled: Callable[[], None]) -> Coordination:
        assert self._found is not None
        return Coordination(
            machine=Coordinator(policy=self._settings.policy, silent_after_s=self._settings.silent_after_s),
            store=self._found.store,
            run_id=self._settings.rendezvous.run_id,
            own_node=self.node,
            journal=self._journal,
            on_alone=lambda: None,
            on_overruled=on_overruled,
            tell=self._say,
        )

    def _note(self, event: str, reason: str, **fields: Any) -> None:
        generation = self._announced.generation if self._announced is not None else 0
        if not self._has_left:
            self._journal.write(event, generation=generation, reason=reason, **fields)

    def _say(self, text: str) -> None:
        if self._leaving is None:  # then nobody is concerned any more
            print(f"torchrun [{self.node}]: {text}", file=sys.stderr, flush=True)
