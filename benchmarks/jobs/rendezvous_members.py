"""Real nodes in one process: for each a `Membership` with a `Coordination` of its own, as an agent has them.

The argument is a JSON object: backend, port, run_id, folder, numbers (of the nodes), nodes (that start the job).
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from rendezvous_parts import ADDRESS, Fleet, Node, count_requests, counts, obey, raise_file_limit

from elastic_runtime.core.coordinator import Coordinator
from elastic_runtime.core.view import Policy
from elastic_runtime.journal import Journal
from elastic_runtime.rendezvous.coordination import Coordination
from elastic_runtime.rendezvous.find import Endpoint, Rendezvous, find_store
from elastic_runtime.rendezvous.membership import Membership

SILENT_AFTER_S = 3.0  # as elasticrun has it


class Member:
    def __init__(self, plan: dict[str, Any], fleet: Fleet, number: int) -> None:
        self._plan, self._fleet = plan, fleet
        self.node = Node(number)
        self._journal = Journal(Path(plan["folder"], "journal.jsonl"), self.node.name)
        nodes = plan["nodes"]
        # The first of them starts the job with everybody; whoever comes after it goes on with fewer.
        policy = Policy(min_nodes=nodes, max_nodes=nodes) if number == 0 else Policy(min_nodes=1, max_nodes=nodes + 1)
        self.machine = Coordinator(policy=policy, silent_after_s=SILENT_AFTER_S)
        self.membership: Membership | None = None

    async def join(self) -> None:
        plan = self._plan
        rendezvous = Rendezvous(
            backend=plan["backend"],
            endpoints=(Endpoint(host=ADDRESS, port=plan["port"]),),
            run_id=plan["run_id"],
            may_host=self.node.number == 0,
        )
        found = await asyncio.to_thread(find_store, rendezvous, timeout_s=20.0, silent_after_s=SILENT_AFTER_S)
        self.membership = Membership(
            found,
            run_id=plan["run_id"],
            node=self.node.name,
            address=ADDRESS,
            silent_after_s=SILENT_AFTER_S,
            record=self.node.record,
            coordination=lambda on_overruled: Coordination(
                machine=self.machine,
                store=found.store,
                run_id=plan["run_id"],
                own_node=self.node.name,
                journal=self._journal,
                on_alone=lambda: None,
                on_overruled=on_overruled,
                tell=lambda text: None,
            ),
            on_frame=lambda kind, fields: self._fleet.heard(self.node, kind, fields),
            on_over=lambda reason: print(reason, file=sys.stderr, flush=True),
            note=lambda event, reason: self._journal.write(event, generation=0, reason=reason),
            tell=lambda text: None,
        )
        self.node.publish = self.membership.publish
        if self.node.number:  # who leads is settled, so that the measurement knows whom to kill
            await asyncio.to_thread(found.seat.wait, 0, 20.0)
        await self.membership.open()

    @property
    def link_port(self) -> int:
        there = self.membership.coordinates if self.membership is not None else None
        return there.port if there is not None else 0


class Commands:
    def __init__(self, plan: dict[str, Any]) -> None:
        self._fleet = Fleet()
        self._store_port = plan["port"] if plan["backend"] == "tcp" else 0  # etcd counts by itself
        self._members = [Member(plan, self._fleet, number) for number in plan["numbers"]]
        self._fleet.nodes = [member.node for member in self._members]
        self._tasks: list[asyncio.Task[None]] = []

    async def carry_out(self, command: dict[str, Any]) -> Any:
        match command:
            case {"do": "join"}:
                return self._join()
            case {"do": "until", "kind": kind, "size": size, "after": after}:
                return await self._fleet.until(kind, size, after)
            case {"do": "open"}:
                for member in self._members:
                    member.node.open = True
                    member.node.say()
            case {"do": "quiet"}:
                return await self._quiet()
            case {"do": "one more may come"}:
                for member in self._members:
                    policy = member.machine.policy
                    member.machine.policy = replace(policy, max_nodes=policy.max_nodes + 1)
            case {"do": "count"}:
                return counts(self._members[0].link_port, self._store_port)
        return None

    def _join(self) -> float:
        began = time.monotonic()
        for member in self._members:
            self._tasks.append(asyncio.create_task(member.join()))
            self._tasks[-1].add_done_callback(lambda done: done.result())
        return began

    async def _quiet(self) -> int:
        """The number of the settled generation, once all of its members have adopted it."""
        machine = self._members[0].machine
        while machine.writing is not None or not machine.view(time.monotonic()).is_adopted():
            await asyncio.sleep(0.05)
        return machine.generation.number


async def main() -> None:
    commands = Commands(json.loads(sys.argv[1]))
    await obey(commands.carry_out)


raise_file_limit()
count_requests()
asyncio.run(main())
