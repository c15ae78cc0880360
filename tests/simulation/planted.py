"""Bugs to plant into the core, one at a time, each with the checkers that may name it.

Those of this file show where one node coordinates for ever; `planted_succession` has those of a coordinator that moves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pytest import MonkeyPatch

from elastic_runtime.core import batch, membership, recovery, view
from elastic_runtime.core.coordinator import Coordinator
from elastic_runtime.core.coordinator_events import Announce, Write, WriteFailed
from elastic_runtime.core.membership import Settle
from elastic_runtime.core.restarts import Restarts
from elastic_runtime.core.supervision import Supervisor
from elastic_runtime.core.supervision_events import Tell
from elastic_runtime.core.view import Kind, View
from elastic_runtime.core.world import WorkerPhase, assignments
from tests.simulation import script

Plant = Callable[[MonkeyPatch], None]
BUGS: dict[str, tuple[Plant, set[str]]] = {}


def found_as(*checkers: str) -> Callable[[Plant], Plant]:
    def note(plant: Plant) -> Plant:
        BUGS[plant.__name__] = (plant, set(checkers))
        return plant

    return note


# -- generations and worlds -----------------------------------------------------------------------------------------


@found_as("dead member")
def the_same_members_are_settled_after_a_loss(patch: MonkeyPatch) -> None:
    original = membership._unplanned

    def settle_the_same(view: View, wanted: Any, now: float) -> Any:
        decision = original(view, wanted, now)
        return replace(decision, world=view.generation.world) if isinstance(decision, Settle) else decision

    patch.setattr(membership, "_unplanned", settle_the_same)


@found_as("survivors")
def a_loss_starts_the_group_anew(patch: MonkeyPatch) -> None:
    original = membership._unplanned

    def start(view: View, wanted: Any, now: float) -> Any:
        decision = original(view, wanted, now)
        return replace(decision, kind=Kind.START) if isinstance(decision, Settle) and decision.world else decision

    patch.setattr(membership, "_unplanned", start)


@found_as("drained member")
def a_drained_node_stays(patch: MonkeyPatch) -> None:
    patch.setattr(View, "eligible_nodes", lambda self: [n for n in self.nodes.values() if not n.given_up])


@found_as("unadopted")
def a_planned_world_is_settled_on_top_of_one_that_is_not_adopted(patch: MonkeyPatch) -> None:
    patch.setattr(View, "is_adopted", lambda self: True)


@found_as("liveness")
def reports_of_a_broken_collective_are_ignored(patch: MonkeyPatch) -> None:
    patch.setattr(View, "is_broken", lambda self: False)


@found_as("no cause")
def a_broken_collective_is_seen_where_none_is(patch: MonkeyPatch) -> None:
    patch.setattr(View, "is_broken", lambda self: any(w.broken for _, w in self.present()))


@found_as("generations")
def the_number_of_a_failed_write_comes_back(patch: MonkeyPatch) -> None:
    original = Coordinator._take

    def take(self: Coordinator, event: Any, now: float) -> Any:
        effects = original(self, event, now)
        if isinstance(event, WriteFailed):
            self.numbered = self.generation.number
        return effects

    patch.setattr(Coordinator, "_take", take)


@found_as("generations")
def a_world_is_announced_before_the_store_has_it(patch: MonkeyPatch) -> None:
    original = Coordinator._decide

    def decide(self: Coordinator, now: float) -> Any:
        effects = original(self, now)
        return effects + [Announce(e.generation, tuple(self.nodes)) for e in effects if isinstance(e, Write)]

    patch.setattr(Coordinator, "_decide", decide)


@found_as("liveness")
def nobody_asks_whether_the_world_before_lost_somebody(patch: MonkeyPatch) -> None:
    patch.setattr(Coordinator, "_note_silent_peer", lambda self, node, reason: None)


@found_as("lost commit")
def the_last_holder_of_the_state_may_leave_at_once(patch: MonkeyPatch) -> None:
    patch.setattr(membership, "_handing_over", lambda view, chosen: [])


@found_as("survivors")
def workers_that_are_being_ended_count_as_ready(patch: MonkeyPatch) -> None:
    patch.setattr(View, "in_group", lambda self, node, phase: sum(w.phase is phase for w in node.workers) == node.slots)


# -- silence --------------------------------------------------------------------------------------------------------


@found_as("evictions")
def a_pause_of_a_second_is_taken_for_death(patch: MonkeyPatch) -> None:
    original = Coordinator._evict_silent

    def evict(self: Coordinator, now: float) -> Any:
        self.liveness.silent_after_s = 1.0
        return original(self, now)

    patch.setattr(Coordinator, "_evict_silent", evict)


@found_as("evictions")
def the_coordinator_takes_its_own_pause_for_the_silence_of_others(patch: MonkeyPatch) -> None:
    patch.setattr(Coordinator, "_excuse_own_pause", lambda self, now: None)


@found_as("liveness")
def silence_is_never_taken_for_death(patch: MonkeyPatch) -> None:
    patch.setattr(Coordinator, "_evict_silent", lambda self, now: [])


# -- an agent and its workers ---------------------------------------------------------------------------------------


@found_as("liveness")
def one_worker_of_a_node_is_told(patch: MonkeyPatch) -> None:
    original = Supervisor._announced

    def announced(self: Supervisor, event: Any, now: float) -> Any:
        effects = original(self, event, now)
        tells = [e for e in effects if isinstance(e, Tell)]
        return [e for e in effects if e not in tells[1:]]

    patch.setattr(Supervisor, "_announced", announced)


@found_as("budget")
def the_budget_of_restarts_is_not_respected(patch: MonkeyPatch) -> None:
    patch.setattr(Restarts, "spend", lambda self, now, *, elastic: True)


@found_as("budget")
def each_worker_of_a_failed_group_costs_a_restart(patch: MonkeyPatch) -> None:
    original = Supervisor._failed

    def failed(self: Supervisor, *arguments: Any) -> Any:
        self.failed_group = 0
        return original(self, *arguments)

    patch.setattr(Supervisor, "_failed", failed)


@found_as("survivors")
def a_node_restarts_its_workers_at_every_change(patch: MonkeyPatch) -> None:
    original = Supervisor._announced

    def announced(self: Supervisor, event: Any, now: float) -> Any:
        return original(self, replace(event, kind=Kind.START) if not event.planned else event, now)

    patch.setattr(Supervisor, "_announced", announced)


@found_as("early end")
def the_job_ends_with_the_first_that_finishes(patch: MonkeyPatch) -> None:
    def all_done(view: View) -> Any:
        done = any(w.phase is WorkerPhase.FINISHED for n in view.nodes.values() for w in n.workers)
        return membership.Close(exit_code=0, reason="somebody finished") if done else None

    patch.setattr(membership, "_all_done", all_done)


# -- state and samples ----------------------------------------------------------------------------------------------


@found_as("newest state", "one state")
def the_oldest_state_is_taken(patch: MonkeyPatch) -> None:
    def plan(standings: Any) -> Any:
        flipped = [replace(s, committed_in=-s.committed_in, step=-s.step) for s in standings]
        return recovery.plan_transfer(flipped)

    patch.setattr(script, "plan_transfer", plan)


@found_as("newest state")
def whoever_comes_first_is_the_source(patch: MonkeyPatch) -> None:
    def plan(standings: Any) -> Any:
        first = next((rank for rank, s in enumerate(standings) if s.has_state), None)
        if first is None:
            return recovery.plan_transfer(standings)
        others = tuple(rank for rank in range(len(standings)) if rank != first)
        return recovery.Transfer((first,), others, False)

    patch.setattr(script, "plan_transfer", plan)


@found_as("ranks")
def ranks_collide(patch: MonkeyPatch) -> None:
    def number_by_node(world: Any) -> Any:
        return {worker: replace(place, rank=place.node_rank) for worker, place in assignments(world).items()}

    patch.setattr(view, "assignments", number_by_node)


@found_as("samples", "evaluation")
def shares_overlap(patch: MonkeyPatch) -> None:
    def overlapping(micro_batches: int, world_size: int, rank: int) -> range:
        share = batch.split(micro_batches, world_size, rank)
        return range(max(0, share.start - 1), share.stop) if rank == world_size - 1 else share

    patch.setattr(script, "split", overlapping)


@found_as("samples")
def a_step_reads_on_past_the_end(patch: MonkeyPatch) -> None:
    patch.setattr(script, "plan_step", lambda **given: batch.plan_step(**{**given, "end": None}))


@found_as("collectives", "evaluation")
def the_last_evaluation_is_served_first(patch: MonkeyPatch) -> None:
    patch.setattr(script, "served_first", lambda standings: max(standings, key=lambda s: s.place))
