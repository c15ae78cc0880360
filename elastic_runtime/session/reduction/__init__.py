"""Averaging the gradients of a step over a world, in one of two ways that share one interface.

A reading order: `base` (the life of an attempt), `buckets` (what is sent when), `summary` (the small numbers that go
with it), then `fast` and `exact`.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from elastic_runtime.errors import ConfigurationError
from elastic_runtime.session.reduction.base import Reduction
from elastic_runtime.session.reduction.exact import ExactReduction
from elastic_runtime.session.reduction.fast import FastReduction
from elastic_runtime.session.reduction.summary import StepSums

__all__ = ["Reduction", "StepSums", "make_reduction"]


def make_reduction(
    mode: str, parameters: Sequence[nn.Parameter], *, micro_batch_size: int, headroom_slots: int
) -> Reduction:
    """The reduction called `mode`: "fast" (as DDP) or "exact" (the same bits for every world size).

    `parameters` are the trainable ones, in an order that is the same in every worker. `headroom_slots` is the largest
    number of micro-batches a step of this job can have; exact sums depend on it, so it is a constant of the job.
    """
    if mode == "fast":
        return FastReduction(parameters, micro_batch_size=micro_batch_size)
    if mode == "exact":
        return ExactReduction(parameters, micro_batch_size=micro_batch_size, headroom_slots=headroom_slots)
    raise ConfigurationError(f"reduction={mode!r} is not one of fast, exact")
