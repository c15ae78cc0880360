"""What else goes wrong where the coordinator is elected: it dies, is stopped or cut off, in every phase of its life."""

from __future__ import annotations

from signal import SIGTERM

from elastic_runtime.core.coordinator_events import Resized
from tests.simulation.agent import Agent
from tests.simulation.coordination import Coordination
from tests.simulation.faults import KINDS, Kinds, Plan


def kill_coordinator(plan: Plan) -> bool:
    agent = plan.cluster.coordinator()
    if agent is not None:
        agent.crash()
    return agent is not None


def lose_coordinator(plan: Plan) -> bool:
    agent = plan.cluster.coordinator()
    if agent is not None:
        agent.vanish()
    return agent is not None


def stop_coordinator(plan: Plan) -> bool:
    """Shorter and longer than its lease lasts."""
    agent = plan.cluster.coordinator()
    if agent is None or agent.paused:
        return False
    plan.cluster.stop_agent(agent, plan.rng.choice((1.0, 2.4, 3.0, 4.5, 8.0)))
    return True


def drain_coordinator(plan: Plan) -> bool:
    agent = plan.cluster.coordinator()
    if agent is not None:
        agent.deliver(agent.interrupt, SIGTERM)
    return agent is not None


def kill_in_a_write(plan: Plan) -> bool:
    """The next coordinator that writes dies before it has the answer."""

    def kill(coordination: Coordination) -> None:
        plan.cluster.clock.after(plan.cluster.setup.store_s * 3 * plan.rng.random(), coordination.host.crash)

    plan.cluster.on_write.append(kill)
    return True


def kill_the_successor(plan: Plan) -> bool:
    """The coordinator dies, and the next one while it waits for the others."""

    def kill(coordination: Coordination) -> None:
        plan.cluster.clock.after(0.1 * plan.rng.random(), coordination.host.crash)

    plan.cluster.on_lead.append(kill)
    return kill_coordinator(plan)


def cut_off_coordinator(plan: Plan) -> bool:
    """From the store, the other nodes or both; shorter and longer than its lease lasts."""
    agent = plan.cluster.coordinator()
    return agent is not None and _cut(plan, agent)


def cut_off_somebody(plan: Plan) -> bool:
    agent = plan.agent()
    return agent is not None and _cut(plan, agent)


def _cut(plan: Plan, agent: Agent) -> bool:
    rng, cluster = plan.rng, plan.cluster
    seconds = rng.choice((0.5, 1.5, 3.0, 6.0))
    what = rng.choice(("store", "nodes", "both"))
    if what != "nodes":
        cluster.store.cut_off(agent.host, seconds)
    if what != "store":
        cluster.network.cut(agent.host, cluster.clock.now + seconds)
    return True


def store_is_away(plan: Plan) -> bool:
    seconds = plan.rng.choice((0.5, 2.0, 6.0, 30.0))
    plan.cluster.store.go_out(seconds, stopped=plan.rng.random() < 0.5)
    return True


def store_is_slow(plan: Plan) -> bool:
    plan.cluster.store.slow_down(plan.rng.choice((2.0, 6.0)), by_s=0.1)
    return True


def flap(plan: Plan) -> bool:
    """A machine whose nodes are ended again and again, and started anew."""
    agent = plan.agent()
    if agent is not None:
        _flap(plan, agent, plan.rng.randint(3, 6))
    return agent is not None


def _flap(plan: Plan, agent: Agent, left: int) -> None:
    cluster, rng = plan.cluster, plan.rng
    if cluster.checkers.ended_with is not None:
        return
    members = {worker.node for worker in cluster.coordination.machine.generation.world}
    if agent.name not in members and agent.alive:
        cluster.clock.after(0.2, _flap, plan, agent, left)
        return
    (agent.vanish if rng.random() < 0.2 else agent.crash)()
    again = cluster.add_node(0.2 + 0.5 * rng.random(), agent.host)
    if again is not None and left > 1:
        cluster.clock.after(0.8, _flap, plan, again, left - 1)


def resize(plan: Plan) -> bool:
    cluster, rng = plan.cluster, plan.rng
    if cluster.coordinator() is None:
        return False
    policy = cluster.setup.policy
    nodes = rng.randint(policy.min_nodes, policy.max_nodes)
    cluster.coordination.host.deliver(cluster.coordination.step, Resized(nodes))
    return True


def several_at_once(plan: Plan) -> bool:
    for kind in plan.rng.sample([name for name in OF_COORDINATORS if name != "several_at_once"], 2):
        plan.strike(kind)
    return True


OF_COORDINATORS: Kinds = {
    "kill_coordinator": (3, kill_coordinator),
    "lose_coordinator": (1, lose_coordinator),
    "stop_coordinator": (3, stop_coordinator),
    "drain_coordinator": (2, drain_coordinator),
    "kill_in_a_write": (2, kill_in_a_write),
    "kill_the_successor": (2, kill_the_successor),
    "cut_off_coordinator": (3, cut_off_coordinator),
    "cut_off_somebody": (2, cut_off_somebody),
    "store_is_away": (2, store_is_away),
    "store_is_slow": (1, store_is_slow),
    "flap": (1, flap),
    "resize": (2, resize),
    "several_at_once": (3, several_at_once),
}
ELECTED_KINDS: Kinds = KINDS | OF_COORDINATORS
