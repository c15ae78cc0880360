"""One optimizer step as the training loop sees it, and the loop's contract.

An attempt computes this worker's micro-batches and reduces; if the world breaks, the same loop goes on with the next
attempt's micro-batches. What the user's code sees is only more batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from elastic_runtime.core.batch import StepPlan, plan_step, split
from elastic_runtime.core.samples import indices, micro_batch_key
from elastic_runtime.errors import BrokenCollective, ConfigurationError, LoopContractError
from elastic_runtime.session.loader import Batches, Task
from elastic_runtime.session.rng import seed_all

if TYPE_CHECKING:
    from elastic_runtime.session.session import Session


class Source:
    """The training set and how it is read: which samples a step takes, and this worker's micro-batches of them."""

    def __init__(self, session: Session, dataset: Any, *, end: int | None, shuffle: bool, batches: Batches) -> None:
        self.size = len(dataset)
        self.end = end
        self._arguments = session.arguments
        self._shuffle = shuffle
        self._batches = batches

    def plan(self, position: int, world_size: int) -> StepPlan:
        return plan_step(
            position=position,
            end=self.end,
            micro_batch_size=self._arguments.micro_size(world_size),
            micro_batches=self._arguments.micro_batches(world_size),
        )

    def task(self, plan: StepPlan, slot: int) -> Task:
        seed = self._arguments.seed
        chosen = indices(seed=seed, size=self.size, positions=plan.offsets(slot), shuffle=self._shuffle)
        return Task(key=micro_batch_key(seed, plan.position, slot), indices=tuple(chosen))

    def open(self, tasks: list[Task]) -> Iterator[Any]:
        return self._batches.open(tasks)


def training_steps(
    session: Session,
    dataset: Any,
    *,
    max_steps: int | None = None,
    epochs: int | None = None,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    num_workers: int = 0,
    shuffle: bool = True,
) -> Iterator[Step]:
    """The steps still to be taken. Exactly one of `max_steps` and `epochs` (which ends with one smaller step)."""
    if (max_steps is None) == (epochs is None):
        raise ConfigurationError("steps() takes exactly one of max_steps= and epochs=")
    for name, value in (("max_steps", max_steps), ("epochs", epochs)):
        if value is not None and value < 0:
            raise ConfigurationError(f"{name} must not be negative, got {value}")
    batches = Batches(dataset, collate_fn=collate_fn, num_workers=num_workers)
    worker = session.worker
    end = None if epochs is None else epochs * len(dataset)
    source = Source(session, dataset, end=end, shuffle=shuffle, batches=batches)
    if source.size == 0:
        raise ConfigurationError("the dataset is empty")
    if worker.progress.dataset_size not in (0, source.size):
        raise ConfigurationError(
            f"this worker's dataset has {source.size} samples, the running job's has {worker.progress.dataset_size}"
        )
    worker.progress = replace(worker.progress, dataset_size=source.size)
    try:
        while (
            not worker.progress.finished
            and (max_steps is None or worker.progress.step < max_steps)
            and (end is None or worker.progress.position < end)
        ):
            number = worker.progress.step
            yield Step(session, source)
            if worker.progress.step == number:
                raise LoopContractError(
                    f"step {number} was left before its micro-batches ran out: it is not committed. "
                    "Iterate `for batch in step` to its end (use `step.skip()` for a batch that should not count)"
                )
    finally:
        batches.close()


class Step:
    """One global optimizer step. Iterate it once, to the end, answering each batch with `backward` or `skip`."""

    def __init__(self, session: Session, source: Source) -> None:
        self._session = session
        self._source = source
        self._slot: int | None = None  # the micro-batch that waits for its answer
        self._weights: dict[int, int] = {}
        self._indices: list[int] = []
        self._committed = False
        progress = session.worker.progress
        self.number: int = progress.step
        self.epoch: int = progress.position // source.size
        self.loss: float = float("nan")
        self.world_size: int = 0
        self.ends_epoch: bool = False

    @property
    def sample_indices(self) -> list[int]:
        """What this worker read in the attempt that committed (or is under way)."""
        return list(self._indices)

    def backward(self, loss: torch.Tensor, *, weight: int | None = None) -> None:
        """Backpropagate a micro-batch's mean loss. `weight`: what the mean is over; default its number of samples."""
        slot = self._take_slot("step.backward(loss)")
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise LoopContractError("step.backward() takes the micro-batch's scalar loss tensor")
        scaler = self._session.grad_scaler
        self._session.reduction.backward(
            loss, slot=slot, weight=self._weights[slot] if weight is None else weight, scale=scaler and scaler.scale
        )

    def skip(self) -> None:
        """Leave this micro-batch out of the step: it weighs nothing."""
        self._session.reduction.skip(slot=self._take_slot("step.skip()"))

    def _take_slot(self, call: str) -> int:
        slot, self._slot = self._slot, None
        if slot is None:
            raise LoopContractError(f"{call} belongs to exactly one batch of `for batch in step`, and once to each")
        return slot

    def __iter__(self) -> Iterator[Any]:
        if self._committed:
            raise LoopContractError(f"step {self.number} is committed: iterate each step once")
        worker = self._session.worker
        worker.adopt_agreed()
        if worker.progress.step > self.number:  # this worker stood by meanwhile, and has the state of others now
            self._adopt_commit()
        saved = self._session.save_buffers()
        while not self._committed:
            try:
                worker.line_up()
                yield from self._attempt()
                if not self._committed:
                    self._session.restore_buffers(saved)
            except BrokenCollective as broken:
                self._session.restore_buffers(saved)
                worker.recover(broken)
                if worker.progress.step > self.number:  # a peer had committed it: its state is here now
                    self._adopt_commit()

    def _attempt(self) -> Iterator[Any]:
        session, worker = self._session, self._session.worker
        world, position = worker.world, worker.progress.position
        plan = self._source.plan(position, world.world_size)
        share = split(len(plan.sizes), world.world_size, world.rank)
        self._weights = dict(enumerate(plan.sizes))
        self._indices = []
        session.reduction.start(group=worker.process_group, slots=len(plan.sizes), share=share)
        tasks = [self._source.task(plan, slot) for slot in share]
        for slot, task, batch in zip(share, tasks, self._source.open(tasks), strict=True):
            if worker.is_ordered_off():
                raise BrokenCollective("a later generation does not wait for this step")
            self._indices += task.indices
            self._slot = slot
            seed_all(task.key)
            yield batch
            if self._slot is not None:
                self._slot = None
                raise LoopContractError(
                    "a batch was left without `step.backward(loss)` or `step.skip()`. A plain loss.backward() is not "
                    "counted: call step.backward(loss) exactly once for each batch before taking the next"
                )
        sums = session.reduction.finish(flag=int(worker.change_waits()))
        if sums.overflow:  # exact mode: everybody sees it, and everybody computes the step again with more room
            session.reduction.grow()
            return
        self._commit(sums.loss, sums.flag > 0, sum(plan.sizes))

    def _commit(self, loss: float, change_agreed: bool, samples: int) -> None:
        session, worker = self._session, self._session.worker
        arguments, progress, world = session.arguments, worker.progress, worker.world
        size = world.world_size
        session.update.apply(loss, arguments.lr_scale(size), arguments.grad_norm(size))
        session.reduction.committed()
        worker.change_agreed = change_agreed
        worker.committed(
            replace(
                progress,
                step=progress.step + 1,
                position=progress.position + samples,
                committed_in=world.generation,
                last_loss=loss,
                last_world_size=world.world_size,
            )
        )
        self._adopt_commit()

    def _adopt_commit(self) -> None:
        progress = self._session.worker.progress
        self._committed = True
        self.loss, self.world_size = progress.last_loss, progress.last_world_size
        self.ends_epoch = progress.position // self._source.size > self.epoch
        self._session.evaluations = 0
