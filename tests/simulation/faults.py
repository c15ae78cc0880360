"""What goes wrong, drawn from a seed: kinds, victims and times. Faults stop at `Plan.end_s`; what they broke heals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from signal import SIGTERM

from elastic_runtime.core.view import Policy
from tests.simulation.agent import Agent
from tests.simulation.cluster import Cluster, Setup, Trap
from tests.simulation.process import Process
from tests.simulation.script import Job

PHASES = (
    "building",
    "waiting",
    "meeting",
    "gathering",
    "pulling",
    "sending",
    "lining up",
    "computing",
    "reducing",
    "committing",
    "evaluating",
    "finishing",
    "after",
)
IN_RECOVERY = ("waiting", "meeting", "gathering", "pulling", "sending", "lining up")


def draw_setup(rng: Random, *, elected: bool) -> Setup:
    """3 to 7 nodes; one job in seven is a script without a Session."""
    nodes = rng.randint(3, 7)
    micro_batches, micro_batch_size = rng.randint(2, 12), rng.randint(1, 4)
    steps = rng.randint(8, 30)
    slow = elected and rng.random() < 0.1  # so that the job goes on for long after the faults are over
    batch = micro_batches * micro_batch_size
    elastic = rng.random() > 0.15
    job = Job(
        elastic=elastic,
        steps=steps,
        micro_batches=micro_batches,
        micro_batch_size=micro_batch_size,
        end=steps * batch - rng.randrange(batch) if rng.random() < 0.4 else None,
        eval_every=rng.choice((0, 0, 3, 5)),
        eval_chunks=rng.randint(1, 9),
        build_s=rng.choice((0.1, 0.4, 1.0)),
        micro_batch_s=0.25 if slow else rng.choice((0.01, 0.03)),
        commit_s=0.01,
    )
    policy = Policy(
        min_nodes=rng.randint(1, max(1, nodes - 2)),
        max_nodes=rng.choice((nodes, nodes + 2, max(2, nodes - 1))),
        join_timeout_s=20.0,
        start_grace_s=2.0,
    )
    return Setup(
        job=job,
        policy=policy,
        nodes=nodes,
        slots=rng.choice((1, 1, 2) if elastic else (1, 2, 2)),
        max_restarts=rng.choice((40, 40, 40, 2) if elastic else (40, 3, 2)),
        deaf_to_term=rng.choice((0.0, 0.0, 0.2)),
        network_s=rng.choice((0.0005, 0.003, 0.02)),
        store_s=rng.choice((0.002, 0.05)),
        elected=elected,
        shuffled_names=elected,
    )


Kinds = dict[str, tuple[float, Callable[["Plan"], bool]]]  # how often, and what


@dataclass(slots=True)
class Plan:
    """Faults at their times, bound to a cluster."""

    cluster: Cluster
    rng: Random
    kinds: Kinds
    end_s: float = 0.0
    done: dict[str, int] = field(default_factory=dict)  # kind -> how often it happened

    def schedule(self) -> None:
        rng = self.rng
        names = list(self.kinds)
        weights = [weight for weight, _ in self.kinds.values()]
        begin = rng.choice((0.1, 0.8, 1.5))
        self.end_s = begin + rng.choice((1.0, 2.5, 5.0))
        for kind in rng.choices(names, weights, k=rng.randint(2, 8)):
            self.cluster.clock.at(begin + rng.random() * (self.end_s - begin), self.strike, kind)
        self.cluster.clock.at(self.end_s, self._stop)
        self.cluster.may_end_at = self.end_s + 1.0 if self.cluster.setup.elected else 0.0

    def strike(self, kind: str) -> None:
        cluster = self.cluster
        over = cluster.host is not None and not cluster.host.alive
        if not over and cluster.checkers.ended_with is None and self.kinds[kind][1](self):
            self.cluster.note("FAULT", kind)
            self.done[kind] = self.done.get(kind, 0) + 1

    def _stop(self) -> None:
        """No more faults, and nodes enough to go on."""
        self.cluster.traps.clear()
        missing = self.cluster.setup.policy.min_nodes - len(self.cluster.staying())
        for _ in range(missing):
            self.cluster.add_node(0.1 * self.rng.random())

    # -- victims ------------------------------------------------------------------------------------------------------

    def process(self) -> Process | None:
        living = self.cluster.living()
        return self.rng.choice(living) if living else None

    def agent(self, *, may_be_host: bool = True) -> Agent | None:
        agents = [
            a
            for a in self.cluster.agents.values()
            if a.alive and a.membership.joined and a.exit_code is None and (may_be_host or not a.anchor)
        ]
        return self.rng.choice(agents) if agents else None

    # -- kinds --------------------------------------------------------------------------------------------------------

    def kill_worker(self) -> bool:
        process = self.process()
        if process is not None:
            process.die(-9)
        return process is not None

    def crash_worker(self) -> bool:
        process = self.process()
        if process is not None:
            process.crash(f"error {self.cluster.clock.now}")
        return process is not None

    def stop_worker(self) -> bool:
        process = self.process()
        if process is None:
            return False
        process.pause()
        self.cluster.clock.after(self.rng.choice((0.3, 1.0, 4.0)), process.resume)
        return True

    def trap_workers(self) -> bool:
        left = self.rng.choice((1, 1, 2, 3))
        self.cluster.traps.append(Trap(phase=self.rng.choice(PHASES), node="", slot=-1, left=left))
        return True

    def kill_and_trap(self) -> bool:
        """A second fault in the recovery from the first."""
        self.cluster.traps.append(
            Trap(phase=self.rng.choice(IN_RECOVERY), node="", slot=-1, left=self.rng.randint(1, 2))
        )
        return self.kill_worker()

    def kill_agent(self) -> bool:
        agent = self.agent(may_be_host=False)
        if agent is not None:
            agent.crash()
        return agent is not None

    def lose_node(self) -> bool:
        agent = self.agent(may_be_host=False)
        if agent is not None:
            agent.vanish()
        return agent is not None

    def stop_agent(self) -> bool:
        agent = self.agent(may_be_host=True)
        if agent is None or agent.paused:
            return False
        self.cluster.stop_agent(agent, self.rng.choice((0.5, 1.2, 2.0, 4.5)))
        return True

    def drain(self) -> bool:
        agent = self.agent(may_be_host=True)
        if agent is None:
            return False
        agent.deliver(agent.interrupt, SIGTERM)
        if self.rng.random() < 0.15:
            self.cluster.clock.after(0.4, agent.deliver, agent.interrupt, SIGTERM)
        return True

    def preempt(self) -> bool:
        """A node is told to leave, and gone before it can."""
        agent = self.agent(may_be_host=False)
        if agent is not None:
            agent.deliver(agent.interrupt, SIGTERM)
            self.cluster.clock.after(0.04 * self.rng.random(), agent.vanish)
        return agent is not None

    def leave_one_holder(self) -> bool:
        """The state lives on in one node only, and that one is asked to leave."""
        agent = self.agent(may_be_host=True)
        if agent is not None:
            for process in self.cluster.living():
                if process.agent is not agent:
                    process.die(-9)
            self.cluster.clock.after(0.3 * self.rng.random(), agent.deliver, agent.interrupt, SIGTERM)
        return agent is not None

    def join(self) -> bool:
        self.cluster.add_node(0.05)
        return True

    def cut_off(self) -> bool:
        agent = self.agent(may_be_host=False)
        if agent is not None:
            self.cluster.network.cut(agent.host, self.cluster.clock.now + self.rng.choice((0.5, 2.0, 5.0)))
        return agent is not None

    def store_out(self) -> bool:
        self.cluster.store.go_out(self.rng.choice((0.5, 2.0)), stopped=True)
        return True

    def lose_replies(self) -> bool:
        self.cluster.store.lose(self.rng.randint(1, 2))
        return True

    def break_group(self) -> bool:
        grouped = [p for p in self.cluster.living() if p.group is not None]
        for process in self.rng.sample(grouped, min(1, len(grouped))):
            assert process.group is not None
            process.group.break_for(process)
        return bool(grouped)


KINDS: Kinds = {
    "kill_worker": (3, Plan.kill_worker),
    "crash_worker": (1, Plan.crash_worker),
    "stop_worker": (1, Plan.stop_worker),
    "trap_workers": (4, Plan.trap_workers),
    "kill_and_trap": (3, Plan.kill_and_trap),
    "kill_agent": (2, Plan.kill_agent),
    "lose_node": (1, Plan.lose_node),
    "stop_agent": (2, Plan.stop_agent),
    "drain": (2, Plan.drain),
    "preempt": (3, Plan.preempt),
    "leave_one_holder": (1, Plan.leave_one_holder),
    "join": (3, Plan.join),
    "cut_off": (1.5, Plan.cut_off),
    "store_out": (1, Plan.store_out),
    "lose_replies": (1.5, Plan.lose_replies),
    "break_group": (1.5, Plan.break_group),
}
