"""A Session and plain DDP in turns in the same processes, over the same group. Arguments: reduction, blocks.

Prints from rank 0, as JSON, a pair for each block: seconds per step of DDP, and of the Session.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from model import GLOBAL_BATCH, MICRO_BATCH, Model, Tokens, loss_of
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from elastic_runtime import Session

BLOCK = 15
UNCOUNTED = 2  # steps at the start of a block, while the caches still hold the other's model

reduction, blocks = sys.argv[1], int(sys.argv[2])
data = Tokens()
torch.manual_seed(0)
model, replica = Model(), Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_ddp() -> Iterator[None]:
    ddp = DistributedDataParallel(replica)
    own = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    share = GLOBAL_BATCH // dist.get_world_size()
    while True:
        for batch in DataLoader(data, batch_size=share, sampler=DistributedSampler(data)):
            own.zero_grad()
            loss_of(ddp, batch).backward()
            own.step()
            yield


def train_session(session: Session) -> Iterator[None]:
    for step in session.steps(data, max_steps=(blocks + 1) * BLOCK):
        for batch in step:
            step.backward(loss_of(model, batch))
        yield


def block(steps: Iterator[None]) -> float:
    for _ in range(UNCOUNTED):
        next(steps)
    start = time.perf_counter()
    for _ in range(BLOCK - UNCOUNTED):
        next(steps)
    return (time.perf_counter() - start) / (BLOCK - UNCOUNTED)


with Session(
    model=model,
    optimizer=optimizer,
    global_batch_size=GLOBAL_BATCH,
    micro_batch_size=MICRO_BATCH,
    reduction=reduction,
    threads=1,
) as session:
    ddp, elastic = train_ddp(), train_session(session)
    turns: list[Callable[[], float]] = [lambda: block(ddp), lambda: block(elastic)]
    for turn in turns:
        turn()
    pairs = []
    for number in range(blocks):
        order = (0, 1) if number % 2 else (1, 0)
        took = {which: turns[which]() for which in order}
        pairs.append((took[0], took[1]))
    if session.rank == 0:
        print(json.dumps(pairs))
    next(elastic, None)  # the Session's steps have run out: the job is done
