"""Bugs of a coordinator that moves, to be planted one at a time, each with the checkers that may name it."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any

from pytest import MonkeyPatch

from elastic_runtime.core import coordinator, succession
from elastic_runtime.core.admission import turn_away
from elastic_runtime.core.coordinator import Coordinator
from elastic_runtime.core.flapping import Flapping
from elastic_runtime.core.handover import Gathering, Handover
from elastic_runtime.core.known import Known
from elastic_runtime.core.succession import Await, Claim, Situation
from elastic_runtime.core.view import Generation, View
from tests.simulation import membership
from tests.simulation.coordination import KeptHandover
from tests.simulation.coordinator_faults import ELECTED_KINDS
from tests.simulation.faults import Kinds
from tests.simulation.planted import Plant

OF_SUCCESSION: dict[str, tuple[Plant, set[str], Kinds]] = {}


def found_as(*checkers: str, kinds: tuple[str, ...] = tuple(ELECTED_KINDS)) -> Any:
    """`kinds`: the faults that bring it out, where all of them would take many histories."""

    def note(plant: Plant) -> Plant:
        OF_SUCCESSION[plant.__name__] = (plant, set(checkers), {kind: ELECTED_KINDS[kind] for kind in kinds})
        return plant

    return note


# -- the fence ------------------------------------------------------------------------------------------------------


@found_as("overruled", "generations")
def a_coordinator_does_not_fence(patch: MonkeyPatch) -> None:
    def fence(self: KeptHandover) -> Generator[Any, Any, Handover]:
        entry = yield ("ask", self._store.get)
        self._version = self.fenced = entry.version
        return entry.handover()

    patch.setattr(KeptHandover, "fence", fence)


@found_as("overruled", "generations")
def a_coordinator_ignores_that_it_was_overruled(patch: MonkeyPatch) -> None:
    original = KeptHandover.replace

    def insist(self: KeptHandover, document: Handover, done: Any) -> None:
        def answered(result: Any) -> None:
            if result is False:
                self._version = self._store.document.version
                insist(self, document, done)
            else:
                done(result)

        original(self, document, answered)

    patch.setattr(KeptHandover, "replace", insist)


@found_as("overruled", "after the end")
def the_end_of_a_job_is_not_fenced(patch: MonkeyPatch) -> None:
    patch.setattr(Coordinator, "_write_end", lambda self, now: self._end())


@found_as("generations", kinds=("kill_agent", "kill_coordinator", "kill_the_successor", "stop_coordinator"))
def the_numbers_begin_again_with_each_job(patch: MonkeyPatch) -> None:
    def kept(self: Coordinator, *, closed: Any = None) -> Handover:
        return self._handover(self.writing or self.generation, closed)

    patch.setattr(Coordinator, "handover", kept)


# -- who coordinates ------------------------------------------------------------------------------------------------


@found_as("claims")
def a_holder_that_does_not_answer_once_is_overruled(patch: MonkeyPatch) -> None:
    def hasty(situation: Situation, now: float, *, reclaim_s: float) -> Any:
        if situation.term and situation.silent == situation.term:
            return Claim(over=situation.term, reason="it does not answer")
        return succession.next_move(situation, now, reclaim_s=reclaim_s)

    patch.setattr(membership, "next_move", hasty)


@found_as("succession", "kept out", "liveness")
def a_refused_connection_is_no_evidence(patch: MonkeyPatch) -> None:
    def slow(situation: Situation, now: float, *, reclaim_s: float) -> Any:
        if situation.term and situation.refused == situation.term:
            return Await(reason="its lease decides")
        return succession.next_move(situation, now, reclaim_s=reclaim_s)

    patch.setattr(membership, "next_move", slow)


@found_as("kept out", "liveness")
def a_holder_that_did_not_answer_is_never_tried_again(patch: MonkeyPatch) -> None:
    patch.setattr(succession, "RETRY_S", 1e9)


# -- taking over ----------------------------------------------------------------------------------------------------


@found_as("gathering")
def a_successor_does_not_wait_for_the_others(patch: MonkeyPatch) -> None:
    original = Coordinator.resume

    def resume(self: Coordinator, *arguments: Any) -> None:
        original(self, *arguments)
        self.gathering.awaited = {}

    patch.setattr(Coordinator, "resume", resume)


@found_as("liveness", "kept out")
def a_successor_waits_for_ever(patch: MonkeyPatch) -> None:
    patch.setattr(Gathering, "give_up_late", lambda self, now: None)


@found_as("lost commit", "liveness", "early end")
def the_last_world_that_trained_is_not_handed_over(patch: MonkeyPatch) -> None:
    patch.setattr(coordinator, "last_trained", lambda left, nodes: Generation())


@found_as("ranks")
def seniority_is_not_handed_over(patch: MonkeyPatch) -> None:
    original = Coordinator.resume

    def resume(self: Coordinator, left: Handover, *arguments: Any) -> None:
        original(self, replace(left, seniority={}), *arguments)

    patch.setattr(Coordinator, "resume", resume)


@found_as("liveness")
def a_successor_does_not_ask_whom_the_world_before_lost(patch: MonkeyPatch) -> None:
    patch.setattr(Known, "_miss", lambda self, why: None)


@found_as("fresh store")
def used_stores_are_not_handed_over(patch: MonkeyPatch) -> None:
    patch.setattr(Known, "_ports_used_until", lambda self, generation: {})


# -- who comes back, and who does not go ------------------------------------------------------------------------------


@found_as("dead member", "survivors", "lost commit", "undisturbed run", "one state")
def an_evicted_node_goes_on_with_its_old_workers(patch: MonkeyPatch) -> None:
    def let_in(*arguments: Any, **more: Any) -> Any:
        turned_away = turn_away(*arguments, **more)
        return None if turned_away is not None and turned_away.rejoin else turned_away

    patch.setattr(coordinator, "turn_away", let_in)


@found_as("flapping")
def a_machine_that_fails_again_and_again_is_let_back_at_once(patch: MonkeyPatch) -> None:
    patch.setattr(Flapping, "free_at", lambda self, host, now: now)


@found_as("lost commit", kinds=("resize", "kill_worker", "trap_workers"))
def a_resize_keeps_whoever_came_first(patch: MonkeyPatch) -> None:
    def eligible(self: View) -> Any:
        members = self.generation.on_node
        staying = [n for n in self.nodes.values() if not n.draining and not n.given_up]
        staying = [n for n in staying if n.node in members or n.node not in self.held_back]
        return sorted(staying, key=lambda n: n.node not in members)[: self.most_nodes]

    patch.setattr(View, "eligible_nodes", eligible)
