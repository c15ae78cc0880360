"""When a world is replaced by the next one, and why.

`decide` is a first-match list over a `View`: what the coordinator knows of the nodes, the settled generation, and
for how long some things have been true. It is level-triggered: it looks at what is, never at what happened, so a
lost or repeated report changes nothing and a successor decides the same from the same records.

It does not know how records arrive, what a worker computes, or where time comes from.
"""

from __future__ import annotations

from dataclasses import dataclass

from elastic_runtime.core.view import Kind, View
from elastic_runtime.core.world import NodeRecord, WorkerId, WorkerPhase, rank_order


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


def decide(view: View, now: float) -> Decision:
    return _all_done(view) or _nobody_left(view) or _below_min(view, now) or _decide_among(view, now)


def _decide_among(view: View, now: float) -> Decision:
    if view.generation.number == 0:
        return _first_start(view, now)
    if view.generation.kind is Kind.START:
        return _while_starting(view, now)
    return _while_live(view, now)


def _all_done(view: View) -> Close | None:
    if view.generation.kind is Kind.START:
        members = [view.nodes.get(name) for name in view.generation.on_node]
        done = bool(members) and all(n is not None and view.in_group(n, WorkerPhase.FINISHED) for n in members)
    else:
        # Whoever was in no world that trained waits for one that will never form: it does not hold up the end.
        trained = view.last_trained()
        awaited = [w for n, w in view.present() if w.phase is not WorkerPhase.FINISHED and n.worker_id(w) in trained]
        done = view.is_finishing() and not awaited
    return Close(exit_code=0, reason="every worker finished") if done else None


def _nobody_left(view: View) -> Close | None:
    if any(not n.given_up and not n.draining for n in view.nodes.values()):
        return None
    causes = [n.given_up for n in view.nodes.values() if n.given_up]
    return Close(exit_code=1, reason=causes[0]) if causes else None


def _below_min(view: View, now: float) -> Decision | None:
    """Too few nodes: take the world apart in an orderly way and wait; end the job only after the join timeout."""
    policy, count = view.policy, len(view.eligible_nodes())
    live = view.generation.kind is Kind.LIVE
    if count >= policy.min_nodes or (live and view.is_finishing()):
        return None
    why = f"{count} of at least {policy.min_nodes} nodes are here"
    # A node that is here and held back is one to wait for, longer than for nobody in particular.
    since = now if view.below_min_since is None else view.below_min_since
    until = max(since + policy.join_timeout_s, *view.held_back.values(), 0.0)
    if now >= until:
        return Close(exit_code=1, reason=f"{why}, and no other came within {policy.join_timeout_s:g} s")
    if live and view.is_occupied():
        planned = not view.gone and not view.is_broken()
        if planned and not view.is_adopted():
            return Hold(reason=f"generation {view.generation.number} is not adopted yet")
        return Settle(kind=Kind.LIVE, world=(), planned=planned, reason=why)
    return Hold(reason=f"waiting: {why}", until=until)


# -- groups of processes, as torchrun has them ----------------------------------------------------------------------


def _first_start(view: View, now: float) -> Decision:
    nodes = view.eligible_nodes()
    full = len(nodes) == view.most_nodes
    deadline = max(view.joined_at[n.node] for n in nodes) + view.policy.last_call_s
    if not full and now < deadline:
        return Hold(reason=f"last call: {len(nodes)} of at most {view.most_nodes} nodes are here", until=deadline)
    return _start(view, nodes, planned=True, reason=f"start with {len(nodes)} node(s)")


def _start(view: View, nodes: list[NodeRecord], *, planned: bool, reason: str) -> Decision:
    if not nodes:
        return Hold(reason="no node stays that could start the script")
    world = tuple(WorkerId(n.node, slot, 0) for n in nodes for slot in range(n.slots))
    return _on_a_fresh_store(view, Settle(kind=Kind.START, world=world, planned=planned, reason=reason))


def _while_starting(view: View, now: float) -> Decision:
    members = view.generation.on_node
    nodes = view.eligible_nodes()
    staying = [n for n in nodes if n.node in members]
    lost = [name for name in members if name not in view.nodes or view.nodes[name].given_up]
    failed = [n.node for n in staying if n.failed_group == view.generation.number]
    if lost:
        return _start(view, nodes, planned=False, reason=f"restart: {_why_gone(view, lost[0])}")
    if failed:
        return _start(view, nodes, planned=False, reason=f"restart: a worker failed on {failed[0]}")
    resized = len(staying) < len([name for name in members if not view.nodes[name].draining])
    if resized:
        return _start(view, nodes, planned=False, reason=f"restart: at most {view.most_nodes} node(s) take part")
    if staying and len(staying) == len(members) and all(view.in_group(n, WorkerPhase.READY) for n in staying):
        if len({w.constants for n in staying for w in n.workers}) > 1:
            return Close(exit_code=2, reason="the workers' Sessions disagree: all must have the same arguments")
        world = _ranked(view, staying)
        too_many = len(world) > view.max_workers()
        extra = f"; {len(world) - view.max_workers()} stand by: the batch feeds no more" if too_many else ""
        world = world[: view.max_workers()]
        reason = f"all {sum(n.slots for n in staying)} workers opened a Session{extra}"
        return Settle(kind=Kind.LIVE, world=world, planned=True, reason=reason)
    phases = {w.phase for n in staying for w in n.workers}
    if phases == {WorkerPhase.READY, WorkerPhase.FINISHED}:
        return Close(exit_code=1, reason="some workers opened a Session, others ended without one")
    newcomers = [n for n in nodes if n.node not in members]
    if newcomers and phases <= {WorkerPhase.STARTING}:
        grace_ends = view.settled_at + view.policy.start_grace_s
        if now < grace_ends:
            return Hold(reason=f"{newcomers[0].node} waits to see whether the script opens a Session", until=grace_ends)
        return _start(view, nodes, planned=False, reason=f"restart: {newcomers[0].node} joined")
    return Hold(reason="workers are starting")


# -- live worlds ----------------------------------------------------------------------------------------------------


def _while_live(view: View, now: float) -> Decision:
    wanted, wait_until = _wanted_world(view, now)
    if view.gone or view.is_broken() or view.waits_for_the_finished():
        return _unplanned(view, wanted, now)
    if view.is_finishing():
        return Hold(reason="the job is finishing")
    if wanted == view.generation.world:
        return Hold(reason="nothing to change", until=wait_until)
    if not view.is_adopted():
        return Hold(reason=f"generation {view.generation.number} is not adopted yet")
    reason = _difference(view, wanted)
    return Settle(kind=Kind.LIVE, world=wanted, planned=True, reason=reason)


def _unplanned(view: View, wanted: tuple[WorkerId, ...], now: float) -> Decision:
    if not view.gone and view.broken_since is not None:
        deadline = view.broken_since + view.policy.evidence_wait_s
        if now < deadline:
            return Hold(reason="a collective failed; waiting to learn who died", until=deadline)
    if not wanted:
        if not view.is_occupied():
            return Hold(reason="waiting for a worker that is ready")
        return Settle(kind=Kind.LIVE, world=(), planned=False, reason="no worker of the world is left")
    nobody = "a collective failed and nobody is known to have died"
    reason = "; ".join(view.gone.values()) or (nobody if view.is_broken() else "some finished in the world before")
    return Settle(kind=Kind.LIVE, world=wanted, planned=False, reason=reason)


def _wanted_world(view: View, now: float) -> tuple[tuple[WorkerId, ...], float | None]:
    """The world that the records ask for, and when to look again if some workers still wait for their siblings."""
    current, trained = view.generation, view.trained
    chosen: list[WorkerId] = []
    look_again: list[float] = []
    for node in view.eligible_nodes():
        ready = [node.worker_id(w) for w in node.workers if w.phase is WorkerPhase.READY and not w.draining]
        new = [w for w in ready if w not in current and w not in trained]
        starting = any(w.phase is WorkerPhase.STARTING for w in node.workers)
        admit_at = view.ready_since.get(node.node, now) + view.policy.admit_wait_s
        if new and starting and now < admit_at:
            look_again.append(admit_at)
            ready = [w for w in ready if w in current or w in trained]
        chosen += ready
    chosen += _handing_over(view, chosen)
    # What the batch does not feed stands by; never a member for the sake of a newcomer, who may have no state to give.
    kept = sorted(rank_order(chosen, view.seniority), key=lambda w: (w not in current, w not in trained))[
        : view.max_workers()
    ]
    return rank_order(kept, view.seniority), min(look_again, default=None)


def _handing_over(view: View, chosen: list[WorkerId]) -> list[WorkerId]:
    """Workers asked to leave that hold the state while nobody who stays does: they stay until a successor has it.

    One that the settled world leaves out was told to go and may be gone any moment: it is not counted on.
    """
    holders = view.holders()
    if not any(n.workers for n in view.eligible_nodes()) or any(w in holders for w in chosen):
        return []
    leaving = [(n, w) for n, w in view.present() if n.draining and w.phase is WorkerPhase.READY and not w.draining]
    return [n.worker_id(w) for n, w in leaving if n.worker_id(w) in holders]


def _ranked(view: View, nodes: list[NodeRecord]) -> tuple[WorkerId, ...]:
    ready = [n.worker_id(w) for n in nodes for w in n.workers if w.phase is WorkerPhase.READY]
    return rank_order(ready, view.seniority)


def _on_a_fresh_store(view: View, settle: Settle) -> Decision:
    """The store of a group of processes is served by its first rank's node, and never by one that another group used:
    torch's names for keys carry no generation."""
    host = settle.world[0].node
    port = view.nodes[host].store_port
    if port == 0 or view.used_ports.get(host) == port:
        return Hold(reason=f"{host} is opening a store for the next generation")
    return settle


def _why_gone(view: View, node: str) -> str:
    record = view.nodes.get(node)
    return record.given_up if record else view.gone.get(node, f"node {node} is gone")


def _difference(view: View, new: tuple[WorkerId, ...]) -> str:
    remaining = set(new)
    joined = [w for w in new if w not in view.generation]
    left = [w for w in view.generation.world if w not in remaining]
    staying = {node.node for node in view.nodes.values() if not node.draining}
    drained = [w for w in left if w.node not in staying]
    standing_by = [w for w in left if w.node in staying]
    parts = [
        f"{_names(workers)} {what}"
        for workers, what in ((joined, "joined"), (drained, "drained"), (standing_by, "stand by"))
        if workers
    ]
    return ", ".join(parts) or "the order of ranks changed"


def _names(workers: list[WorkerId]) -> str:
    nodes = list(dict.fromkeys(w.node for w in workers))
    shown = ", ".join(nodes[:3]) + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")
    return f"{len(workers)} worker(s) of {shown}"
