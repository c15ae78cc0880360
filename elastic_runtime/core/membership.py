"""When a world is replaced by the next one, and why.

`decide` is a first-match list over a `View`: what the coordinator knows of the nodes, the settled generation, and
for how long some things have been true. It is level-triggered: it looks at what is, never at what happened, so a
lost or repeated report changes nothing and a successor decides the same from the same records.

It does not know how records arrive, what a worker computes, or where time comes from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from elastic_runtime.core.world import NodeRecord, WorkerId, WorkerPhase, WorkerRecord, rank_order


class Kind(StrEnum):
    START = "start"  # the group of processes is started anew in this world, as torchrun does
    LIVE = "live"  # running Sessions move into this world


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Limits of membership. Seconds everywhere."""

    min_nodes: int
    max_nodes: int
    last_call_s: float = 0.5  # how long a start below max_nodes waits for more nodes; a later join is cheap
    evidence_wait_s: float = 0.3  # how long a broken collective without a known death waits for one
    admit_wait_s: float = 2.0  # how long ready workers of a node wait for their siblings
    start_grace_s: float = 5.0  # how long a newcomer waits for a job to show whether it opens Sessions
    join_timeout_s: float = 600.0  # how long a job waits below min_nodes before it ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A settled world. It never changes and its number never comes back."""

    number: int = 0
    kind: Kind = Kind.START
    world: tuple[WorkerId, ...] = ()
    planned: bool = False
    reason: str = "nothing is settled yet"
    store_host: str = ""
    store_port: int = 0
    meeting_port: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    policy: Policy
    generation: Generation
    settled_at: float
    nodes: Mapping[str, NodeRecord]  # alive, in the order in which they joined
    gone: Mapping[str, str]  # members of the settled world that are no more, and why
    seniority: Mapping[WorkerId, int]
    trained: Generation  # the last one before the settled one that some worker adopted
    used_ports: Mapping[str, int]  # node -> port of the store that its last group of processes used
    broken_since: float | None = None
    below_min_since: float | None = None
    joined_at: Mapping[str, float] = field(default_factory=dict)
    ready_since: Mapping[str, float] = field(default_factory=dict)  # node -> since when some of its workers wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    reason: str
    until: float | None = None  # look again then, even if nothing is reported


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    kind: Kind
    world: tuple[WorkerId, ...]
    planned: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    exit_code: int
    reason: str


Decision = Hold | Settle | Close


def eligible_nodes(view: View) -> list[NodeRecord]:
    """Nodes that may take part: alive, staying, members first, at most max_nodes of them."""
    members = {worker.node for worker in view.generation.world}
    staying = [n for n in view.nodes.values() if not n.draining and not n.given_up]
    staying.sort(key=lambda n: n.node not in members)
    return staying[: view.policy.max_nodes]


def decide(view: View, now: float) -> Decision:
    return _all_done(view) or _nobody_left(view) or _below_min(view, now) or _decide_among(view, now)


def _decide_among(view: View, now: float) -> Decision:
    if view.generation.number == 0:
        return _first_start(view, now)
    if view.generation.kind is Kind.START:
        return _while_starting(view, now)
    return _while_live(view, now)


def _all_done(view: View) -> Close | None:
    world = view.generation.world
    if view.generation.kind is Kind.START:
        members = [view.nodes.get(name) for name in dict.fromkeys(w.node for w in world)]
        done = bool(members) and all(n is not None and _in_group(view, n, WorkerPhase.FINISHED) for n in members)
    else:
        # Whoever has not trained yet waits for a world that will never form: it does not hold up the end.
        awaited = [w for n, w in _present(view) if w.phase is not WorkerPhase.FINISHED and _has_trained(view, n, w)]
        done = _is_finishing(view) and not awaited
    return Close(exit_code=0, reason="every worker finished") if done else None


def _nobody_left(view: View) -> Close | None:
    if any(not n.given_up and not n.draining for n in view.nodes.values()):
        return None
    causes = [n.given_up for n in view.nodes.values() if n.given_up]
    return Close(exit_code=1, reason=causes[0]) if causes else None


def _below_min(view: View, now: float) -> Decision | None:
    """Too few nodes: take the world apart in an orderly way and wait; end the job only after the join timeout."""
    policy, count = view.policy, len(eligible_nodes(view))
    if count >= policy.min_nodes or _is_finishing(view):
        return None
    why = f"{count} of at least {policy.min_nodes} nodes are here"
    if view.below_min_since is not None and now >= view.below_min_since + policy.join_timeout_s:
        return Close(exit_code=1, reason=f"{why}, and no other came within {policy.join_timeout_s:g} s")
    live = view.generation.kind is Kind.LIVE
    if live and _is_occupied(view):
        planned = not view.gone and not _broken(view)
        if planned and not _adopted(view):
            return Hold(reason=f"generation {view.generation.number} is not adopted yet")
        return Settle(kind=Kind.LIVE, world=(), planned=planned, reason=why)
    until = None if view.below_min_since is None else view.below_min_since + policy.join_timeout_s
    return Hold(reason=f"waiting: {why}", until=until)


# -- groups of processes, as torchrun has them ----------------------------------------------------------------------


def _first_start(view: View, now: float) -> Decision:
    nodes = eligible_nodes(view)
    full = len(nodes) == view.policy.max_nodes
    deadline = max(view.joined_at[n.node] for n in nodes) + view.policy.last_call_s
    if not full and now < deadline:
        return Hold(reason=f"last call: {len(nodes)} of at most {view.policy.max_nodes} nodes are here", until=deadline)
    return _start(view, nodes, planned=True, reason=f"start with {len(nodes)} node(s)")


def _start(view: View, nodes: list[NodeRecord], *, planned: bool, reason: str) -> Decision:
    world = tuple(WorkerId(n.node, slot, 0) for n in nodes for slot in range(n.slots))
    return _on_a_fresh_store(view, Settle(kind=Kind.START, world=world, planned=planned, reason=reason))


def _while_starting(view: View, now: float) -> Decision:
    members = list(dict.fromkeys(w.node for w in view.generation.world))
    nodes = eligible_nodes(view)
    staying = [n for n in nodes if n.node in members]
    lost = [name for name in members if name not in view.nodes or view.nodes[name].given_up]
    failed = [n.node for n in staying if n.failed_group == view.generation.number]
    if lost:
        return _start(view, nodes, planned=False, reason=f"restart: {_why_gone(view, lost[0])}")
    if failed:
        return _start(view, nodes, planned=False, reason=f"restart: a worker failed on {failed[0]}")
    if staying and len(staying) == len(members) and all(_in_group(view, n, WorkerPhase.READY) for n in staying):
        if len({w.constants for n in staying for w in n.workers}) > 1:
            return Close(exit_code=2, reason="the workers' Sessions disagree: all must have the same arguments")
        world = _ranked(view, staying)
        too_many = len(world) > _max_workers(view)
        extra = f"; {len(world) - _max_workers(view)} stand by: the batch feeds no more" if too_many else ""
        world = world[: _max_workers(view)]
        reason = f"all {sum(n.slots for n in staying)} workers opened a Session{extra}"
        return Settle(kind=Kind.LIVE, world=world, planned=True, reason=reason)
    newcomers = [n for n in nodes if n.node not in members]
    if newcomers and not any(_ready(n) for n in staying):
        grace_ends = view.settled_at + view.policy.start_grace_s
        if now < grace_ends:
            return Hold(reason=f"{newcomers[0].node} waits to see whether the script opens a Session", until=grace_ends)
        return _start(view, nodes, planned=False, reason=f"restart: {newcomers[0].node} joined")
    return Hold(reason="workers are starting")


# -- live worlds ----------------------------------------------------------------------------------------------------


def _while_live(view: View, now: float) -> Decision:
    wanted, wait_until = _wanted_world(view, now)
    if view.gone or _broken(view) or _waits_for_the_finished(view):
        return _unplanned(view, wanted, now)
    if _is_finishing(view):
        return Hold(reason="the job is finishing")
    if wanted == view.generation.world:
        return Hold(reason="nothing to change", until=wait_until)
    if not _adopted(view):
        return Hold(reason=f"generation {view.generation.number} is not adopted yet")
    reason = _difference(view.generation.world, wanted)
    return Settle(kind=Kind.LIVE, world=wanted, planned=True, reason=reason)


def _unplanned(view: View, wanted: tuple[WorkerId, ...], now: float) -> Decision:
    if not view.gone and view.broken_since is not None:
        deadline = view.broken_since + view.policy.evidence_wait_s
        if now < deadline:
            return Hold(reason="a collective failed; waiting to learn who died", until=deadline)
    if not wanted:
        if not _is_occupied(view):
            return Hold(reason="waiting for a worker that is ready")
        return Settle(kind=Kind.LIVE, world=(), planned=False, reason="no worker of the world is left")
    unknown = "a collective failed and nobody is known to have died" if _broken(view) else "others finished before it"
    reason = "; ".join(view.gone.values()) or unknown
    return Settle(kind=Kind.LIVE, world=wanted, planned=False, reason=reason)


def _wanted_world(view: View, now: float) -> tuple[tuple[WorkerId, ...], float | None]:
    """The world that the records ask for, and when to look again if some workers still wait for their siblings."""
    current = set(view.generation.world)
    chosen: list[WorkerId] = []
    look_again: list[float] = []
    for node in eligible_nodes(view):
        ready = [node.worker_id(w) for w in node.workers if w.phase is WorkerPhase.READY and not w.draining]
        new = [w for w in ready if w not in current]
        starting = any(w.phase is WorkerPhase.STARTING for w in node.workers)
        admit_at = view.ready_since.get(node.node, now) + view.policy.admit_wait_s
        if new and starting and now < admit_at:
            look_again.append(admit_at)
            ready = [w for w in ready if w in current]
        chosen += ready
    chosen += _handing_over(view, chosen)
    # What the batch does not feed stands by; never a member for the sake of a newcomer, who may have no state to give.
    kept = sorted(rank_order(chosen, view.seniority), key=lambda w: w not in current)[: _max_workers(view)]
    return rank_order(kept, view.seniority), min(look_again, default=None)


def _handing_over(view: View, chosen: list[WorkerId]) -> list[WorkerId]:
    """Workers asked to leave that hold the state while nobody who stays does: they stay until a successor has it."""
    holders = {n.worker_id(w): n for n in view.nodes.values() for w in n.workers if _has_trained(view, n, w)}
    if not any(n.workers for n in eligible_nodes(view)) or any(w in holders for w in chosen):
        return []
    return [
        n.worker_id(w)
        for n in view.nodes.values()
        if n.draining
        for w in n.workers
        if n.worker_id(w) in holders and w.phase is WorkerPhase.READY and not w.draining
    ]


def _ranked(view: View, nodes: list[NodeRecord]) -> tuple[WorkerId, ...]:
    ready = [n.worker_id(w) for n in nodes for w in n.workers if w.phase is WorkerPhase.READY]
    return rank_order(ready, view.seniority)


def _max_workers(view: View) -> int:
    limits = [w.max_workers for n in view.nodes.values() for w in n.workers if w.max_workers]
    return min(limits, default=1 << 30)


def _on_a_fresh_store(view: View, settle: Settle) -> Decision:
    """The store of a group of processes is served by its first rank's node, and never by one that another group used:
    torch's names for keys carry no generation."""
    host = settle.world[0].node
    port = view.nodes[host].store_port
    if port == 0 or view.used_ports.get(host) == port:
        return Hold(reason=f"{host} is opening a store for the next generation")
    return settle


def _present(view: View) -> list[tuple[NodeRecord, WorkerRecord]]:
    """The members of the settled world that are still there, with their records."""
    found = {n.worker_id(w): (n, w) for n in view.nodes.values() for w in n.workers}
    return [found[worker] for worker in view.generation.world if worker in found]


def _adopted(view: View) -> bool:
    return all(w.adopted >= view.generation.number for _, w in _present(view))


def _is_occupied(view: View) -> bool:
    """Whether workers may be in a world: the settled one, or the one before it if that broke before it was left."""
    return bool(view.generation.world) or (view.generation.planned and bool(view.gone))


def _is_finishing(view: View) -> bool:
    """Whether somebody is through with its Session: then the last step is committed, in this world or one before."""
    return any(w.phase is WorkerPhase.FINISHED for n in view.nodes.values() for w in n.workers)


def _has_trained(view: View, node: NodeRecord, worker: WorkerRecord) -> bool:
    me = node.worker_id(worker)
    return me in view.trained.world or (me in view.generation.world and worker.adopted >= view.generation.number)


def _waits_for_the_finished(view: View) -> bool:
    """Whether a worker has left the world before for the settled one, in which others were through before they heard of
    it: those will never meet it there."""
    number, members = view.generation.number, _present(view)
    if not any(w.phase is WorkerPhase.FINISHED and w.adopted < number for _, w in members):
        return False
    return any(
        w.phase is WorkerPhase.READY
        and _has_trained(view, n, w)
        and (not view.generation.planned or w.broken >= view.trained.number)
        for n, w in members
    )


def _broken(view: View) -> bool:
    return any(w.broken == view.generation.number for _, w in _present(view))


def _ready(node: NodeRecord) -> int:
    return sum(w.phase is WorkerPhase.READY for w in node.workers)


def _in_group(view: View, node: NodeRecord, phase: WorkerPhase) -> bool:
    """Whether this phase was reached by all workers of the node, and not by those that are being ended for a restart."""
    here = sum(w.phase is phase for w in node.workers)
    return node.group == view.generation.number and here == node.slots


def _why_gone(view: View, node: str) -> str:
    record = view.nodes.get(node)
    return record.given_up if record else view.gone.get(node, f"node {node} is gone")


def _difference(old: tuple[WorkerId, ...], new: tuple[WorkerId, ...]) -> str:
    joined = [w for w in new if w not in set(old)]
    left = [w for w in old if w not in set(new)]
    parts = [f"{_names(joined)} joined"] if joined else []
    parts += [f"{_names(left)} drained"] if left else []
    return ", ".join(parts) or "the order of ranks changed"


def _names(workers: list[WorkerId]) -> str:
    nodes = list(dict.fromkeys(w.node for w in workers))
    shown = ", ".join(nodes[:3]) + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")
    return f"{len(workers)} worker(s) of {shown}"
