"""Sums in the parameters' own dtype, as DDP does: quick, equal on all ranks, different for each world size."""

from __future__ import annotations

from math import isfinite

import torch

from elastic_runtime.session.reduction.base import Reduction
from elastic_runtime.session.reduction.buckets import Bucket
from elastic_runtime.session.reduction.summary import Summary, fact_code

_WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


class FastReduction(Reduction):
    """Local micro-batches add up in `.grad`; the last one's buckets are copied and sent during its backward.

    In a world of one the gradients stay where autograd put them.
    """

    def _codes(self) -> list[int]:
        return [fact_code(used=parameter.grad is not None) for parameter in self.parameters]

    def _fill(self, bucket: Bucket) -> None:
        if self._group is None:
            return
        views, gradients = [], []
        for view, parameter in zip(bucket.views, bucket.parameters, strict=True):
            if parameter.grad is None:
                view.zero_()
            else:
                views.append(view)
                gradients.append(parameter.grad)
        if views:
            torch._foreach_copy_(views, gradients)

    def _install(self, bucket: Bucket, summary: Summary, divisor: float) -> int:
        used = [summary.used[member] for member in bucket.members]
        if not any(used):
            return 0
        if self._group is None:
            sums = [parameter.grad for parameter in bucket.parameters if parameter.grad is not None]
            torch._foreach_mul_(sums, 1.0 / divisor)
        else:
            bucket.buffer.mul_(1.0 / divisor)
            for view, parameter, anywhere in zip(bucket.views, bucket.parameters, used, strict=True):
                parameter.grad = view if anywhere else None
            sums = [bucket.buffer]
        # A finite sum has only finite terms, so that one number clears a whole bucket.
        if isfinite(sum(float(total.sum(dtype=_WIDE.get(total.dtype))) for total in sums)):
            return 0
        return sum(
            not bool(torch.isfinite(parameter.grad).all())
            for parameter in bucket.parameters
            if parameter.grad is not None
        )
