"""Why things are as they are: for each node whether it takes part, and if not, for which reason.

It repeats no rule: it asks the same `View` that `membership` decides from.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from elastic_runtime.core.view import View
from elastic_runtime.core.world import NodeRecord, WorkerPhase


class NodeState(StrEnum):
    MEMBER = "member"
    STANDBY = "standby"
    STARTING = "starting"
    DRAINING = "draining"
    LEFT_OUT = "left out"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    node: str
    state: NodeState
    why: str
    ranks: tuple[int, ...]


def explain(view: View, now: float) -> list[NodeStatus]:
    """One entry a node, in the order in which they joined. `now` on the clock of `view`."""
    ranks: dict[str, list[int]] = {}
    for worker, place in view.generation.places.items():
        ranks.setdefault(worker.node, []).append(place.rank)
    eligible = {node.node for node in view.eligible_nodes()}
    return [
        NodeStatus(node=name, state=state, why=why, ranks=tuple(ranks.get(name, ())))
        for name, node in view.nodes.items()
        for state, why in [_explained(view, node, member=name in ranks, eligible=name in eligible, now=now)]
    ]


def _explained(view: View, node: NodeRecord, *, member: bool, eligible: bool, now: float) -> tuple[NodeState, str]:
    if node.given_up:
        return NodeState.LEFT_OUT, f"it gave up: {node.given_up}"
    if node.draining:
        return NodeState.DRAINING, "it was asked to leave" + (" and finishes its step" if member else "")
    if member:
        return NodeState.MEMBER, f"in generation {view.generation.number}: {view.generation.reason}"
    if (until := view.held_back.get(node.node)) is not None:
        return NodeState.LEFT_OUT, f"its host {node.host} lost nodes again and again: it waits {until - now:.0f} s more"
    if not eligible:
        limit = "a resize" if view.most_nodes < view.policy.max_nodes else "--nnodes"
        return NodeState.STANDBY, f"{limit} lets at most {view.most_nodes} node(s) take part; it is next in turn"
    phases = {worker.phase for worker in node.workers}
    if not phases or WorkerPhase.STARTING in phases:
        return NodeState.STARTING, "its workers are starting: the others train on until their Sessions are open"
    if phases == {WorkerPhase.FINISHED}:
        return NodeState.STANDBY, "its workers have finished"
    if not view.is_adopted():
        return NodeState.STARTING, f"ready; generation {view.generation.number} is not adopted by all members yet"
    if len(view.generation.world) >= view.max_workers():
        return NodeState.STANDBY, f"the batch has work for {view.max_workers()} worker(s) and no more"
    return NodeState.STARTING, "ready; it is in the next generation"
