"""Entering a generation: compare where everybody stands, and hand the newest state to whoever lacks it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple

import torch
import torch.distributed as dist

from elastic_runtime.core.recovery import FIELDS, Standing, Transfer, byte_ranges, plan_transfer
from elastic_runtime.errors import BrokenCollective
from elastic_runtime.session.carried import Carried, copy_range, payload_bytes

HEADER = 2  # bytes of the description, bytes of the tensors


def gather_standings(mine: Standing, rank: int, world_size: int) -> list[Standing]:
    """One small collective: everybody's standing, by rank."""
    if world_size == 1:
        return [mine]
    table = torch.zeros(world_size, FIELDS, dtype=torch.int64)
    table[rank] = torch.tensor(astuple(mine), dtype=torch.int64)
    _unbroken(lambda: dist.all_reduce(table))
    return [Standing(*row) for row in table.tolist()]


def transfer_state(
    carried: Carried, own: dict[str, object], standings: Sequence[Standing], rank: int
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
    _unbroken(lambda: dist.broadcast(header, lead))
    spec_bytes, size = header.tolist()
    ranges = byte_ranges(size, transfer.sources)
    if rank in transfer.sources:
        parts = [copy_range(tensors, ranges[rank].start, ranges[rank].stop)]
        if rank == lead:
            parts.insert(0, torch.frombuffer(bytearray(spec), dtype=torch.uint8))
        _unbroken(lambda: _wait([dist.isend(p, to) for to in transfer.targets for p in parts if p.numel()]))
        return transfer, own
    described = torch.empty(spec_bytes, dtype=torch.uint8)
    payload = torch.empty(size, dtype=torch.uint8)

    def pull() -> None:
        works = [dist.irecv(described, lead)]
        works += [dist.irecv(payload[r.start : r.stop], source) for source, r in ranges.items() if len(r)]
        _wait(works)

    _unbroken(pull)
    # Everything has arrived before anything is touched: a break in the transfer leaves the old state whole.
    return transfer, carried.load(described.numpy().tobytes(), payload)


def _wait(works: Sequence[dist.Work | None]) -> None:
    for work in works:
        if work is not None:
            work.wait()


def _unbroken(call: Callable[[], object]) -> None:
    try:
        call()
    except RuntimeError as error:
        raise BrokenCollective(str(error).splitlines()[0][:200]) from error
