"""This node on the coordinator's seat: the claim in the store, and the coordination that it serves meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping

from elastic_runtime.errors import StoreError
from elastic_runtime.rendezvous.coordination import Coordination
from elastic_runtime.rendezvous.find import GENERATION, Coordinates, Found, new_token
from elastic_runtime.rendezvous.seat_watch import SeatWatch
from elastic_runtime.stores.base import Holder


class Chair:
    """`coordination(on_overruled)` makes a new one. `overruled` is set when another coordinator has written."""

    def __init__(
        self,
        found: Found,
        seat: SeatWatch,
        *,
        run_id: str,
        address: str,
        coordination: Callable[[Callable[[], None]], Coordination],
    ) -> None:
        self._found, self._seat = found, seat
        self._run_id, self._address = run_id, address
        self._new_coordination = coordination
        self._coordination: Coordination | None = None
        self.coordinates: Coordinates | None = None  # where the coordination listens
        self.term = 0  # of this node's last holding of the seat
        self.overruled = asyncio.Event()

    @property
    def is_taken(self) -> bool:
        """Whether a coordination runs here, whether or not it still has the seat."""
        return self._coordination is not None

    @property
    def others(self) -> int:
        return self._coordination.others if self._coordination is not None else 0

    async def claim(self, over: int, token: str | None) -> Holder | None:
        """Take the seat if it is held under `over`, None if it is not. `token` is the job's, if this node knows it."""
        if self._coordination is None:
            coordination = self._new_coordination(self.overruled.set)
            secret = await self._seat.ask(self._known_token) if token is None else token
            self.coordinates = await coordination.listen(self._address, secret)
            self._coordination = coordination
        there = self.coordinates
        assert there is not None
        value = {
            "run_id": self._run_id,
            "node": there.node,
            "address": there.address,
            "port": there.port,
            "token": there.token,
        }
        holder = await self._seat.ask(lambda: self._found.seat.claim(value, over))
        if holder is None:  # somebody was faster
            if not self._coordination.leads:
                self.clear()
            return None
        self.term = holder.term
        return holder

    async def lead(
        self, lost: Mapping[str, str], waits_s: Mapping[str, float], why: str, *, may_begin_anew: bool
    ) -> tuple[int, str] | None:
        """Begin, unless it did before. Returns exit code and reason of the job that had this id, if that is over."""
        assert self._coordination is not None
        if self._coordination.leads:
            return None
        return (await self._coordination.lead(lost, waits_s, why, may_begin_anew=may_begin_anew)).closed

    def clear(self) -> None:
        """Coordinate no more; the seat is somebody else's matter."""
        coordination, self._coordination, self.coordinates = self._coordination, None, None
        self.overruled.clear()
        if coordination is not None:
            closing = asyncio.get_running_loop().create_task(coordination.close())
            self._closing = closing  # a task that nobody holds may be forgotten

    async def leave(self) -> None:
        """Give the seat up, then coordinate no more."""
        if self._coordination is None:
            return
        with contextlib.suppress(StoreError):
            await self._seat.ask(self._found.seat.release)
        self.clear()
        await self._closing

    def _known_token(self) -> str:
        entry = self._found.store.get(GENERATION)
        return str(entry.value["token"]) if entry is not None else new_token()
