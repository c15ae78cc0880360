"""A coordination that does not lead yet, over real connections."""

from __future__ import annotations

import asyncio
from pathlib import Path

from elastic_runtime.core.coordinator import Coordinator
from elastic_runtime.core.view import Policy
from elastic_runtime.core.world import NodeRecord
from elastic_runtime.journal import Journal
from elastic_runtime.rendezvous import frames
from elastic_runtime.rendezvous.coordination import Coordination
from elastic_runtime.stores.memory import MemoryServer

ADDRESS, RUN_ID, TOKEN, LIMIT_S = "127.0.0.1", "job", "secret", 20.0


async def knock(coordination_port: int, node: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(ADDRESS, coordination_port)
    record = NodeRecord(node=node, address=ADDRESS, slots=1, store_port=1)
    writer.write(frames.line("hello", token=TOKEN, run_id=RUN_ID, record=frames.record_to_json(record)))
    await writer.drain()
    return reader, writer


def test_who_has_given_up_waiting_is_not_taken_for_one_that_is_here(tmp_path: Path) -> None:
    async def main() -> list[str]:
        journal = Journal(tmp_path / "journal.jsonl", "a")
        machine = Coordinator(policy=Policy(min_nodes=1, max_nodes=2))
        coordination = Coordination(
            machine=machine,
            store=MemoryServer().handle(),
            run_id=RUN_ID,
            own_node="a",
            journal=journal,
            on_alone=lambda: None,
            on_overruled=lambda: None,
            tell=lambda text: None,
        )
        there = await coordination.listen(ADDRESS, TOKEN)
        _, impatient = await knock(there.port, "b")
        reader, patient = await knock(there.port, "c")
        impatient.close()
        await impatient.wait_closed()
        await coordination.lead({}, {}, "", may_begin_anew=True)
        async with asyncio.timeout(LIMIT_S):
            assert frames.parse(await reader.readline())[0] == "welcome"
            while "c" not in machine.nodes:
                await asyncio.sleep(0)
        here = list(machine.nodes)
        patient.close()
        await coordination.close()
        journal.close()
        return here

    assert asyncio.run(main()) == ["c"]
    assert '"b joined' not in (tmp_path / "journal.jsonl").read_text()
