"""This worker's life in generations: enter a world, leave it, hold the newest state, line up with the others.

It does not know how a world is decided (it is told of settled ones) nor what a step computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial

import torch
import torch.distributed as dist

from elastic_runtime import environment
from elastic_runtime.core.batch import split
from elastic_runtime.core.messages import Adopted, Broken, Left, Ready, World
from elastic_runtime.core.recovery import IN_STEPS, Standing, served_first
from elastic_runtime.core.samples import micro_batch_key
from elastic_runtime.errors import BrokenCollective, JobClosed, LoopContractError
from elastic_runtime.session.carried import Carried
from elastic_runtime.session.defaults import Settled
from elastic_runtime.session.group import Group
from elastic_runtime.session.membership import Membership
from elastic_runtime.session.phases import Phases
from elastic_runtime.session.reduction import Reduction
from elastic_runtime.session.rng import seed_all
from elastic_runtime.session.sync import gather_standings, transfer_state
from elastic_runtime.session.waiting import wait_collective


class Drained(SystemExit):
    """Raised in the training loop of a worker that was drained, once its step is committed; it ends with code 0."""

    def __init__(self) -> None:
        super().__init__(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What `on_resize` is told. `pause_s`: seconds from leaving the old world to training in the new one."""

    old_world_size: int
    new_world_size: int
    generation: int
    reason: str
    micro_batches: int
    lr_scale: float
    pause_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The counters that move with a commit. All of it is carried state."""

    step: int = 0  # steps committed
    position: int = 0  # samples consumed
    committed_in: int = 0  # the generation of the last commit
    last_loss: float = float("nan")
    last_world_size: int = 0
    dataset_size: int = 0  # samples of the training set; 0 before it is known
    finished: bool = False  # the loop is over: a newcomer takes no further step


class Worker:
    def __init__(self, membership: Membership, settled: Settled, carried: Carried, reduction: Reduction) -> None:
        self.membership = membership
        self.arguments = settled.arguments
        self._settled = settled
        self.progress = Progress()
        self.on_resize: list[Callable[[Change], object]] = []
        self.change_agreed = False  # the last step's reduction agreed to enter the next generation
        self.evaluates_alone = False  # it joined a running job and has not yet been in a step with the others
        self._carried = carried
        self._reduction = reduction
        self._group = Group()
        reduction.is_over = self.is_ordered_off
        self._phases = Phases()
        self._world: World | None = None
        self._place = (IN_STEPS, 0)
        self._has_state = False
        self._lined_up = True
        self._together: list[int] = [0]  # the ranks that stood where the next collective is, at the last comparison

    @property
    def world(self) -> World:
        if self._world is None:
            raise LoopContractError("the Session has a rank and a world only inside `with Session(...) as session:`")
        return self._world

    # -- in and out ---------------------------------------------------------------------------------------------------

    def join(self) -> None:
        """Report ready and enter the first world. Blocks until there is one with this worker in it."""
        self.membership.open(lambda world: self._group.break_off(world.generation))
        digest, text = self.arguments.constants()
        self.membership.send(
            Ready(
                max_workers=self.arguments.max_workers,
                constants=digest,
                described=text,
                sources=self._settled.sources,
                unused=list(self._settled.unused),
            )
        )
        self._move_on()

    def close(self) -> None:
        self._group.leave()
        self.membership.close()
        self._world = None

    def recover(self, broken: BrokenCollective) -> None:
        """Leave the broken world and enter the next one. State is intact; what was in flight is void."""
        if not self.membership.elastic:
            raise RuntimeError(f"a peer is gone and this launcher cannot replace it: {broken}") from broken
        newest = self.membership.newest
        self._phases.begin(noticed_at=newest.noticed_at if newest and not newest.planned else 0.0, planned=False)
        self._reduction.abandon()
        self.membership.send(Broken(generation=self.world.generation, reason=str(broken)))
        self._group.leave()
        self._phases.mark("leave")
        self._move_on()

    def adopt_agreed(self) -> None:
        """Between two steps: if the last step's reduction agreed on a planned change, move into it."""
        if not self.change_agreed:
            return
        self._phases.begin(noticed_at=0.0, planned=True)
        self._group.leave()
        self._phases.mark("leave")
        self._move_on()

    def change_waits(self) -> bool:
        """Whether a generation after this worker's own is settled. Cheap: asked at every step."""
        newest = self.membership.newest
        return newest is not None and self._world is not None and newest.generation > self._world.generation

    def is_ordered_off(self) -> bool:
        """Whether the newest generation does not wait for the step in flight."""
        return self._group.is_ordered_off(self.world.generation)

    def _move_on(self) -> None:
        """Enter the newest settled world, and the one after it if that breaks, until this worker is a member of one."""
        old, entered = self._world, False
        generation = old.generation if old else 0
        while not entered:
            world = self._wait_newer(generation)
            generation = world.generation
            self._phases.mark("settle")
            try:
                entered = self._enter(world)
            except BrokenCollective as broken:
                self._phases.mark("group")
                self.membership.send(Broken(generation=generation, reason=str(broken)))
                self._group.leave()
        self.change_agreed = False
        if old is not None:
            self._phases.entered(old.world_size, self.world)
            change = self._change(old, self.world)
            for fn in self.on_resize:
                fn(change)

    def _wait_newer(self, generation: int) -> World:
        try:
            return self.membership.wait_newer(generation)
        except JobClosed as closed:
            raise SystemExit(closed.exit_code) from None

    def _enter(self, world: World) -> bool:
        """False: settled without this worker, wait for the next one. Leaves for good when drained."""
        if world.rank < 0:
            if world.leave:
                self.membership.send(Left(generation=world.generation, step=self.progress.step))
                raise Drained
            self.membership.send(Adopted(generation=world.generation))
            return False
        if self.membership.elastic:
            environment.publish_world(world)
            self._group.form(world)
        elif world.world_size > 1:
            dist.init_process_group("gloo")
        self._phases.mark("group")
        from_nothing = self._take_newest_state(world)
        self._world = world
        self.membership.send(Adopted(generation=world.generation, from_nothing=from_nothing))
        return True

    def _take_newest_state(self, world: World) -> bool:
        """Returns whether nobody had any: then rank 0's is where training starts."""
        standings = self._gather(world)
        counters: dict[str, object] = {f.name: getattr(self.progress, f.name) for f in fields(Progress)}
        transfer, counters = transfer_state(
            self._carried, counters, standings, world.rank, partial(self._group.is_ordered_off, world.generation)
        )
        pulled = world.rank in transfer.targets
        if pulled:
            self.progress = Progress(**counters)  # type: ignore[arg-type]
            seed_all(micro_batch_key(self.arguments.seed, self.progress.position, -1))
        if transfer.from_nothing:
            self.progress = replace(self.progress, committed_in=world.generation)
        elif not self._has_state:
            self.evaluates_alone = True
        self._has_state = True
        self._lined_up = False
        self._phases.mark("state", source=transfer.sources if pulled else ())
        return transfer.from_nothing

    def _change(self, old: World, new: World) -> Change:
        share = split(self.arguments.micro_batches(new.world_size), new.world_size, new.rank)
        return Change(
            old_world_size=old.world_size,
            new_world_size=new.world_size,
            generation=new.generation,
            reason=new.reason,
            micro_batches=len(share),
            lr_scale=self.arguments.lr_scale(new.world_size),
            pause_s=self._phases.pause_s(),
        )

    # -- together with the others -------------------------------------------------------------------------------------

    @contextmanager
    def at(self, place: int, slots: int) -> Iterator[None]:
        """Around a collective that is not a step's: `place` orders it, `slots` is the size of its reduction.

        After a break the place holds on, so that the peers of the next generation know what is still unfinished.
        """
        self._place = (place, slots)
        self.line_up()
        yield
        self._place = (IN_STEPS, 0)

    def line_up(self) -> None:
        """Before a collective: after a change, make sure that everybody's next collective is the same one.

        Some may be in the middle of an evaluation that others have behind them or, as newcomers, never enter. Those
        add nothing to its reduction until all stand at the same place. Only the script knows where it goes next (who
        has just pulled the commit of its step may be before an evaluation): so this is asked as late as possible.
        """
        while not self._lined_up:
            standings = self._gather(self.world)
            first = served_first(standings)
            self._together = [rank for rank, s in enumerate(standings) if s.place == first.place]
            if all(s.place == first.place for s in standings):
                self._lined_up = True
            elif first.place == self._place[0]:
                return
            elif first.slots:
                self.all_reduce(torch.zeros(first.slots, dtype=torch.int64))

    def share_here(self, pieces: int) -> range:
        """This worker's part of work that is done by those who stand at the same place as it does, inside `at`."""
        return split(pieces, len(self._together), self._together.index(self.world.rank))

    def _gather(self, world: World) -> list[Standing]:
        place, slots = self._place
        progress = self.progress
        mine = Standing(int(self._has_state), progress.committed_in, progress.step, place, slots)
        is_over = partial(self._group.is_ordered_off, world.generation)
        return gather_standings(mine, world.rank, world.world_size, is_over)

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """Sum over the world, in place. Raises BrokenCollective."""
        if self.world.world_size == 1:
            return
        try:
            work = [dist.all_reduce(tensor, async_op=True)]
        except RuntimeError as error:
            raise BrokenCollective(str(error).splitlines()[0][:200]) from error
        wait_collective(work, self.is_ordered_off)

    @property
    def process_group(self) -> dist.ProcessGroup | None:
        """The group that gradients are reduced over; None in a world of one."""
        return dist.group.WORLD if self.world.world_size > 1 else None

    def committed(self, progress: Progress) -> None:
        """Everything of the step is applied: move the counters, and account for the change that came before."""
        self.progress = progress
        self.evaluates_alone = False
        seed_all(micro_batch_key(self.arguments.seed, progress.position, -1))
        resumed = self._phases.resumed(progress.step - 1)
        if resumed is not None:
            self.membership.send(resumed)
