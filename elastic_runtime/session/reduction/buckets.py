"""Groups of parameters that are reduced in one collective, and the strict order in which collectives start.

All ranks must start the same collectives in the same order. So a bucket that is ready early waits for those before
it, and what was not ready when backward ended is started by `finish`. A collective that cannot be started inside of an
autograd hook must not raise there: the failure is kept until `wait`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from elastic_runtime.errors import BrokenCollective
from elastic_runtime.session.waiting import wait_collective

# As DDP: a small first bucket starts the traffic early, larger ones then use the bandwidth well.
_FIRST_BUCKET_BYTES = 1 << 20
_BUCKET_BYTES = 25 << 20


class Bucket:
    """Parameters of one dtype on one device, by their places in the reduction's list.

    `views[i]` is where the i-th of them lives in the flat `buffer`. `pending` counts those without their last
    gradient in this attempt.
    """

    __slots__ = ("buffer", "dtype", "members", "parameters", "pending", "views")

    def __init__(self, members: Sequence[int], parameters: Sequence[nn.Parameter], dtype: torch.dtype) -> None:
        self.members = tuple(members)
        self.parameters = tuple(parameters)
        self.dtype = dtype
        self.pending = len(self.members)
        self.allocate()

    def allocate(self) -> None:
        """Take a new buffer, leaving the old one to whatever may still be writing to it."""
        self.buffer, self.views = flat_views(self.parameters, self.dtype)


def flat_views(parameters: Sequence[nn.Parameter], dtype: torch.dtype) -> tuple[Tensor, list[Tensor]]:
    """A flat buffer of zeros with room for all of `parameters`, and a view of it in the shape of each."""
    sizes = [parameter.numel() for parameter in parameters]
    buffer = torch.zeros(sum(sizes), dtype=dtype, device=parameters[0].device)
    parts = torch.split(buffer, sizes)
    return buffer, [part.view(parameter.shape) for part, parameter in zip(parts, parameters, strict=True)]


def make_buckets(parameters: Sequence[nn.Parameter], dtype: torch.dtype | None = None) -> list[Bucket]:
    """Buckets in the order in which backward is expected to fill them: that of the parameters, reversed.

    `dtype` is that of the buffers; None: that of the parameters.
    """
    open_members: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    groups: list[list[int]] = []
    for index in reversed(range(len(parameters))):
        parameter = parameters[index]
        members = open_members.setdefault((parameter.dtype, parameter.device), [])
        if not members:
            groups.append(members)
        members.append(index)
        limit = _FIRST_BUCKET_BYTES if members is groups[0] else _BUCKET_BYTES
        if sum(parameters[i].nbytes for i in members) >= limit:
            open_members[parameter.dtype, parameter.device] = []
    return [
        Bucket(members, [parameters[i] for i in members], dtype or parameters[members[0]].dtype) for members in groups
    ]


class Lane:
    """The collectives of one attempt, started strictly in the order of the buckets."""

    __slots__ = ("_buckets", "_fill", "_group", "_is_over", "_next", "_works", "failure")

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        buckets: Sequence[Bucket],
        fill: Callable[[Bucket], None],
        is_over: Callable[[], bool],
    ) -> None:
        """`fill` makes a bucket's buffer ready to be sent; it is called once for each bucket. `is_over` tells, while a
        collective does not return, that it is to be given up."""
        self._group = group
        self._buckets = buckets
        self._fill = fill
        self._is_over = is_over
        self._next = 0
        self._works: list[dist.Work | None] = []
        self.failure: RuntimeError | None = None

    def advance(self, *, everything: bool = False) -> None:
        """Start the collectives of the buckets that are complete, or of all that are left."""
        while self._next < len(self._buckets):
            bucket = self._buckets[self._next]
            if bucket.pending and not everything:
                return
            self._next += 1
            self._fill(bucket)
            self.start(bucket.buffer)

    def start(self, tensor: Tensor) -> None:
        """Start summing `tensor` over the world, after everything started before."""
        if self._group is None or self.failure is not None:
            self._works.append(None)
            return
        try:
            self._works.append(dist.all_reduce(tensor, group=self._group, async_op=True))
        except RuntimeError as error:
            self.failure = error

    def wait(self, index: int) -> None:
        """Wait for the collective that was started as number `index` (negative: from the last)."""
        if self.failure is not None:
            raise BrokenCollective(f"a reduction could not start: {self.failure}") from self.failure
        # No name here may hold the work: it would hold the group's sockets open while a traceback is kept, and
        # peers that wait for this rank learn of the break by their closing.
        try:
            wait_collective([work for work in [self._works[index]] if work is not None], self._is_over)
        except BrokenCollective as error:
            self.failure = RuntimeError(str(error))
            raise BrokenCollective(f"a reduction broke: {error}") from error

    def forget(self) -> None:
        """Let go of the group and of whatever is in flight."""
        self._group = None
        self._works.clear()
