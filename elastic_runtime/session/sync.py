"""Entering a generation: compare where everybody stands, and hand the newest state to whoever lacks it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple

import torch
import torch.distributed as dist

from elastic_runtime.core.recovery import FIELDS, Standing, Transfer, byte_ranges, plan_transfer
from elastic_runtime.errors import BrokenCollective
from elastic_runtime.session.carried import Carried, copy_range, payload_bytes
from elastic_runtime.session.waiting import wait_collective, wait_point_to_point

HEADER = 2  # bytes of the description, bytes of the tensors


def gather_standings(mine: Standing, rank: int, world_size: int, is_over: Callable[[], bool]) -> list[Standing]:
    """One small collective: everybody's standing, by rank."""
    if world_size == 1:
        return [mine]
    table = torch.zeros(world_size, FIELDS, dtype=torch.int64)
    table[rank] = torch.tensor(astuple(mine), dtype=torch.int64)
    _finish(lambda: [dist.all_reduce(table, async_op=True)], is_over)
    return [Standing(*row) for row in table.tolist()]


def transfer_state(
    carried: Carried, own: dict[str, object], standings: Sequence[Standing], rank: int, is_over: Callable[[], bool]
) -> tuple[Transfer, dict[str, object]]:
    """Carry out `plan_transfer`. Returns what was done and the counters that hold now (own or pulled).

    Each target gets a range of the state's bytes from every source at once, point to point, over the group.
    """
    transfer = plan_transfer(standings)
    if not transfer.targets:
        return transfer, own
    spec, tensors = b"", list[torch.Tensor]()
    header = torch.zeros(HEADER, dtype=torch.int64)
    lead = transfer.sources[0]
    if rank in transfer.sources:
        spec, tensors = carried.export(own)
        header = torch.tensor([len(spec), payload_bytes(tensors)], dtype=torch.int64)
    _finish(lambda: [dist.broadcast(header, lead, async_op=True)], is_over)
    spec_bytes, size = header.tolist()
    ranges = byte_ranges(size, transfer.sources)
    if rank in transfer.sources:
        parts = [copy_range(tensors, ranges[rank].start, ranges[rank].stop)]
        if rank == lead:
            parts.insert(0, torch.frombuffer(bytearray(spec), dtype=torch.uint8))
        _finish(
            lambda: [dist.isend(p, to) for to in transfer.targets for p in parts if p.numel()],
            is_over,
            wait_point_to_point,
        )
        return transfer, own
    described = torch.empty(spec_bytes, dtype=torch.uint8)
    payload = torch.empty(size, dtype=torch.uint8)

    def pull() -> list[dist.Work | None]:
        works = [dist.irecv(described, lead)]
        return works + [dist.irecv(payload[r.start : r.stop], source) for source, r in ranges.items() if len(r)]

    _finish(pull, is_over, wait_point_to_point)
    # Everything has arrived before anything is touched: a break in the transfer leaves the old state whole.
    return transfer, carried.load(described.numpy().tobytes(), payload)


def _finish(
    start: Callable[[], list[dist.Work | None]],
    is_over: Callable[[], bool],
    wait: Callable[[list[dist.Work], Callable[[], bool]], None] = wait_collective,
) -> None:
    """Start and wait. Raises BrokenCollective for a failure of either."""
    try:
        works = [work for work in start() if work is not None]
    except RuntimeError as error:
        raise BrokenCollective(str(error).splitlines()[0][:200]) from error
    wait(works, is_over)
