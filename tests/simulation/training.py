"""What must hold of the workers in a generation: their collectives, states and samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from elastic_runtime.core.messages import World
from elastic_runtime.core.node import Mode
from elastic_runtime.core.recovery import Standing, Transfer
from elastic_runtime.core.world import WorkerId
from tests.simulation.violation import Violation

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster
    from tests.simulation.process import Process
    from tests.simulation.script import ElasticScript


class Training:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._chain = cluster.setup.job.chain()
        self.commits = 0

    def same_collective(self, process: Process, kind: Any, other: Process, theirs: Any) -> None:
        if kind != theirs:
            raise Violation("collectives", f"{process.name} enters {kind}, {other.name} waits in {theirs}")

    def transferred(
        self, process: Process, world: World, standings: Sequence[Standing], transfer: Transfer, states: Sequence[Any]
    ) -> None:
        held = [(s.committed_in, s.step, rank) for rank, s in enumerate(standings) if s.has_state]
        newest = max((step for _, step, _ in held), default=0)
        for rank in transfer.sources:
            if held and standings[rank].step != newest:
                raise Violation("newest state", f"rank {rank} at step {standings[rank].step} is a source, not {newest}")
            if states[rank][:3] != states[transfer.sources[0]][:3]:
                raise Violation("newest state", f"sources {transfer.sources} hold different states")

    def began(self, process: Process, world: World) -> None:
        self._cluster.checkers.succession.began(process)
        for other in self.holders():
            if other.session.step:
                raise Violation(
                    "lost commit", f"{process.name} begins anew; {other.name} has {other.session.step} steps"
                )

    def holders(self) -> list[Process]:
        """Living workers with a state, on nodes that belong to the job, that were not told to go."""
        world = self._cluster.coordination.machine.generation.world
        return [
            p
            for p in self._cluster.processes
            if p.alive
            and p.session.has_state
            and p.agent.machine.mode is not Mode.STOPPING
            and p.agent.is_of_the_job()
            and (not p.agent.interrupted or worker_id(p) in world)
        ]

    def reduced(self, process: Process, world: World, session: ElasticScript, parts: Sequence[Any]) -> None:
        read = [one for _, _, _, ranges in parts for one in ranges]
        wanted = self._cluster.setup.job.slot_ranges(session.step)
        if read != wanted:
            raise Violation("samples", f"step {session.step} read {read}, not {wanted}")
        if any((step, state) != (session.step, session.state) for _, step, state, _ in parts):
            raise Violation("one state", f"ranks reduce together from different states at step {session.step}")

    def committed(self, process: Process, world: World, session: ElasticScript) -> None:
        self.commits += 1
        if session.state != self._chain[session.step]:
            raise Violation("undisturbed run", f"{process.name} has another state after step {session.step}")
        holders = self.holders()
        for other in holders if process in holders else ():
            if other.session.step > session.step:
                raise Violation("lost commit", f"step {session.step} again; {other.name} has {other.session.step}")

    def evaluated(
        self, process: Process, world: World, place: tuple[int, int], chunks: int, parts: Sequence[Any]
    ) -> None:
        added = [one for part in parts if part for one in part]
        if added != [(*place, chunk) for chunk in range(chunks)]:
            raise Violation("evaluation", f"{process.name} at {place} sums {added}")

    def finished(self, process: Process, session: ElasticScript) -> None:
        if session.step != self._cluster.setup.job.steps or session.state != self._chain[-1]:
            raise Violation("undisturbed run", f"{process.name} finishes after step {session.step} with another state")


def worker_id(process: Process) -> WorkerId:
    return WorkerId(process.agent.name, process.slot, process.spawn)
