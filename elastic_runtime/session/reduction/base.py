"""The life of one attempt at a step's gradients, common to both ways of reducing them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from elastic_runtime.errors import ConfigurationError, LoopContractError
from elastic_runtime.session.reduction.buckets import Bucket, Lane, make_buckets
from elastic_runtime.session.reduction.summary import StepSums, Summary, pack_summary, unpack_summary


class Reduction:
    """Averages the gradients of the micro-batches of a step: Σ (wᵢ/b)·gᵢ / (Σ wᵢ / b) over the whole world.

    An attempt is `start`, then `backward` or `skip` for every slot of the share in ascending order, then `finish`,
    which leaves the average in `.grad` (None where no rank used the parameter). After `finish` raised BrokenCollective,
    or to give up at any point, `abandon`; then `start` again, possibly on another group. `committed` follows the
    optimizer's step. What is summed are copies, so a broken attempt ruins nothing else.

    While the last micro-batch of the share is in backward, complete buckets are already on their way. Buffers are kept
    between steps; after `finish` gradients are views of them, valid until the next `start`.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], *, micro_batch_size: int, buffer_dtype: torch.dtype | None = None
    ) -> None:
        """`buffer_dtype` is what gradients are summed in over the world; None: each in its own dtype."""
        self.parameters = tuple(parameters)
        if not self.parameters:
            raise ConfigurationError("the model has no parameters that require gradients")
        self._micro_batch_size = micro_batch_size
        self._buckets = make_buckets(self.parameters, buffer_dtype)
        self._bucket_of = {index: bucket for bucket in self._buckets for index in bucket.members}
        self._attempting = False
        self._group: dist.ProcessGroup | None = None
        self.is_over: Callable[[], bool] = lambda: False  # whether a collective that does not return is to be given up
        self._lane = Lane(None, (), self._fill, self.is_over)
        self._buffers_lost = False
        self._in_backward = False
        self._last = False
        self._fired = bytearray()
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(partial(self._on_gradient, index))  # type: ignore[no-untyped-call]
            for index, parameter in enumerate(self.parameters)
        ]

    def start(self, *, group: dist.ProcessGroup | None, slots: int, share: range) -> None:
        """Begin an attempt at a step of `slots` micro-batches, of which this rank computes `share`.

        `group` None is a world of one, without any collective.
        """
        self._group = group
        self._slots = slots
        self._share = share
        self._expected = share.start
        self._weights: dict[int, int] = {}
        self._losses: dict[int, Tensor] = {}
        for bucket in self._buckets:
            bucket.pending = len(bucket.members)
            if self._buffers_lost:
                bucket.allocate()
        self._buffers_lost = False
        self._lane = Lane(group, self._buckets, self._fill, self.is_over)
        self._drop_gradients()
        self._attempting = True

    def backward(
        self, loss: Tensor, *, slot: int, weight: int, scale: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        """Add the gradient of `loss`, the mean over the `weight` samples or tokens of micro-batch `slot`.

        `scale` multiplies what is differentiated (a gradient scaler's), not what is recorded. A weight of 0 is `skip`.
        """
        if weight <= 0:
            if weight < 0:
                raise ConfigurationError(f"weight={weight}: a micro-batch cannot weigh less than nothing")
            self.skip(slot=slot)
            return
        self._take(slot)
        self._weights[slot] = weight
        self._losses[slot] = loss.detach()
        if weight != self._micro_batch_size:
            loss = loss * (weight / self._micro_batch_size)
        if scale is not None:
            loss = scale(loss)
        self._last = slot == self._share.stop - 1
        self._fired = bytearray(len(self.parameters))
        self._in_backward = True
        try:
            loss.backward()  # type: ignore[no-untyped-call]
        finally:
            self._in_backward = False
            self._last = False
        self._after_backward()

    def skip(self, *, slot: int) -> None:
        """Micro-batch `slot` contributes nothing: weight 0."""
        self._take(slot)

    def finish(self, *, flag: int = 0) -> StepSums:
        """Wait for the world's gradients and install their average; the sums are the same on every rank.

        With `overflow` > 0 nothing is installed: call grow() and redo the step. Raises BrokenCollective.
        """
        if self._expected < self._share.stop:
            raise LoopContractError(f"micro-batch {self._expected} had neither a backward nor a skip")
        with torch.no_grad():
            self._lane.advance(everything=True)
            summary = self._sum_up(flag)
            overflow = sum(summary.overflow)
            for index, bucket in enumerate(self._buckets):
                # Waited for even when nothing will be installed: the buffers are about to be used again.
                self._lane.wait(index)
                if not overflow:
                    self._install(bucket, summary, summary.weight / self._micro_batch_size)
        if overflow:
            self._drop_gradients()
        self._forget_group()
        self._attempting = False
        return StepSums(flag=summary.flag, weight=summary.weight, loss=summary.loss, overflow=overflow)

    def abandon(self) -> None:
        """Give the attempt up: gradients become None, what is in flight is forgotten. Never blocks, never raises."""
        self._attempting = False
        # A collective that is still in flight may write to its buffer at any time from now on.
        self._buffers_lost = True
        self._forget_group()
        self._drop_gradients()

    def committed(self) -> None:
        """The optimizer has stepped with the gradients that `finish` installed."""

    def grow(self) -> None:
        """Make room for larger gradients, until the next `committed` or `abandon`."""

    def state_dict(self) -> dict[str, Any]:
        """What a joining worker needs to get the same bits."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the `state_dict` of a peer."""

    def close(self) -> None:
        """Take the hooks off the parameters again and let go of the group."""
        for hook in self._hooks:
            hook.remove()
        self._forget_group()

    def _take_gradient(self, index: int, parameter: nn.Parameter) -> None:
        """A micro-batch's gradient stands in `parameter.grad`."""

    def _after_backward(self) -> None:
        """All gradients of a micro-batch were taken."""

    def _codes(self) -> list[int]:
        """This rank's facts about each parameter (see summary)."""
        raise NotImplementedError

    def _fill(self, bucket: Bucket) -> None:
        """Make the buffer of `bucket` ready to be summed over the world."""
        raise NotImplementedError

    def _install(self, bucket: Bucket, summary: Summary, divisor: float) -> None:
        """Turn the summed buffer into gradients."""
        raise NotImplementedError

    def _on_gradient(self, index: int, parameter: nn.Parameter) -> None:
        if not self._in_backward:
            if self._attempting:
                raise LoopContractError("call step.backward(loss) where the script calls loss.backward()")
            return
        if self._fired[index]:
            raise ConfigurationError(
                f"the parameter at place {index} got two gradients in one backward: use checkpoint(use_reentrant=False)"
            )
        self._fired[index] = 1
        if parameter.grad.is_sparse:  # type: ignore[union-attr]
            raise ConfigurationError(
                f"the parameter at place {index} has a sparse gradient; build its module with sparse=False"
            )
        self._take_gradient(index, parameter)
        if self._last:
            bucket = self._bucket_of[index]
            bucket.pending -= 1
            if not bucket.pending:
                self._lane.advance()

    def _sum_up(self, flag: int) -> Summary:
        numbers = pack_summary(
            flag=flag,
            codes=self._codes(),
            slots=self._slots,
            weights=self._weights,
            losses={slot: float(loss) for slot, loss in self._losses.items()},
        )
        if self._group is not None:
            summed = torch.tensor(numbers, dtype=torch.int64).to(self.parameters[0].device)
            self._lane.start(summed)
            self._lane.wait(-1)
            numbers = summed.tolist()
        return unpack_summary(numbers, parameters=len(self.parameters), slots=self._slots)

    def _take(self, slot: int) -> None:
        if not self._attempting or slot != self._expected or slot >= self._share.stop:
            raise LoopContractError(f"micro-batch {slot} came where {self._expected} of {self._share} was expected")
        self._expected += 1

    def _forget_group(self) -> None:
        """A group that is left closes its connections only when nobody holds it any more."""
        self._group = None
        self._lane.forget()

    def _drop_gradients(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None
