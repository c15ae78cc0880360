"""What a worker's script does, in the words of the real `Session`: join, train, evaluate, finish; recover at any point.

It follows `session/worker.py`, `step.py`, `evaluate.py` and `session.py` line by line where order matters; the model is
a chain of hashes over (previous state, step, samples), so that a sample lost or read twice changes it for ever.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from elastic_runtime.core.batch import plan_step, split
from elastic_runtime.core.messages import Adopted, Finished, Left, Ready, World
from elastic_runtime.core.messages import Broken as BrokenReport
from elastic_runtime.core.recovery import FINISHING, IN_STEPS, Standing, plan_transfer, served_first
from tests.simulation.groups import Broken
from tests.simulation.process import Process, Script, ScriptExit

Waits = Generator[tuple[Any, ...], Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the script was written to do. `samples` None: bounded by steps only."""

    elastic: bool
    steps: int
    micro_batches: int
    micro_batch_size: int
    end: int | None  # first sample that must not be read
    eval_every: int  # 0: never
    eval_chunks: int
    build_s: float
    micro_batch_s: float
    commit_s: float

    def slot_ranges(self, step: int) -> list[tuple[int, int]]:
        """What the micro-batches of a step read, by plain arithmetic (the checkers trust nothing of the core here)."""
        start = step * self.micro_batches * self.micro_batch_size
        stop = start + self.micro_batches * self.micro_batch_size
        stop = stop if self.end is None else min(stop, self.end)
        return [(at, min(at + self.micro_batch_size, stop)) for at in range(start, stop, self.micro_batch_size)]

    def chain(self) -> list[int]:
        """The state after each number of steps of an undisturbed run."""
        states = [0]
        for step in range(self.steps):
            states.append(next_state(states[-1], step, self.slot_ranges(step)))
        return states


def next_state(state: int, step: int, ranges: list[tuple[int, int]]) -> int:
    return hash((state, step, *ranges))


class ElasticScript:
    """A script that uses `Session`."""

    def __init__(self, process: Process, job: Job) -> None:
        self.process, self.job = process, job
        self.state, self.step, self.position, self.committed_in = 0, 0, 0, 0
        self.has_state = False
        self.world: World | None = None
        self.change_agreed = False
        self.evaluates_alone = False
        self.evaluations = 0
        self.finished = False
        self.adopted: dict[int, None] = {}
        self._place = (IN_STEPS, 0)
        self._lined_up = True
        self._partners = (0, 1)  # this worker's place among those whose next collective is the same, and their number

    def main(self) -> Script:
        process, job = self.process, self.job
        process.at("building")
        yield ("sleep", job.build_s * (0.7 + 0.6 * process.cluster.rng.random()))
        process.say(Ready(max_workers=job.micro_batches, constants="same", described=""))
        yield from self._move_on()
        if job.eval_every:
            yield from self._evaluate()
        while self.step < job.steps:
            number = yield from self._one_step()
            if job.eval_every and (number + 1) % job.eval_every == 0:
                yield from self._evaluate()
        yield from self._finish()
        process.leave_group()
        process.at("after")
        yield ("sleep", 0.05 * process.cluster.rng.random())

    # -- generations --------------------------------------------------------------------------------------------------

    def _recover(self) -> Waits:
        assert self.world is not None
        self.process.say(BrokenReport(generation=self.world.generation, reason=""))
        self.process.leave_group()
        yield from self._move_on()

    def _adopt_agreed(self) -> Waits:
        if self.change_agreed:
            self.process.leave_group()
            yield from self._move_on()

    def _move_on(self) -> Waits:
        entered = False
        generation = self.world.generation if self.world else 0
        while not entered:
            self.process.at("waiting")
            world = yield ("news", generation)
            generation = world.generation
            try:
                entered = yield from self._enter(world)
            except Broken:
                self.process.say(BrokenReport(generation=generation, reason=""))
                self.process.leave_group()
        self.change_agreed = False

    def _enter(self, world: World) -> Waits:
        process = self.process
        if world.rank < 0:
            if world.leave:
                process.say(Left(generation=world.generation, step=self.step))
                raise ScriptExit(0)
            self._adopt(world.generation)
            return False
        process.generation = world.generation
        process.at("meeting")
        host = process.cluster.agent_at(world.store_host)
        process.group = yield ("meet", host, ("live", world.generation), world.rank, world.world_size)
        yield from self._take_newest_state(world)
        self.world = world
        self._adopt(world.generation)
        return True

    def _adopt(self, generation: int) -> None:
        self.adopted[generation] = None
        self.process.say(Adopted(generation=generation))

    def _take_newest_state(self, world: World) -> Waits:
        self.process.at("gathering")
        standings = yield from self._gather(world.world_size)
        transfer = plan_transfer(standings)
        pulled = world.rank in transfer.targets
        if transfer.targets:
            self.process.at("pulling" if pulled else "sending")
            mine = (self.state, self.step, self.position, self.committed_in)
            states = yield from self._together(world.world_size, "transfer", mine)
            self.process.cluster.checkers.training.transferred(self.process, world, standings, transfer, states)
            if pulled:
                self.state, self.step, self.position, self.committed_in = states[transfer.sources[0]]
        if transfer.from_nothing:
            self.process.cluster.checkers.training.began(self.process, world)
            self.committed_in = world.generation
        elif not self.has_state:
            self.evaluates_alone = True
        self.has_state = True
        self._lined_up = False

    # -- together -----------------------------------------------------------------------------------------------------

    def _together(self, world_size: int, kind: Any, value: Any) -> Waits:
        """One collective: what each rank gave to it. A world of one needs none."""
        if world_size == 1:
            return [value]
        return (yield ("enter", kind, value))

    def _gather(self, world_size: int) -> Waits:
        place, slots = self._place
        mine = Standing(int(self.has_state), self.committed_in, self.step, place, slots)
        return (yield from self._together(world_size, "gather", mine))

    def _line_up(self) -> Waits:
        world = self.world
        assert world is not None
        self._partners = (world.rank, world.world_size)
        while not self._lined_up:
            self.process.at("lining up")
            standings = yield from self._gather(world.world_size)
            first = served_first(standings)
            together = [rank for rank, s in enumerate(standings) if s.place == first.place]
            if len(together) == len(standings):
                self._lined_up = True
            elif first.place == self._place[0]:
                self._partners = (together.index(world.rank), len(together))
                return
            else:
                yield from self._together(world.world_size, ("sum", first.slots), None)

    # -- a step -------------------------------------------------------------------------------------------------------

    def _one_step(self) -> Waits:
        number = self.step
        yield from self._adopt_agreed()
        committed = self.step > number  # it stood by meanwhile, and has the state of others now
        while not committed:
            try:
                yield from self._line_up()
                yield from self._attempt()
                committed = True
            except Broken:
                yield from self._recover()
                committed = self.step > number  # a peer had committed it: its state is here now
        self.evaluations = 0
        return number

    def _attempt(self) -> Waits:
        process, job, world = self.process, self.job, self.world
        assert world is not None
        plan = plan_step(
            position=self.position,
            end=job.end,
            micro_batch_size=job.micro_batch_size,
            micro_batches=job.micro_batches,
        )
        share = split(len(plan.sizes), world.world_size, world.rank)
        process.at("computing")
        if share and process.ordered_off > world.generation:
            raise Broken("a later generation does not wait for this step")
        yield ("compute", job.micro_batch_s * len(share) * (0.9 + 0.2 * process.cluster.rng.random()))
        ranges = [(offsets.start, offsets.stop) for offsets in map(plan.offsets, share)]
        flag = process.newest is not None and process.newest.generation > world.generation
        process.at("reducing")
        parts = yield from self._together(world.world_size, "step", (flag, self.step, self.state, ranges))
        process.cluster.checkers.training.reduced(process, world, self, parts)
        process.at("committing")
        yield ("sleep", job.commit_s)
        self.state = next_state(self.state, self.step, sorted(r for _, _, _, part in parts for r in part))
        self.step, self.position, self.committed_in = self.step + 1, self.position + plan.samples, world.generation
        self.change_agreed = any(flag for flag, *_ in parts)
        self.evaluates_alone = False
        process.cluster.checkers.training.committed(process, world, self)

    # -- an evaluation, and the end -----------------------------------------------------------------------------------

    def _evaluate(self) -> Waits:
        place = self.evaluations
        self.evaluations += 1
        if self.evaluates_alone:
            self.process.at("evaluating")
            yield ("sleep", self.job.micro_batch_s)
            return
        while True:
            try:
                return (yield from self._sharded(place))
            except Broken:
                yield from self._recover()

    def _sharded(self, place: int) -> Waits:
        world, chunks = self.world, self.job.eval_chunks
        assert world is not None
        self.process.at("evaluating")
        yield ("sleep", self.job.micro_batch_s * 0.5)
        self._place = (place, chunks)
        yield from self._line_up()
        place_among, partners = self._partners
        share = [(self.step, place, chunk) for chunk in split(chunks, partners, place_among)]
        parts = yield from self._together(world.world_size, ("sum", chunks), share)
        self._place = (IN_STEPS, 0)
        self.process.cluster.checkers.training.evaluated(self.process, world, (self.step, place), chunks, parts)

    def _finish(self) -> Waits:
        while True:
            try:
                self._place = (FINISHING, 0)
                yield from self._line_up()
                assert self.world is not None
                self.process.at("finishing")
                yield from self._together(self.world.world_size, "finish", None)
                yield from self._together(self.world.world_size, "finish", None)
                break
            except Broken:
                yield from self._recover()
        self.finished = True
        self.process.cluster.checkers.training.finished(self.process, self)
        self.process.say(Finished(steps=self.step))


def static_script(process: Process, job: Job) -> Script:
    """A script without a Session: one group for its whole life, which ends with any of its members."""
    start = process.started_by
    place = start.announced.members[process.slot, 0]
    process.at("building")
    yield ("sleep", job.build_s * (0.7 + 0.6 * process.cluster.rng.random()))
    process.generation = start.announced.generation
    process.at("meeting")
    try:
        host = process.cluster.agent_at(start.announced.store_host)
        key = ("start", start.announced.store_port)
        process.group = yield ("meet", host, key, place.rank, place.world_size)
        for _ in range(job.steps):
            process.at("computing")
            yield ("compute", job.micro_batch_s)
            process.at("reducing")
            yield ("enter", "static", None)
    except Broken:
        raise ScriptExit(1) from None
    process.at("after")
    yield ("sleep", 0.05)
