"""Many light nodes in one process: tasks, each with a link, a record, a read of the seat and a watch on it of its own.

They share one handle on the store. A light node never leads: where a real one would claim the seat after a coordinator
that is gone, it claims over a term that nobody holds, which costs the store the same and is always lost.
The argument is a JSON object: backend, port, run_id, numbers (of the nodes).
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rendezvous_parts import ADDRESS, Fleet, Node, count_requests, counts, obey, raise_file_limit

from elastic_runtime.errors import StoreError
from elastic_runtime.rendezvous.find import SEAT, Coordinates, Endpoint, Found, Rendezvous, find_store
from elastic_runtime.rendezvous.link import Link, Refused
from elastic_runtime.stores.etcd import EtcdStore

THREADS = 4  # for calls to the store, which block
SILENT_AFTER_S = 3.0
NOBODYS_TERM = 1 << 40


class Light:
    def __init__(self, fleet: Fleet, run_id: str, number: int, threads: ThreadPoolExecutor) -> None:
        self._fleet, self._run_id, self._threads = fleet, run_id, threads
        self.node = Node(number)
        self.there: Coordinates | None = None
        self._refused: Coordinates | None = None
        self._changed = asyncio.Event()

    async def take_part(self, found: Found) -> None:
        await self._look(found)
        while not self.node.is_out:
            while self.there is None or self.there == self._refused:
                self._changed.clear()
                await self._changed.wait()
            await self._stay(found, self.there)

    async def _look(self, found: Found) -> None:
        """Read who coordinates, and from now on see it change where it can."""
        loop, store = asyncio.get_running_loop(), found.store
        if isinstance(store, EtcdStore):
            await loop.run_in_executor(
                self._threads,
                store.watch,
                SEAT,
                lambda entry: loop.call_soon_threadsafe(self._see, entry.value if entry is not None else None),
            )
        else:
            await loop.run_in_executor(self._threads, store.wait, SEAT, 0, 10.0)
            holder = await loop.run_in_executor(self._threads, found.seat.holder)
            self._see(holder.value if holder is not None else None)

    def _see(self, value: dict[str, Any] | None) -> None:
        if value is not None:
            fields = {name: value[name] for name in ("node", "address", "port", "token")}
            self.there = Coordinates(**fields)
            self._changed.set()

    async def _stay(self, found: Found, there: Coordinates) -> None:
        """Link to a coordinator until it is lost."""
        link = Link(lambda kind, fields: self._fleet.heard(self.node, kind, fields))
        try:
            await link.open(there, self._run_id, self.node.record(), silent_after_s=SILENT_AFTER_S)
        except Refused:
            self._refused = there
            if isinstance(found.store, EtcdStore):
                await asyncio.get_running_loop().run_in_executor(self._threads, self._claim, found.store, there)
            return
        except StoreError:  # the machine is busy, or the coordinator died while it was called: once more
            return
        self.node.publish = link.publish
        self.node.say()
        await link.lost

    def _claim(self, store: EtcdStore, after: Coordinates) -> None:
        seat = store.seat(SEAT, SILENT_AFTER_S - 1.0)
        holder = seat.holder()
        if holder is not None and holder.value["port"] == after.port:  # nobody was faster
            seat.claim({"node": self.node.name}, NOBODYS_TERM)


class Commands:
    def __init__(self, plan: dict[str, Any]) -> None:
        self._plan = plan
        self._fleet = Fleet()
        threads = ThreadPoolExecutor(THREADS)
        self._lights = [Light(self._fleet, plan["run_id"], number, threads) for number in plan["numbers"]]
        self._fleet.nodes = [light.node for light in self._lights]
        self._task: asyncio.Task[None] | None = None

    async def carry_out(self, command: dict[str, Any]) -> Any:
        match command:
            case {"do": "join"}:
                began = time.monotonic()
                self._task = asyncio.create_task(self._join())
                self._task.add_done_callback(lambda done: done.result())
                return began
            case {"do": "until", "kind": kind, "size": size, "after": after}:
                return await self._fleet.until(kind, size, after)
            case {"do": "open"}:
                for light in self._lights:
                    light.node.open = True
                    light.node.say()
            case {"do": "count"}:
                there = self._lights[0].there
                store_port = self._plan["port"] if self._plan["backend"] == "tcp" else 0  # etcd counts by itself
                return counts(there.port if there is not None else 0, store_port)
        return None

    async def _join(self) -> None:
        plan = self._plan
        rendezvous = Rendezvous(
            backend=plan["backend"],
            endpoints=(Endpoint(host=ADDRESS, port=plan["port"]),),
            run_id=plan["run_id"],
            may_host=False,
        )
        found = await asyncio.to_thread(find_store, rendezvous, timeout_s=20.0, silent_after_s=SILENT_AFTER_S)
        await asyncio.gather(*(light.take_part(found) for light in self._lights))


async def main() -> None:
    commands = Commands(json.loads(sys.argv[1]))
    await obey(commands.carry_out)


raise_file_limit()
count_requests()
asyncio.run(main())
