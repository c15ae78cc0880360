"""Membership where the seat passes on, and a job that is over: nobody follows it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from elastic_runtime.core.coordinator import Coordinator
from elastic_runtime.core.handover import Handover
from elastic_runtime.core.view import Generation, Policy
from elastic_runtime.core.world import NodeRecord
from elastic_runtime.journal import Journal
from elastic_runtime.rendezvous.coordination import Coordination
from elastic_runtime.rendezvous.documents import handover_to_json
from elastic_runtime.rendezvous.find import GENERATION, SEAT, Endpoint, Found
from elastic_runtime.rendezvous.membership import Membership
from elastic_runtime.stores.memory import MemoryServer
from elastic_runtime.stores.seat import KeySeat

ADDRESS, RUN_ID, LIMIT_S = "127.0.0.1", "job", 20.0


class Node:
    """A node's membership, and what it is told."""

    def __init__(self, server: MemoryServer, journal: Journal, name: str, *, came_back: bool = False) -> None:
        store = server.handle()
        self.seat = KeySeat(store, SEAT)
        self.heard: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue()
        self.notes: list[str] = []

        def coordination(on_overruled: Callable[[], None]) -> Coordination:
            return Coordination(
                machine=Coordinator(policy=Policy(min_nodes=1, max_nodes=2)),
                store=store,
                run_id=RUN_ID,
                own_node=name,
                journal=journal,
                on_alone=lambda: None,
                on_overruled=on_overruled,
                tell=lambda text: None,
            )

        self.membership = Membership(
            Found(
                store=store,
                seat=self.seat,
                endpoints=(Endpoint(host=ADDRESS, port=0),),
                hosts_store=False,
                passes_on=True,
            ),
            run_id=RUN_ID,
            node=name,
            address=ADDRESS,
            silent_after_s=3.0,
            record=lambda: NodeRecord(node=name, address=ADDRESS, slots=1, store_port=1),
            coordination=coordination,
            on_frame=lambda kind, fields: self.heard.put_nowait((kind, fields)),
            on_over=lambda reason: None,
            note=lambda event, reason: self.notes.append(event),
            tell=lambda text: None,
            came_back=came_back,
        )

    async def until_closed(self) -> dict[str, Any]:
        while True:
            kind, fields = await self.heard.get()
            if kind == "closed":
                return fields


def test_who_was_told_of_the_end_takes_no_seat_any_more(tmp_path: Path) -> None:
    """Its scripts may go on for a while after the coordinator has left: that is no job to be led."""

    async def main() -> list[str]:
        server, journal = MemoryServer(), Journal(tmp_path / "journal.jsonl", "a")
        first, second = Node(server, journal, "a"), Node(server, journal, "b")
        async with asyncio.timeout(LIMIT_S):
            await first.membership.open()
            await second.membership.open()
            second.membership.end_job(0, "every worker finished")
            assert (await second.until_closed())["exit_code"] == 0
            await first.until_closed()
            await first.membership.close()
            task = second.membership._task
            assert task is not None
            await task  # it looks for no coordinator any more
        holder = second.seat.holder()
        assert holder is not None and holder.value["node"] == "a"
        await second.membership.close()
        journal.close()
        return second.notes

    assert "coordinates" not in asyncio.run(main())


def test_who_comes_back_to_a_job_that_is_over_begins_no_other(tmp_path: Path) -> None:
    async def main() -> dict[str, Any]:
        server, journal = MemoryServer(), Journal(tmp_path / "journal.jsonl", "a")
        over = Handover(generation=Generation(number=5), nodes=("a", "b"), closed=(3, "the same failure twice"))
        server.handle().swap(GENERATION, {"token": "secret", **handover_to_json(over)}, 0)
        node = Node(server, journal, "c", came_back=True)
        async with asyncio.timeout(LIMIT_S):
            await node.membership.open()
            fields = await node.until_closed()
        await node.membership.close()
        journal.close()
        return fields

    assert asyncio.run(main()) == {"exit_code": 3, "reason": "the same failure twice"}
