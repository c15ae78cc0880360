"""What must hold in every history, judged by what really happened in the simulated world. Knows nothing of faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from elastic_runtime.core import coordinator_events as co
from elastic_runtime.core.coordinator import Coordinator
from elastic_runtime.core.messages import World
from elastic_runtime.core.node import Mode
from elastic_runtime.core.recovery import Standing, Transfer
from elastic_runtime.core.supervision_events import Start
from elastic_runtime.core.view import Generation, Kind
from elastic_runtime.core.world import NodeRecord, WorkerId, WorkerPhase

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.cluster import Cluster
    from tests.simulation.process import Process
    from tests.simulation.script import ElasticScript


class Violation(Exception):
    def __init__(self, checker: str, text: str) -> None:
        super().__init__(f"{checker}: {text}")
        self.checker = checker


class Checkers:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._chain = cluster.setup.job.chain()
        self._stored: dict[int, Generation] = {}
        self._group_stores: dict[tuple[str, int], int] = {}
        self._records: dict[str, NodeRecord] = {}
        self._lost: dict[WorkerId, str] = {}
        self._heard_at: dict[str, float] = {}
        self._failures: dict[str, dict[int, None]] = {}
        self.ended_with: tuple[int, str] | None = None
        self.commits = 0

    # -- generations --------------------------------------------------------------------------------------------------

    def stored(self, generation: Generation) -> None:
        newest = max(self._stored, default=0)
        if generation.number <= newest:
            raise Violation("generations", f"{generation.number} is written although {newest} was before")
        self._stored[generation.number] = generation

    def announced(self, generation: Generation) -> None:
        if self._stored.get(generation.number) != generation:
            raise Violation("generations", f"{generation.number} is announced, but the store holds another or none")
        store = (generation.store_host, generation.store_port)
        if (
            generation.kind is Kind.START
            and self._group_stores.setdefault(store, generation.number) != generation.number
        ):
            raise Violation("fresh store", f"{store} served the group of another generation")

    def decided(self, machine: Coordinator, new: Generation) -> None:
        old = machine.generation
        if new.kind is Kind.START:
            if old.kind is Kind.LIVE:
                raise Violation("survivors", "an elastic job is started anew")
            return
        if new.planned and old.kind is Kind.LIVE:
            self._old_is_adopted(old)
        if not new.planned and new.world == old.world and not self._has_cause(old):
            raise Violation("no cause", f"generation {old.number} is replaced by an equal one, and nothing is wrong")
        leaving = {n for n, r in self._records.items() if r.draining or r.given_up}
        self._state_is_handed_over(old, new, leaving)
        for worker in new.world:
            if worker in self._lost:
                raise Violation("dead member", f"{worker} is in generation {new.number}, but it {self._lost[worker]}")
            staying = [self._trained_in(w) for w in new.world if w.node not in leaving]
            if worker.node in leaving and max(staying, default=0) >= max(1, self._trained_in(worker)):
                raise Violation("drained member", f"{worker} is in generation {new.number}, but its node is leaving")

    def _state_is_handed_over(self, old: Generation, new: Generation, leaving: set[str]) -> None:
        """Whoever is drained with the only copy of the state stays until somebody else has it.

        A drained worker that the settled world leaves out was told to go: it does not count.
        """
        staying = [r for n, r in self._records.items() if n not in leaving]
        if len(staying) < self._cluster.setup.policy.min_nodes or not any(r.workers for r in staying):
            return
        holders = [
            r.worker_id(w)
            for n, r in self._records.items()
            for w in r.workers
            if w.phase is WorkerPhase.READY and self._trained_in(r.worker_id(w)) and not w.draining and not r.given_up
            if n not in leaving or r.worker_id(w) in old.world
        ]
        if holders and not any(worker in new.world for worker in holders):
            raise Violation("lost commit", f"nobody of generation {new.number} has the state that {holders} have")

    def _trained_in(self, worker: WorkerId) -> int:
        """The generation whose state this worker reported to have; 0: none, or it stands by since."""
        for record in self._records.values():
            for w in record.workers:
                if record.worker_id(w) == worker and w.adopted and worker in self._stored[w.adopted].world:
                    return w.adopted
        return 0

    def _old_is_adopted(self, old: Generation) -> None:
        for process in self._cluster.processes:
            worker = _id(process)
            if process.alive and worker in old.world and worker not in self._lost:
                if old.number not in process.session.adopted:
                    raise Violation("unadopted", f"a planned change, but {worker} has not adopted {old.number}")

    def _has_cause(self, old: Generation) -> bool:
        before = [g.world for g in self._stored.values() if g.number < old.number] if old.planned else []
        concerned = [worker for world in (old.world, *before) for worker in world]
        return any(w.broken == old.number for record in self._records.values() for w in record.workers) or any(
            worker in self._lost for worker in concerned
        )

    def reported(self, event: co.Event) -> None:
        """What the coordinator knows: evidence of deaths, and who was heard."""
        match event:
            case co.NodeReported(record):
                self._heard_at[record.node] = self._cluster.clock.now
                before = self._records.get(record.node)
                self._records[record.node] = record
                here = {record.worker_id(w) for w in record.workers}
                for worker in [before.worker_id(w) for w in before.workers] if before else []:
                    if worker not in here:
                        self._lost.setdefault(worker, "was gone from its node's record")
            case co.NodeHeard(node):
                self._heard_at[node] = self._cluster.clock.now
            case co.NodeGone(node, reason):
                self._node_gone(node, reason)

    def _node_gone(self, node: str, reason: str) -> None:
        record = self._records.pop(node, None)
        self._heard_at.pop(node, None)
        for worker in [record.worker_id(w) for w in record.workers] if record else []:
            self._lost.setdefault(worker, f"is on a node that {reason}")

    def evicted(self, node: str) -> None:
        silence = self._cluster.clock.now - self._heard_at[node]
        if silence < self._cluster.setup.silent_after_s - 1e-6:
            raise Violation("evictions", f"{node} was heard {silence:.2f} s ago and is evicted")
        self._node_gone(node, "was evicted")

    def host_was_stopped(self, seconds: float) -> None:
        """The coordinator could hear nobody meanwhile; a short time of it counts for silence all the same."""
        if seconds > self._cluster.setup.silent_after_s / 2:
            self._heard_at = {node: at + seconds for node, at in self._heard_at.items()}

    # -- workers in a generation --------------------------------------------------------------------------------------

    def met(self, guests: Mapping[Process, int], world_size: int) -> None:
        if len(guests) == world_size and sorted(guests.values()) != list(range(world_size)):
            raise Violation("ranks", f"{sorted(guests.values())} in a world of {world_size}")

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
        for other in self._holders():
            if other.session.step:
                raise Violation(
                    "lost commit", f"{process.name} begins anew; {other.name} has {other.session.step} steps"
                )

    def _holders(self) -> list[Process]:
        """Living workers with a state, on nodes that belong to the job, that were not told to go."""
        world = self._cluster.coordination.machine.generation.world
        return [
            p
            for p in self._cluster.processes
            if p.alive
            and p.session.has_state
            and p.agent.machine.mode is not Mode.STOPPING
            and p.agent.link is not None
            and not p.agent.link.cut_by_server
            and (not p.agent.interrupted or _id(p) in world)
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
        holders = self._holders()
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

    # -- supervision --------------------------------------------------------------------------------------------------

    def started(self, agent: Agent, start: Start, process: Process) -> None:
        for other in agent.processes.values():
            if other.slot == start.slot:
                raise Violation("one a slot", f"{process.name} is started beside {other.name}")
        if start.spawn != 1 + max((p.spawn for p in self._cluster.processes if p.agent is agent), default=0):
            raise Violation("one a slot", f"{process.name}: numbers of processes never come back")

    def exited(self, agent: Agent, process: Process) -> None:
        """Before its agent hears of it. A group of processes fails once, whichever of its members end."""
        machine, code = agent.machine, process.exit_code
        live = machine.announced is not None and machine.announced.kind is Kind.LIVE
        finished = process.session.finished if process.session else code == 0
        if machine.mode is Mode.WORKING and not finished and not (code == 0 and not live):
            cause = process.spawn if live else -machine.group
            self._failures.setdefault(agent.name, {})[cause] = None

    def supervised(self, agent: Agent) -> None:
        failures, budget = len(self._failures.get(agent.name, ())), self._cluster.setup.max_restarts
        if (failures > budget) != bool(agent.machine.given_up):
            raise Violation(
                "budget", f"{agent.name}: {failures} failures, {budget} restarts, {agent.machine.given_up!r}"
            )

    def killed(self, agent: Agent, process: Process, signal: int) -> None:
        live = self._cluster.coordination.machine.generation.kind is Kind.LIVE
        evicted = agent.link is None or agent.link.cut_by_server
        if live and not evicted and agent.machine.mode not in (Mode.DRAINING, Mode.STOPPING):
            raise Violation("survivors", f"{process.name} is sent {signal!r} though its node stays")

    # -- the end ------------------------------------------------------------------------------------------------------

    def ended(self, machine: Coordinator, exit_code: int, reason: str) -> None:
        self.ended_with = (exit_code, reason)
        cluster = self._cluster
        if exit_code == 0:
            for p in self._holders() if cluster.setup.job.elastic else cluster.living():
                done = p.session.finished or not self._trained_in(_id(p)) if p.session else p.phase == "after"
                if not done and _id(p) in machine.generation.world:
                    raise Violation("early end", f"the job ends, but {p.name} has not finished")
            return
        here = sum(agent.name in machine.nodes for agent in cluster.staying())
        raised = [(p.agent, *p.raised) for p in cluster.processes if p.raised]
        excused = cluster.host.interrupted or len(set(raised)) < len(raised)  # the same failure at the same step again
        if here >= cluster.setup.policy.min_nodes and not excused:
            raise Violation("early end", f"the job ends with {exit_code} ({reason}) although enough nodes are here")

    def at_end(self) -> None:
        cluster = self._cluster
        for agent in cluster.agents.values():
            if agent.alive:
                workers = {p.name: (p.phase, p.wait, p.session and p.session.step) for p in agent.processes.values()}
                raise Violation("liveness", f"{agent.name} is still {agent.machine.mode.value}: {workers}")
        for process in cluster.living():
            raise Violation("liveness", f"{process.name} outlives its agent")
        if self.ended_with is None and not cluster.host.interrupted and not cluster.host.machine.given_up:
            raise Violation("liveness", "the host left a job that nobody ended")
        for agent in cluster.agents.values():
            self._exit_code_is_right(agent)

    def _exit_code_is_right(self, agent: Agent) -> None:
        if agent.exit_code in (None, 0) or agent.link is None:
            return
        late = [
            p for p in self._cluster.processes if p.agent is agent and p.exit_code and p.session and p.session.finished
        ]
        evicted = agent.link.cut_by_server and agent.closed_with is None
        excuses = [agent.interrupted, agent.machine.given_up, evicted, late]
        if not any(excuses) and not (self.ended_with is None or self.ended_with[0]):
            raise Violation("exit codes", f"{agent.name} exits with {agent.exit_code} from a job that went well")


def _id(process: Process) -> WorkerId:
    return WorkerId(process.agent.name, process.slot, process.spawn)
