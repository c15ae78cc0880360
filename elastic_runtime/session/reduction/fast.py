"""Sums in the parameters' own dtype, as DDP does: quick, equal on all ranks, different for each world size."""

from __future__ import annotations

import torch

from elastic_runtime.session.reduction.base import Reduction
from elastic_runtime.session.reduction.buckets import Bucket
from elastic_runtime.session.reduction.summary import Summary, fact_code


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

    def _install(self, bucket: Bucket, summary: Summary, divisor: float) -> None:
        used = [summary.used[member] for member in bucket.members]
        if not any(used):
            return
        if self._group is None:
            torch._foreach_mul_([p.grad for p in bucket.parameters if p.grad is not None], 1.0 / divisor)
            return
        bucket.buffer.mul_(1.0 / divisor)
        for view, parameter, anywhere in zip(bucket.views, bucket.parameters, used, strict=True):
            parameter.grad = view if anywhere else None
