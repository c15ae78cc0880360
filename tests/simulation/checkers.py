"""What must hold in every history, judged by what really happened in the simulated world. Knows nothing of faults."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from elastic_runtime.core import coordinator_events as co
from elastic_runtime.core.coordinator import END_WAIT_S
from elastic_runtime.core.handover import Handover
from elastic_runtime.core.view import Generation, Kind
from elastic_runtime.core.world import NodeRecord, WorkerId, WorkerPhase
from tests.simulation.succession import Succession
from tests.simulation.supervision import Supervision
from tests.simulation.training import Training
from tests.simulation.violation import Violation

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.cluster import Cluster
    from tests.simulation.coordination import Coordination
    from tests.simulation.process import Process


NOT_REPORTED = "was gone from its node's record"


class Checkers:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.succession = Succession(cluster, self)
        self.supervision = Supervision(cluster)
        self.training = Training(cluster)
        self._stored: dict[int, Generation] = {}
        self._group_stores: dict[tuple[str, int], int] = {}
        self._records: dict[str, NodeRecord] = {}
        self._known: dict[str, NodeRecord] = {}  # those of the gone, too
        self._lost: dict[WorkerId, str] = {}
        self._heard_at: dict[str, float] = {}
        self.ended_with: tuple[int, str] | None = None

    @property
    def generations(self) -> int:
        return max(self._stored, default=0)

    def settled(self) -> list[Generation]:
        return [self._stored[number] for number in sorted(self._stored)]

    # -- generations --------------------------------------------------------------------------------------------------

    def stored(self, handover: Handover, text: str) -> None:
        """By a settle, by a successor that writes the same again, or with the end of the job."""
        generation, newest = handover.generation, max(self._stored, default=0)
        if generation.number < newest:
            raise Violation("generations", f"{generation.number} is written although {newest} was before")
        if handover.closed is not None:
            self.ended_with = self.ended_with or handover.closed
        elif generation.number:
            if self._stored.get(generation.number, generation) != generation:
                raise Violation("generations", f"{generation.number} stands for two worlds")
            self._stored[generation.number] = generation
        self.succession.written(handover, text)

    def announced(self, coordination: Coordination, generation: Generation) -> None:
        if self._stored.get(generation.number) != generation:
            raise Violation("generations", f"{generation.number} is announced, but the store holds another or none")
        store = (generation.store_host, generation.store_port)
        if (
            generation.kind is Kind.START
            and self._group_stores.setdefault(store, generation.number) != generation.number
        ):
            raise Violation("fresh store", f"{store} served the group of another generation")
        self.succession.announced(coordination, generation)

    def decided(self, coordination: Coordination, new: Generation) -> None:
        if coordination is not self._cluster.coordination:
            return  # its write will lose
        old = coordination.machine.generation
        self.succession.decided(coordination, new)
        if new.kind is Kind.START:
            if old.kind is Kind.LIVE:
                raise Violation("survivors", "an elastic job is started anew")
            return
        if new.planned and old.kind is Kind.LIVE:
            self._old_is_adopted(old)
        if not new.planned and new.world == old.world and not self._has_cause(old):
            raise Violation("no cause", f"generation {old.number} is replaced by an equal one, and nothing is wrong")
        leaving = {n for n, r in self._records.items() if r.draining or r.given_up}
        self._state_is_handed_over(coordination, new, leaving)
        for worker in new.world:
            if worker in self._lost:
                raise Violation("dead member", f"{worker} is in generation {new.number}, but it {self._lost[worker]}")
            staying = [self._trained_in(w) for w in new.world if w.node not in leaving]
            if worker.node in leaving and max(staying, default=0) >= max(1, self._trained_in(worker)):
                raise Violation("drained member", f"{worker} is in generation {new.number}, but its node is leaving")

    def _state_is_handed_over(self, coordination: Coordination, new: Generation, leaving: set[str]) -> None:
        """Whoever is drained with the only copy of the state stays until somebody else has it.

        A drained worker that the settled world leaves out was told to go: it does not count.
        """
        policy, old = self._cluster.setup.policy, coordination.machine.generation
        staying = [r for n, r in self._records.items() if n not in leaving and not self.succession.is_held_back(n)]
        enough = len(coordination.machine.view(self._cluster.clock.now).eligible_nodes()) >= policy.min_nodes
        if not enough or len(staying) < policy.min_nodes or not any(r.workers for r in staying):
            return
        holders = [
            r.worker_id(w)
            for n, r in self._records.items()
            for w in r.workers
            if w.phase is WorkerPhase.READY and self._trained_in(r.worker_id(w)) and not w.draining and not r.given_up
            if n not in leaving or r.worker_id(w) in old.world
        ]
        if holders and not any(worker in new.world for worker in holders) and self._is_behind(new, holders):
            raise Violation("lost commit", f"nobody of generation {new.number} has the state that {holders} have")

    def _is_behind(self, new: Generation, holders: Collection[WorkerId]) -> bool:
        """Whoever stands by since the last step has the same state as those who have not said so yet."""
        steps = {_id(p): p.session.step if p.session.has_state else -1 for p in self._cluster.processes if p.session}
        return max(steps.get(w, -1) for w in holders) > max((steps.get(w, -1) for w in new.world), default=-1)

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
                self._records[record.node] = self._known[record.node] = record
                here = {record.worker_id(w) for w in record.workers}
                self._comes_again(record, here)
                for worker in [before.worker_id(w) for w in before.workers] if before else []:
                    if worker not in here:
                        self._lost.setdefault(worker, NOT_REPORTED)
            case co.NodeHeard(node):
                self._heard_at[node] = self._cluster.clock.now
            case co.NodeGone(node, reason):
                self.node_gone(node, reason)

    def _comes_again(self, record: NodeRecord, here: Collection[WorkerId]) -> None:
        """A node that was declared gone may come back with workers that were in no world, and with no others."""
        if not record.group and not any(worker.member_of for worker in record.workers):
            self.succession.is_back(record.node)
            self._lost = {w: why for w, why in self._lost.items() if w not in here}

    def node_gone(self, node: str, reason: str, *, seen: bool = True) -> None:
        """`seen`: this coordinator had it, and lost it."""
        record, known = self._records.pop(node, None), self._known.get(node)
        self._heard_at.pop(node, None)
        for worker in [known.worker_id(w) for w in known.workers] if known else []:
            self._lost.setdefault(worker, f"is on a node that {reason}")
        self.succession.declare_gone(node, reason)
        members = self._cluster.coordination.machine.generation.world
        if seen and record and not record.draining and any(worker.node == node for worker in members):
            self.succession.lost_member(self._cluster.agents[node].host)

    def starts_over(self, nodes: Sequence[str]) -> None:
        """Another coordinator: it has heard nobody yet, and does not know what the one before saw last."""
        self._heard_at = {}
        self._lost = {w: why for w, why in self._lost.items() if w.node not in nodes or why == NOT_REPORTED}

    def evicted(self, coordination: Coordination, effect: co.Evict) -> None:
        if coordination is not self._cluster.coordination:
            self.succession.turned_away(coordination, effect)
            return
        node, now = effect.node, self._cluster.clock.now
        if "silent" not in effect.reason:
            self.succession.turned_away(coordination, effect)
        elif now - self._heard_at[node] < self._cluster.setup.silent_after_s - 1e-6:
            raise Violation("evictions", f"{node} was heard {now - self._heard_at[node]:.2f} s ago and is evicted")
        self.node_gone(node, "was evicted")

    def coordinator_was_stopped(self, seconds: float) -> None:
        """The coordinator could hear nobody meanwhile; a short time of it counts for silence all the same."""
        if seconds > self._cluster.setup.silent_after_s / 2:
            self._heard_at = {node: at + seconds for node, at in self._heard_at.items()}

    # -- workers in a generation --------------------------------------------------------------------------------------

    def met(self, guests: Mapping[Process, int], world_size: int) -> None:
        if len(guests) == world_size and sorted(guests.values()) != list(range(world_size)):
            raise Violation("ranks", f"{sorted(guests.values())} in a world of {world_size}")
        for process, rank in guests.items():
            settled = self._stored.get(process.generation)
            if settled and settled.kind is Kind.LIVE and settled.world[rank : rank + 1] != (_id(process),):
                raise Violation("generations", f"{process.name} is rank {rank} of {settled}")

    # -- the end ------------------------------------------------------------------------------------------------------

    def ended(self, coordination: Coordination, exit_code: int, reason: str) -> None:
        if coordination is not self._cluster.coordination:
            since = coordination.machine.ending_since
            if since is None or self._cluster.clock.now < since + END_WAIT_S:
                raise Violation("overruled", f"{coordination.host.name} ends the job after its successor leads")
            return  # it waited for the store, and for long: it and those with it are through, whatever others do
        self.ended_with = (exit_code, reason)

    def decided_to_end(self, coordination: Coordination) -> None:
        cluster, machine = self._cluster, coordination.machine
        if coordination is not cluster.coordination:
            return  # its write will lose
        assert machine.ending is not None
        exit_code, reason = machine.ending
        policy = cluster.setup.policy
        if exit_code == 0:
            for p in self.training.holders() if cluster.setup.job.elastic else cluster.living():
                done = p.session.finished or not self._trained_in(_id(p)) if p.session else p.phase == "after"
                if not done and _id(p) in machine.generation.world:
                    raise Violation("early end", f"the job ends, but {p.name} has not finished")
            return
        here = sum(agent.name in machine.nodes for agent in cluster.staying())
        raised = [(p.agent, *p.raised) for p in cluster.processes if p.raised]
        again = len(set(raised)) < len(raised)  # the same failure at the same step
        kept_apart = cluster.setup.elected and cluster.is_disturbed(cluster.clock.now - policy.join_timeout_s - 1.0)
        excused = again or kept_apart or (cluster.host is not None and cluster.host.interrupted)
        if here >= policy.min_nodes and not excused:
            raise Violation("early end", f"the job ends with {exit_code} ({reason}) although enough nodes are here")

    def at_end(self) -> None:
        cluster = self._cluster
        for agent in cluster.agents.values():
            if agent.alive:
                workers = {p.name: (p.phase, p.wait, p.session and p.session.step) for p in agent.processes.values()}
                raise Violation("liveness", f"{agent.name} is still {agent.machine.mode.value}: {workers}")
        for process in cluster.living():
            raise Violation("liveness", f"{process.name} outlives its agent")
        if self.ended_with is None:
            self._nobody_left_it()
        for agent in cluster.agents.values():
            self._exit_code_is_right(agent)

    def _nobody_left_it(self) -> None:
        """A job that nobody ended: its nodes were ended from outside."""
        host, agents = self._cluster.host, self._cluster.agents.values()
        for agent in agents if host is None else [host]:
            ended = agent.interrupted or agent.machine.given_up or agent.rejoins or agent.failed_to_join
            if not ended and (host is not None or agent.exit_code is not None):
                raise Violation("liveness", f"{agent.name} left a job that nobody ended")

    def _exit_code_is_right(self, agent: Agent) -> None:
        if agent.exit_code in (None, 0) or not agent.membership.joined:
            return
        late = [
            p for p in self._cluster.processes if p.agent is agent and p.exit_code and p.session and p.session.finished
        ]
        evicted = not agent.is_of_the_job() and agent.closed_with is None
        excuses = [agent.interrupted, agent.machine.given_up, evicted, late]
        if not any(excuses) and not (self.ended_with is None or self.ended_with[0]):
            raise Violation("exit codes", f"{agent.name} exits with {agent.exit_code} from a job that went well")


def _id(process: Process) -> WorkerId:
    return WorkerId(process.agent.name, process.slot, process.spawn)
