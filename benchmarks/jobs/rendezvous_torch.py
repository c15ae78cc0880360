"""Many of torch's rendezvous handlers in one process, a thread and a connection to the store for each.

The argument is a JSON object: port (of a TCPStore), run_id, numbers (of the nodes), nodes (in all), limit_s.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
import time
from datetime import timedelta
from typing import Any

from rendezvous_parts import ADDRESS, counted, obey, raise_file_limit
from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler, RendezvousTimeout

from elastic_runtime.stores.resolver import without_dns

BASE64 = 4 / 3  # the backend's own encoding of a state
counting = threading.Lock()


class Counted(C10dRendezvousBackend):
    """Counts states read and written, and what they weigh on the wire."""

    def get_state(self) -> Any:
        found = super().get_state()
        self._count(found)
        return found

    def set_state(self, state: bytes, token: Any = None) -> Any:
        found = super().set_state(state, token)
        expected = len(token) if isinstance(token, bytes) else 0
        self._count(found, sent_bytes=round(len(state) * BASE64) + expected)
        return found

    def _count(self, found: Any, sent_bytes: int = 0) -> None:
        with counting:
            counted["requests"] += 1
            counted["bytes"] += sent_bytes + (round(len(found[0]) * BASE64) if found is not None else 0)


class Commands:
    def __init__(self, plan: dict[str, Any]) -> None:
        self._plan = plan
        self._done: list[float] = []
        self._all: asyncio.Future[float | None] = asyncio.get_running_loop().create_future()

    async def carry_out(self, command: dict[str, Any]) -> Any:
        loop = asyncio.get_running_loop()
        match command:
            case {"do": "join"}:
                began = time.monotonic()
                for number in self._plan["numbers"]:
                    threading.Thread(target=self._join, args=(number, loop), daemon=True).start()
                return began
            case {"do": "until"}:
                return await self._all
            case {"do": "count"}:
                with counting:
                    return dict(counted)
        return None

    def _join(self, number: int, loop: asyncio.AbstractEventLoop) -> None:
        plan = self._plan
        limit = timedelta(seconds=plan["limit_s"])
        try:
            with without_dns():
                store = TCPStore(ADDRESS, plan["port"], is_master=False, timeout=limit)
            self._handler = DynamicRendezvousHandler.from_backend(
                plan["run_id"],
                store,
                Counted(store, plan["run_id"]),
                plan["nodes"],
                plan["nodes"],
                local_addr=ADDRESS,
                timeout=RendezvousTimeout(join=limit),
            )
            self._handler.next_rendezvous()
        except Exception as error:  # whatever it is, this size was not reached
            print(f"torch, node {number}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            loop.call_soon_threadsafe(self._ended, None)
        else:
            loop.call_soon_threadsafe(self._ended, time.monotonic())

    def _ended(self, at: float | None) -> None:
        if at is not None:
            self._done.append(at)
        if not self._all.done() and (at is None or len(self._done) == len(self._plan["numbers"])):
            self._all.set_result(at)


async def main() -> None:
    commands = Commands(json.loads(sys.argv[1]))
    await obey(commands.carry_out)


raise_file_limit()
logging.disable(logging.WARNING)
asyncio.run(main())
