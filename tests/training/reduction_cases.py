"""A set of real workers over gloo that runs every case of test_reduction in each of several worlds.

Run as a script, once per rank: `reduction_cases.py RANK SIZE DIRECTORY WORLD...`. The worlds are subgroups of the same
processes, because starting a process costs far more than running a case. The results, and the model and the data that
the tests compute their expectations from, are plain tensors.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from elastic_runtime.core.batch import split
from elastic_runtime.core.samples import micro_batch_key
from elastic_runtime.errors import BrokenCollective
from elastic_runtime.session.reduction import Reduction, make_reduction
from elastic_runtime.session.rng import seed_all

SLOTS = 24
MICRO_BATCH = 4
STEPS = 4
# Tokens of each micro-batch where they differ; the one that weighs nothing is skipped.
RAGGED = tuple((3 * slot) % 7 + 1 if slot != 5 else 0 for slot in range(SLOTS))
EVEN = (MICRO_BATCH,) * SLOTS


def build(dtype: torch.dtype = torch.float32) -> tuple[nn.Module, torch.optim.Optimizer]:
    seed_all(7)
    model = nn.Sequential(
        nn.Linear(12, 48), nn.ReLU(), nn.Dropout(0.25), nn.Linear(48, 40), nn.Tanh(), nn.Dropout(0.1), nn.Linear(40, 5)
    ).to(dtype)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def micro_batch_loss(model: nn.Module, step: int, slot: int, weight: int, gain: float = 1.0) -> Tensor:
    """The mean loss over `weight` rows that depend on (step, slot) only, with dropout keyed the same way."""
    rows = torch.Generator().manual_seed(step * SLOTS + slot)
    dtype = next(model.parameters()).dtype
    inputs = torch.randn(weight, 12, generator=rows).to(dtype)
    targets = torch.randint(5, (weight,), generator=rows)
    seed_all(micro_batch_key(3, step, slot))
    return functional.cross_entropy(model(inputs), targets) * gain


class Branches(nn.Module):
    """Parameters that all micro-batches use, that only the first does, and that nobody does, in two buckets."""

    def __init__(self) -> None:
        super().__init__()
        seed_all(9)
        self.always, self.side = nn.Linear(6, 3), nn.Linear(6, 3)
        self.once, self.never = nn.Linear(6, 3), nn.Linear(6, 3)
        self.wide = nn.Linear(6, 50_000)

    def loss(self, slot: int, *, poisoned: int | None = None) -> Tensor:
        inputs = torch.randn(MICRO_BATCH, 6, generator=torch.Generator().manual_seed(slot))
        side = torch.full_like(inputs, float("nan")) if slot == poisoned else inputs
        out = self.always(inputs).square().mean() + self.side(side).mean()
        if slot == 0:
            out = out + self.once(inputs).square().mean()
        # Last here, so first in backward: its bucket is complete while the other one is not.
        return out + self.wide(inputs).square().mean()


def gradients(model: nn.Module) -> dict[str, Tensor | None]:
    return {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}


def reduction_for(mode: str, model: nn.Module, slots: int = SLOTS) -> Reduction:
    return make_reduction(mode, list(model.parameters()), micro_batch_size=MICRO_BATCH, headroom_slots=slots)


def train(
    group: Any,
    world: int,
    rank: int,
    *,
    mode: str = "exact",
    weights: tuple[int, ...] = EVEN,
    dtype: torch.dtype = torch.float32,
    gain: float = 1.0,
    grown: int = 0,
    shares: tuple[tuple[range, ...], ...] = (),
    hand_over: bool = False,
) -> dict[str, Any]:
    """Train for STEPS steps. `grown`: raise the range that often before the first step; `shares`: placements by
    step; `hand_over`: give the state to a new reduction after each step, as a joining worker would get it."""
    model, optimizer = build(dtype)
    reduction = reduction_for(mode, model)
    losses, redone, last = [], 0, {}
    for step in range(STEPS):
        share = shares[step % len(shares)][rank] if shares else split(SLOTS, world, rank)
        if step == 0:
            for _ in range(grown):
                reduction.grow()
        while True:
            reduction.start(group=group, slots=SLOTS, share=share)
            for slot in share:
                if weights[slot] == 0:
                    reduction.skip(slot=slot)
                    continue
                loss = micro_batch_loss(model, step, slot, weights[slot], gain)
                reduction.backward(loss, slot=slot, weight=weights[slot])
            sums = reduction.finish(flag=rank + 1)
            if not sums.overflow:
                break
            redone += 1
            reduction.grow()
        assert sums.flag == world * (world + 1) // 2
        last = gradients(model)
        optimizer.step()
        reduction.committed()
        losses.append(sums.loss)
        if hand_over:
            state = reduction.state_dict()
            reduction.close()
            reduction = reduction_for(mode, model)
            reduction.load_state_dict(state)
    return {
        "parameters": [p.detach().clone() for p in model.parameters()],
        "gradients": last,
        "losses": losses,
        "redone": redone,
    }


def branches(group: Any, world: int, rank: int, *, mode: str, slots: int = SLOTS, poisoned: int | None = None) -> Any:
    """The same step of the model with branches twice, in the buffers of the first the second time: its gradients."""
    model = Branches()
    reduction = reduction_for(mode, model, slots)
    share = split(slots, world, rank)
    for _ in range(2):
        reduction.start(group=group, slots=slots, share=share)
        for slot in share:
            reduction.backward(model.loss(slot, poisoned=poisoned), slot=slot, weight=MICRO_BATCH)
        reduction.finish()
    return {"gradients": gradients(model)}


UNEVEN = ((range(5), range(5, 5), range(5, 24)), (range(0), range(23), range(23, 24)))
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "exact": (train, {}),
    "exact, ragged": (train, {"weights": RAGGED}),
    "exact, handed over": (train, {"weights": RAGGED, "hand_over": True}),
    "exact, bfloat16": (train, {"dtype": torch.bfloat16}),
    "exact, overflowing": (train, {"gain": 1e6}),
    "exact, grown": (train, {"gain": 1e6, "grown": 1}),
    "fast": (train, {"mode": "fast"}),
    "fast, ragged": (train, {"mode": "fast", "weights": RAGGED}),
}
for _mode in ("fast", "exact"):
    CASES[f"{_mode}, branches"] = (branches, {"mode": _mode})
    CASES[f"{_mode}, poisoned"] = (branches, {"mode": _mode, "poisoned": 7})
    CASES[f"{_mode}, standby"] = (branches, {"mode": _mode, "slots": 2})


def lose_a_peer(directory: Path, size: int, rank: int) -> Any:
    """The last rank is killed after its gradients went out and before its summary did; the others start anew."""
    model, _ = build()
    reduction = reduction_for("exact", model)

    def attempt(world: int) -> None:
        share = split(SLOTS, world, rank)
        reduction.start(group=dist.group.WORLD, slots=SLOTS, share=share)
        for slot in share:
            reduction.backward(micro_batch_loss(model, 0, slot, MICRO_BATCH), slot=slot, weight=MICRO_BATCH)
        reduction.finish()

    if rank == size - 1:
        reduction._sum_up = lambda flag: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore
    began = time.monotonic()
    try:
        attempt(size)
    except BrokenCollective as broken:
        reason = str(broken)
    else:
        raise AssertionError("nobody noticed the death")
    took_s = time.monotonic() - began
    reduction.abandon()
    left = gradients(model)
    dist.destroy_process_group()
    join(directory / "survivors", size - 1, rank)
    attempt(size - 1)
    return {"reason": reason, "took_s": took_s, "left": left, "gradients": gradients(model)}


def join(store: Path, size: int, rank: int) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(str(store), size), rank=rank, world_size=size)


def main(rank: int, size: int, directory: Path, worlds: list[int]) -> None:
    torch.set_num_threads(1)
    # The first optimizer imports modules with functions that have the default group of that moment as a default
    # argument: a group that existed by then would never close its connections.
    build()
    join(directory / "all", size, rank)
    groups = {world: dist.new_group(list(range(world))) for world in worlds}
    results: dict[str, Any] = {}
    for world in worlds:
        if rank < world:
            for name, (case, options) in CASES.items():
                results[f"{name} in {world}"] = case(groups[world], world, rank, **options)
    if rank < 3:
        results["exact, uneven in 3"] = train(groups[3], 3, rank, shares=UNEVEN)
    # Nobody may still be busy with a case when the connections break.
    dist.barrier()
    results["lost"] = lose_a_peer(directory, size, rank)
    torch.save(results, directory / f"results-{rank}.pt")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), [int(world) for world in sys.argv[4:]])
