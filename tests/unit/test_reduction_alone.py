"""Both reductions in a world of one: the loop's contract, ranges and scales."""

from __future__ import annotations

from math import isnan
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from elastic_runtime.errors import ConfigurationError, LoopContractError
from elastic_runtime.session.reduction import make_reduction


def one_parameter(mode: str, size: int = 3) -> tuple[nn.Parameter, Any]:
    parameter = nn.Parameter(torch.ones(size))
    return parameter, make_reduction(mode, [parameter], micro_batch_size=2, headroom_slots=4)


def one_step(parameter: nn.Parameter, reduction: Any, gradient: float, slots: int = 1) -> Any:
    reduction.start(group=None, slots=slots, share=range(slots))
    for slot in range(slots):
        reduction.backward(parameter.sum() * gradient, slot=slot, weight=2)
    return reduction.finish()


@pytest.mark.parametrize("mode", ["fast", "exact"])
def test_the_scale_of_a_gradient_scaler_is_in_the_gradient_and_not_in_the_loss(mode: str) -> None:
    parameter, reduction = one_parameter(mode)
    reduction.start(group=None, slots=1, share=range(1))
    reduction.backward(parameter.sum(), slot=0, weight=2, scale=lambda loss: loss * 1024)
    assert reduction.finish().loss == 3.0
    assert parameter.grad.tolist() == [1024.0] * 3


@pytest.mark.parametrize("mode", ["fast", "exact"])
def test_a_step_that_weighs_nothing_has_no_gradient(mode: str) -> None:
    parameter, reduction = one_parameter(mode)
    reduction.start(group=None, slots=2, share=range(2))
    reduction.skip(slot=0)
    reduction.backward(parameter.sum(), slot=1, weight=0)
    sums = reduction.finish()
    assert sums.weight == 0 and isnan(sums.loss) and parameter.grad is None


@pytest.mark.parametrize("mode", ["fast", "exact"])
def test_what_the_loop_must_not_do_is_refused(mode: str) -> None:
    parameter, reduction = one_parameter(mode)
    parameter.sum().backward()  # outside of an attempt it is nobody's business
    reduction.start(group=None, slots=2, share=range(2))
    with pytest.raises(LoopContractError, match=r"step\.backward"):
        parameter.sum().backward()
    with pytest.raises(LoopContractError, match="micro-batch 1"):
        reduction.skip(slot=1)
    reduction.skip(slot=0)
    with pytest.raises(LoopContractError, match="neither"):
        reduction.finish()
    reduction.abandon()
    reduction.close()
    reduction.start(group=None, slots=1, share=range(1))
    parameter.sum().backward()  # no hook is left
    assert parameter.grad is not None


@pytest.mark.parametrize("mode", ["fast", "exact"])
def test_gradients_that_cannot_be_reduced_are_refused_with_a_remedy(mode: str) -> None:
    table = nn.Embedding(4, 2, sparse=True)
    reduction = make_reduction(mode, list(table.parameters()), micro_batch_size=2, headroom_slots=1)
    reduction.start(group=None, slots=1, share=range(1))
    with pytest.raises(ConfigurationError, match="sparse=False"):
        reduction.backward(table(torch.tensor([1, 2])).sum(), slot=0, weight=2)
    shared = nn.Linear(3, 3)
    reduction = make_reduction(mode, list(shared.parameters()), micro_batch_size=2, headroom_slots=1)
    reduction.start(group=None, slots=1, share=range(1))
    once = checkpoint(shared, torch.ones(2, 3, requires_grad=True), use_reentrant=True)
    with pytest.raises(ConfigurationError, match="use_reentrant=False"):
        reduction.backward(checkpoint(shared, once, use_reentrant=True).sum(), slot=0, weight=2)


def test_a_gradient_is_rounded_to_the_nearest_multiple_of_its_range() -> None:
    quantum = 2.0 ** -(62 - 2 - 12)
    for given, kept in {0.5: 0, 0.75: 1, 1.5: 2, 2.5: 2, -1.5: -2, -0.25: 0, 2.0**23 + 1: 2.0**23 + 1}.items():
        parameter, reduction = one_parameter("exact")
        one_step(parameter, reduction, given * quantum)
        assert parameter.grad.tolist() == [kept * quantum] * 3, given


def test_an_overflow_installs_nothing_until_the_range_has_grown() -> None:
    parameter, reduction = one_parameter("exact")
    assert one_step(parameter, reduction, 2.0**12 - 1, slots=4).overflow == 0
    assert one_step(parameter, reduction, 2.0**12).overflow == 1
    assert parameter.grad is None
    reduction.grow()
    assert one_step(parameter, reduction, 2.0**12).overflow == 0
    assert parameter.grad.tolist() == [2.0**12] * 3


def test_growing_is_forgotten_with_the_attempt_and_ends_at_the_largest_float() -> None:
    parameter, reduction = one_parameter("exact")
    reduction.grow()
    reduction.abandon()
    assert one_step(parameter, reduction, 2.0**12).overflow == 1
    for _ in range(8):
        reduction.grow()
    sums = one_step(parameter, reduction, 2.0**127)
    assert sums.overflow == 0
    assert parameter.grad.tolist() == [2.0**127] * 3


def test_the_range_follows_committed_gradients_within_its_limits() -> None:
    parameter, reduction = one_parameter("exact")
    expected = {0.75: 0, 1.0: 1, 2.0**-40: -39, 2.0**-70: -60, 0.0: 0, 3.0: 2, float("nan"): 2}
    for gradient, exponent in expected.items():
        one_step(parameter, reduction, gradient)
        parameter.grad.zero_()  # clipping comes between; what was installed counts
        reduction.committed()
        assert reduction.state_dict()["exponents"].tolist() == [exponent], gradient
