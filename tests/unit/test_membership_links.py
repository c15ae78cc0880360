"""A node's membership over real links, with a store in this process's memory."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from elastic_runtime.core.coordinator import Coordinator
from elastic_runtime.core.view import Policy
from elastic_runtime.core.world import NodeRecord
from elastic_runtime.journal import Journal
from elastic_runtime.rendezvous.coordination import Coordination
from elastic_runtime.rendezvous.find import SEAT, Endpoint, Found
from elastic_runtime.rendezvous.membership import Membership
from elastic_runtime.stores.memory import MemoryServer
from elastic_runtime.stores.seat import KeySeat

ADDRESS, RUN_ID, LIMIT_S = "127.0.0.1", "job", 20.0


def node_record(node: str) -> NodeRecord:
    return NodeRecord(node=node, address=ADDRESS, slots=1, store_port=1)


class Watched(Coordinator):
    """Tells what each record that comes in says."""

    heard: asyncio.Queue[NodeRecord]

    def _reported(self, record, now):  # type: ignore[no-untyped-def]
        self.heard.put_nowait(record)
        return super()._reported(record, now)


def membership(
    server: MemoryServer, machine: Coordinator, journal: Journal, node: str, record: Callable[[], NodeRecord]
) -> Membership:
    store = server.handle()
    found = Found(
        store=store,
        seat=KeySeat(store, SEAT),
        endpoints=(Endpoint(host=ADDRESS, port=0),),
        hosts_store=node == "first",
        passes_on=False,
    )

    def coordination(on_overruled: Callable[[], None]) -> Coordination:
        return Coordination(
            machine=machine,
            store=store,
            run_id=RUN_ID,
            own_node=node,
            journal=journal,
            on_alone=lambda: None,
            on_overruled=on_overruled,
            tell=lambda text: None,
        )

    return Membership(
        found,
        run_id=RUN_ID,
        node=node,
        address=ADDRESS,
        silent_after_s=3.0,
        record=record,
        coordination=coordination,
        on_frame=lambda kind, fields: None,
        on_over=lambda reason: None,
        note=lambda event, reason: None,
        tell=lambda text: None,
    )


def test_a_record_that_changes_while_a_node_links_is_not_lost(tmp_path: Path) -> None:
    async def main() -> None:
        server, journal = MemoryServer(), Journal(tmp_path / "journal.jsonl", "first")
        machine = Watched(policy=Policy(min_nodes=1, max_nodes=2))
        machine.heard = asyncio.Queue()
        present = node_record("second")

        def change() -> None:
            nonlocal present
            present = replace(present, draining=True)
            second.publish(present)

        def record() -> NodeRecord:
            if not present.draining:  # the hello is being written: it says no more than this
                asyncio.get_running_loop().call_soon(change)
            return present

        first = membership(server, machine, journal, "first", lambda: node_record("first"))
        second = membership(server, machine, journal, "second", record)
        await first.open()
        await second.open()
        async with asyncio.timeout(LIMIT_S):
            while not (await machine.heard.get()).draining:
                pass
        await second.close()
        await first.close()
        journal.close()

    asyncio.run(main())


def test_a_coordinator_that_is_busy_has_room_for_all_nodes_that_come_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        journal = Journal(tmp_path / "journal.jsonl", "first")
        coordination = Coordination(
            machine=Coordinator(policy=Policy(min_nodes=1, max_nodes=2)),
            store=MemoryServer().handle(),
            run_id=RUN_ID,
            own_node="first",
            journal=journal,
            on_alone=lambda: None,
            on_overruled=lambda: None,
            tell=lambda text: None,
        )
        there = await coordination.listen(ADDRESS, "token")
        with contextlib.ExitStack() as stack:
            for _ in range(400):  # nothing is accepted meanwhile: this is the loop's own thread
                stack.enter_context(socket.create_connection((there.address, there.port), timeout=0.9))
        await coordination.close()
        journal.close()

    asyncio.run(main())
