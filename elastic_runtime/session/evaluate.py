"""A sum over a dataset, sharded over the world, with the same bits at every world size."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from elastic_runtime.core.batch import split
from elastic_runtime.core.samples import micro_batch_key
from elastic_runtime.errors import BrokenCollective, ConfigurationError
from elastic_runtime.session.loader import Batches, Task
from elastic_runtime.session.rng import seed_all

if TYPE_CHECKING:
    from elastic_runtime.session.session import Session


def evaluate(session: Session, dataset: Any, fn: Callable[[Any], Any], collate_fn: Any) -> float | torch.Tensor:
    """Each chunk of micro_batch_size samples has its own slot: filled by one worker, zero in the others, added up
    in order at the end. A break costs only the chunks of the worker that is gone."""
    chunk_samples = session.arguments.micro_batch_size
    chunks = -(-len(dataset) // chunk_samples)
    if not chunks:
        raise ConfigurationError("the dataset to evaluate is empty")
    worker, place = session.worker, session.evaluations
    session.evaluations += 1
    done: dict[int, torch.Tensor] = {}
    batches = Batches(dataset, collate_fn=collate_fn, num_workers=0)
    seed = session.arguments.seed
    key = micro_batch_key(seed, worker.progress.position, -1)

    def compute(chunk: int) -> None:
        samples = range(chunk * chunk_samples, min(len(dataset), (chunk + 1) * chunk_samples))
        task = Task(key=micro_batch_key(key, place, chunk), indices=tuple(samples))
        for batch in batches.open([task]):
            with torch.no_grad():
                value = torch.as_tensor(fn(batch), dtype=torch.float64).detach().cpu()
            done[chunk] = value

    try:
        if worker.evaluates_alone:
            for chunk in range(chunks):
                compute(chunk)
            return _in_order([done[chunk] for chunk in range(chunks)])
        while True:
            try:
                return _sharded(session, chunks, place, compute, done)
            except BrokenCollective as broken:
                worker.recover(broken)
    finally:
        batches.close()
        seed_all(key)  # an evaluation leaves no trace in the random numbers


def _sharded(
    session: Session, chunks: int, place: int, compute: Callable[[int], None], done: dict[int, torch.Tensor]
) -> float | torch.Tensor:
    worker = session.worker
    if not done:  # one is needed to know how many numbers fn returns: most likely one of this worker's own
        compute(min(chunks - 1, split(chunks, worker.world.world_size, worker.world.rank).start))
    width = next(iter(done.values())).numel()
    slots = torch.zeros(chunks, width, dtype=torch.int64)
    with worker.at(place, slots.numel()):
        # After a change some peers may have this evaluation behind them, or never enter it: they compute nothing here.
        for chunk in worker.share_here(chunks):
            if chunk not in done:
                compute(chunk)
            slots[chunk] = done[chunk].reshape(width).view(torch.int64)
        worker.all_reduce(slots)
    shape = next(iter(done.values())).shape
    return _in_order([value.reshape(shape) for value in slots.view(torch.float64)])


def _in_order(values: list[torch.Tensor]) -> float | torch.Tensor:
    total = torch.zeros_like(values[0])
    for value in values:
        total += value
    return total.item() if total.dim() == 0 else total
