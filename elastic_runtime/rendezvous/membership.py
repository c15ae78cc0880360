"""A node's place in its job: linked to the coordinator, and coordinating itself when it holds the seat.

What to do about the seat is decided in `core/succession`; here it is found out how things stand, and done. While the
store or the coordinator is away the workers train on: nothing here touches them.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any

from elastic_runtime.core.succession import Await, Claim, Connect, GiveUp, Situation, next_move, why_lost
from elastic_runtime.core.world import NodeRecord
from elastic_runtime.errors import StoreError
from elastic_runtime.rendezvous.chair import Chair
from elastic_runtime.rendezvous.coordination import Coordination
from elastic_runtime.rendezvous.find import Coordinates, Found
from elastic_runtime.rendezvous.link import Link, Refused
from elastic_runtime.rendezvous.seat_watch import SeatWatch, look_at
from elastic_runtime.stores.base import Holder

STORE_RETRY_S = 1.0
FIXED_HOST_SILENT_S = 10.0  # where the seat cannot move nothing can be settled without it: it is given longer
PREDECESSOR_WAIT_S = 1.0  # for the node of a coordinator that lost its seat by silence, if it lives


class Membership:
    """`record()` is this node's present record, `on_frame(kind, fields)` is called for what the coordinator sends,
    `on_over(reason)` once when this node cannot take part any more, `note(event, reason)` for the journal. `came_back`:
    it was evicted from this job; if that is over it does not begin another one."""

    def __init__(
        self,
        found: Found,
        *,
        run_id: str,
        node: str,
        address: str,
        silent_after_s: float,
        record: Callable[[], NodeRecord],
        coordination: Callable[[Callable[[], None]], Coordination],
        on_frame: Callable[[str, dict[str, Any]], None],
        on_over: Callable[[str], None],
        note: Callable[[str, str], None],
        tell: Callable[[str], None],
        came_back: bool = False,
    ) -> None:
        self._found = found
        self._run_id, self._node, self._address = run_id, node, address
        self._silent_after_s = silent_after_s
        self._record = record
        self._on_frame, self._on_over = on_frame, on_over
        self._note, self._tell = note, tell
        self._came_back = came_back
        self._loop = asyncio.get_running_loop()
        self._seat = SeatWatch(found.seat)
        self._chair = Chair(found, self._seat, run_id=run_id, address=address, coordination=coordination)
        self._task: asyncio.Task[None] | None = None
        self._joined: asyncio.Future[None] = self._loop.create_future()
        self.coordinates: Coordinates | None = None  # of the coordinator that this node is or was linked to
        self._link: Link | None = None
        self._holder: Holder | None = None
        self._term = 0  # of the last coordinator this node knew, and what became of the connection to it
        self._refused = self._silent = 0
        self._silent_at = 0.0
        self._empty_since: float | None = None
        self._store_is_out = False
        self._end: tuple[int, str] | None = None  # what this node asks of the job, told to each coordinator
        self._dismissed = False  # the job is over, or goes on without this node: no coordinator is looked for any more

    async def open(self) -> None:
        """Join. Returns once this node is linked. Raises StoreError if that cannot be."""
        self._task = asyncio.create_task(self._keep())
        await asyncio.wait({self._task, self._joined}, return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            self._task.result()
        self._task.add_done_callback(self._ended)

    def publish(self, record: NodeRecord) -> None:
        if self._link is not None:  # otherwise the next hello carries it
            self._link.publish(record)

    def end_job(self, exit_code: int, reason: str) -> None:
        self._end = (exit_code, reason)
        if self._link is not None:
            self._link.end_job(exit_code, reason)

    @property
    def others(self) -> int:
        """How many other nodes are linked, where this one coordinates."""
        return self._chair.others

    async def close(self) -> None:
        """Leave, with a goodbye; give the seat up."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError, StoreError):
                await self._task
        if self._link is not None:
            await self._link.close()
        await self._chair.leave()
        self._found.store.close()
        self._seat.close()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, StoreError):
            self._on_over(str(error))
        elif error is not None:
            self._loop.call_exception_handler({"message": "membership", "exception": error})

    # -- the seat -----------------------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        while not self._dismissed:
            try:
                await self._go_on()
                self._store_is_out = False
            except StoreError as error:
                if not self._found.passes_on:
                    where = f"the agent that serves the store at {self._found.where}"
                    raise StoreError(f"{where} is gone ({error}): the job cannot go on without it") from error
                if not self._joined.done():
                    raise
                if not self._store_is_out:
                    self._store_is_out = True
                    self._note("store_out", f"the store at {self._found.where} cannot be reached: {error}")
                    self._tell(
                        f"the store at {self._found.where} cannot be reached: training goes on, membership waits"
                    )
                await asyncio.sleep(STORE_RETRY_S)

    async def _go_on(self) -> None:
        """Look, decide, do; then wait for news."""
        if self._found.passes_on or self._holder is None:  # otherwise it is whose it was
            self._see(await self._seat.ask(self._found.seat.holder))
        now = time.monotonic()
        match next_move(self._situation(), now, reclaim_s=self._silent_after_s / 6):
            case Claim(over=over, reason=reason):
                await self._claim(over, reason)
            case Connect():
                if self._link is None:
                    await self._connect()
                if self._link is not None:
                    await self._news()
            case Await(reason=reason, until=until):
                self._note("awaits", reason)
                await self._news(for_s=None if until is None else max(0.0, until - now))
            case GiveUp(reason=reason):
                raise StoreError(reason)

    def _situation(self) -> Situation:
        holder = self._holder
        return Situation(
            may_claim=self._found.passes_on or self._found.hosts_store,
            passes_on=self._found.passes_on,
            term=holder.term if holder else 0,
            holder=str(holder.value["node"]) if holder else "",
            mine=holder is not None and holder.term == self._chair.term,
            coordinating=self._chair.is_taken,
            linked=self._link is not None,
            refused=self._refused,
            silent=self._silent,
            silent_at=self._silent_at,
            empty_since=self._empty_since,
        )

    def _see(self, holder: Holder | None) -> None:
        """Take in who holds the seat; drop what belongs to another holder than that."""
        self._holder = holder
        if holder is None:
            self._empty_since = time.monotonic() if self._empty_since is None else self._empty_since
            return
        self._empty_since = None
        self._term = holder.term
        value = holder.value
        there = Coordinates(node=value["node"], address=value["address"], port=value["port"], token=value["token"])
        if there != self.coordinates:
            self.coordinates = there
            if self._link is not None:
                self._loop.create_task(self._link.close())
                self._link = None
        if self._chair.is_taken and there != self._chair.coordinates:
            self._note("overruled", f"{there.node} coordinates now")
            self._chair.clear()

    async def _claim(self, over: int, reason: str) -> None:
        before = self.coordinates if self.coordinates is not None and self.coordinates.node != self._node else None
        lost = why_lost(self._situation(), over, self._term)
        missing = {before.node: lost} if before is not None and lost else {}
        waits_s = {before.node: PREDECESSOR_WAIT_S} if before is not None else {}
        token = self.coordinates.token if self.coordinates is not None else None
        if (holder := await self._chair.claim(over, token)) is not None:
            self._note("coordinates", reason)
            await self._lead(missing, waits_s, reason)
            self._see(holder)
            if self._link is None:  # at once: the store may be gone again before it is asked who holds the seat
                await self._connect()

    async def _lead(self, lost: Mapping[str, str], waits_s: Mapping[str, float], why: str) -> None:
        was_here = self._came_back or self._joined.done()
        closed = await self._chair.lead(lost, waits_s, why, may_begin_anew=not was_here)
        if closed is not None and was_here:  # its end had not come to this node's ears
            await self._chair.leave()
            if not self._joined.done():
                self._joined.set_result(None)
            self._on_frame("closed", {"exit_code": closed[0], "reason": closed[1]})
            await self._loop.create_future()  # nothing else is to come

    # -- the link -----------------------------------------------------------------------------------------------------

    async def _connect(self) -> None:
        assert self.coordinates is not None
        if self._chair.is_taken:  # the store was away when it was to begin
            await self._lead({}, {}, "it has the seat")
        link, term, record = Link(self._heard), self._term, self._record()
        silent_after_s = max(1.0, self._silent_after_s - 1.0) if self._found.passes_on else FIXED_HOST_SILENT_S
        opening = asyncio.ensure_future(
            link.open(self.coordinates, self._run_id, record, silent_after_s=silent_after_s)
        )
        opening.add_done_callback(look_at)  # what is cancelled may fail before it hears of that
        try:
            try:
                await self._news(opening)
            except StoreError:  # the coordinator may be there all the same, and would miss this node's beats
                await asyncio.wait({opening})
            if not opening.done():  # the seat has changed meanwhile
                opening.cancel()
                await link.close()
                return
            opening.result()
        except Refused as error:
            self._refused = term
            self._note("unlinked", str(error))
        except StoreError as error:
            self._silent, self._silent_at = term, time.monotonic()
            self._note("unlinked", str(error))
        else:
            self._link, self._silent = link, 0
            if (present := self._record()) != record:  # it has changed since the hello was written
                link.publish(present)
            if self._end is not None:
                link.end_job(*self._end)
            if not self._joined.done():
                self._joined.set_result(None)
        finally:
            opening.cancel()

    def _heard(self, kind: str, fields: dict[str, Any]) -> None:
        self._dismissed = self._dismissed or kind in ("closed", "evicted")
        self._on_frame(kind, fields)

    async def _news(self, other: asyncio.Future[Any] | None = None, *, for_s: float | None = None) -> None:
        """Wait until the seat changes, the link is lost, this coordinator is overruled, or `other` is done."""
        overruled = asyncio.ensure_future(self._chair.overruled.wait())
        awaited: set[asyncio.Future[Any]] = {overruled}
        if other is not None:
            awaited.add(other)
        if self._link is not None:
            awaited.add(self._link.lost)
        if self._found.passes_on or self._holder is None:  # a seat that cannot move need not be watched
            awaited.add(self._seat.changed(self._holder.term if self._holder else 0))
        try:
            await asyncio.wait(awaited, timeout=for_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            overruled.cancel()
        self._seat.check()
        if self._chair.overruled.is_set():
            self._note("overruled", "another coordinator has written to the store")
            self._chair.clear()
        if self._link is not None and self._link.lost.done():
            self._note("unlinked", self._link.lost.result())
            self._link = None
