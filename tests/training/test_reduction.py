"""The numbers of a reduced gradient, over real process groups, against plain PyTorch."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from math import frexp
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import reduction_cases as cases

WORLDS = {"small": (1, 2, 3), "large": (1, 2, 3, 4, 5, 7)}
LIMIT_S = {"small": 120, "large": 400}


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module", params=["small", pytest.param("large", marks=pytest.mark.slow)])
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results of every case: `worlds`, and `by_rank`, a list of dicts by "case in world"."""
    worlds = WORLDS[request.param]
    directory = tmp_path_factory.mktemp("reduction")
    size = max(worlds)
    environment = os.environ | {"PYTHONPATH": str(HERE.parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / "reduction_cases.py")]
    workers = [
        subprocess.Popen([*command, str(rank), str(size), str(directory), *map(str, worlds)], env=environment)
        for rank in range(size)
    ]
    try:
        codes = [worker.wait(LIMIT_S[request.param]) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert codes == [0] * (size - 1) + [-9]
    by_rank = [torch.load(directory / f"results-{rank}.pt", weights_only=False) for rank in range(size - 1)]
    return {"worlds": worlds, "by_rank": by_rank}


def reference(
    *, weights: tuple[int, ...] = cases.EVEN, dtype: torch.dtype = torch.float32, gain: float = 1.0, raised: int = 0
) -> dict[str, Any]:
    """The documented arithmetic of exact sums, one micro-batch after the other in one process.

    `raised`: by how much the exponents are raised in the first step.
    """
    model, optimizer = cases.build(dtype)
    parameters = list(model.parameters())
    exponents = [raised] * len(parameters)
    losses = []
    for step in range(cases.STEPS):
        scales = [2.0 ** (62 - 5 - 12 - exponent) for exponent in exponents]
        sums = [torch.zeros(p.shape, dtype=torch.int64) for p in parameters]
        weighted = 0.0
        for slot, weight in enumerate(weights):
            if weight == 0:
                continue
            model.zero_grad(set_to_none=True)
            loss = cases.micro_batch_loss(model, step, slot, weight, gain)
            weighted += weight * float(loss.detach())
            (loss if weight == cases.MICRO_BATCH else loss * (weight / cases.MICRO_BATCH)).backward()
            for total, p, scale in zip(sums, parameters, scales, strict=True):
                total += torch.round(p.grad.double() * scale).long()
        divisor = sum(weights) / cases.MICRO_BATCH
        for total, p, scale in zip(sums, parameters, scales, strict=True):
            p.grad = (total.double() * (1 / scale / divisor)).to(dtype)
        exponents = [frexp(float(p.grad.abs().max()))[1] for p in parameters]
        optimizer.step()
        losses.append(weighted / sum(weights))
    return {"parameters": [p.detach() for p in parameters], "losses": losses}


def full_batch_gradients(weights: tuple[int, ...]) -> list[list[Tensor]]:
    """The plain gradient of Σ w·loss / Σ w at each step of an ordinary run, in float64."""
    model, optimizer = cases.build()
    steps = []
    for step in range(cases.STEPS):
        sums = [torch.zeros(p.shape, dtype=torch.float64) for p in model.parameters()]
        for slot, weight in enumerate(weights):
            if weight == 0:
                continue
            model.zero_grad(set_to_none=True)
            cases.micro_batch_loss(model, step, slot, weight).backward()
            for total, p in zip(sums, model.parameters(), strict=True):
                total += weight * p.grad.double()
        steps.append([total / sum(weights) for total in sums])
        for p, gradient in zip(model.parameters(), steps[-1], strict=True):
            p.grad = gradient.float()
        optimizer.step()
    return steps


def same_bits(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(
        x.dtype == y.dtype and torch.equal(x.contiguous().view(torch.uint8), y.contiguous().view(torch.uint8))
        for x, y in zip(a, b, strict=True)
    )


def results_of(ran: dict[str, Any], case: str) -> list[tuple[int, int, Any]]:
    return [
        (world, rank, results[f"{case} in {world}"])
        for world in ran["worlds"]
        for rank, results in enumerate(ran["by_rank"])
        if rank < world
    ]


EXACT_CASES = {
    "exact": {},
    "exact, ragged": {"weights": cases.RAGGED},
    "exact, handed over": {"weights": cases.RAGGED},
    "exact, bfloat16": {"dtype": torch.bfloat16},
    "exact, overflowing": {"gain": 1e6, "raised": 16},
    "exact, grown": {"gain": 1e6, "raised": 16},
}


@pytest.mark.parametrize("case", EXACT_CASES)
def test_exact_sums_have_the_documented_bits_in_every_world(ran: dict[str, Any], case: str) -> None:
    expected = reference(**EXACT_CASES[case])
    for world, rank, result in results_of(ran, case):
        assert result["losses"] == expected["losses"], (world, rank)
        assert same_bits(result["parameters"], expected["parameters"]), (world, rank)
        assert result["redone"] == (case == "exact, overflowing"), (world, rank)


def test_exact_sums_do_not_depend_on_placement(ran: dict[str, Any]) -> None:
    expected = reference()
    for results in ran["by_rank"][:3]:
        assert same_bits(results["exact, uneven in 3"]["parameters"], expected["parameters"])
        assert results["exact, uneven in 3"]["losses"] == expected["losses"]


@pytest.mark.parametrize(("case", "weights"), [("fast", cases.EVEN), ("fast, ragged", cases.RAGGED)])
def test_fast_sums_are_the_full_batch_gradient_and_equal_on_all_ranks(
    ran: dict[str, Any], case: str, weights: tuple[int, ...]
) -> None:
    expected = full_batch_gradients(weights)[-1]
    for world, rank, result in results_of(ran, case):
        for gradient, plain in zip(result["gradients"].values(), expected, strict=True):
            # After several steps of an adaptive optimizer, whose weights carry the earlier differences along.
            assert (gradient.double() - plain).norm() <= 1e-5 * plain.norm(), (world, rank)
        first = ran["by_rank"][0][f"{case} in {world}"]
        assert same_bits(result["parameters"], first["parameters"]), (world, rank)
        assert result["losses"] == first["losses"]


def plain_branches(slots: int) -> dict[str, Tensor | None]:
    model = cases.Branches()
    for slot in range(slots):
        model.loss(slot).backward()
    return {name: None if p.grad is None else p.grad / slots for name, p in model.named_parameters()}


@pytest.mark.parametrize("mode", ["fast", "exact"])
@pytest.mark.parametrize(("case", "slots"), [("branches", cases.SLOTS), ("standby", 2)])
def test_a_parameter_used_by_one_rank_is_averaged_and_one_used_by_none_has_no_gradient(
    ran: dict[str, Any], mode: str, case: str, slots: int
) -> None:
    expected = plain_branches(slots)
    for world, rank, result in results_of(ran, f"{mode}, {case}"):
        for name, plain in expected.items():
            gradient = result["gradients"][name]
            assert (gradient is None) == (plain is None) == name.startswith("never"), (world, rank, name)
            if plain is not None:
                torch.testing.assert_close(gradient, plain, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("mode", ["fast", "exact"])
def test_a_nan_stays_in_the_parameter_it_came_up_in(ran: dict[str, Any], mode: str) -> None:
    clean = {world: result for world, _, result in results_of(ran, f"{mode}, branches")}
    for world, rank, result in results_of(ran, f"{mode}, poisoned"):
        for name, gradient in result["gradients"].items():
            if name == "side.weight":
                assert gradient.isnan().all(), (world, rank)
            elif gradient is not None:
                assert same_bits([gradient], [clean[world]["gradients"][name]]), (world, rank, name)


def test_a_death_in_the_middle_of_finish_breaks_the_attempt_and_nothing_else(ran: dict[str, Any]) -> None:
    survivors = [results["lost"] for results in ran["by_rank"]]
    model, _ = cases.build()
    reduction = cases.reduction_for("exact", model)
    reduction.start(group=None, slots=cases.SLOTS, share=range(cases.SLOTS))
    for slot in range(cases.SLOTS):
        reduction.backward(
            cases.micro_batch_loss(model, 0, slot, cases.MICRO_BATCH), slot=slot, weight=cases.MICRO_BATCH
        )
    reduction.finish()
    expected = [p.grad for p in model.parameters()]
    for survivor in survivors:
        assert survivor["took_s"] < 10
        assert "reduction" in survivor["reason"]
        assert set(survivor["left"].values()) == {None}
        assert same_bits(list(survivor["gradients"].values()), expected)
