"""Plain DDP that restarts from a checkpoint: what `recovery.py` compares with. Arguments: ledger, checkpoint.

Rank 0 saves every tenth step. Each rank appends a line per step to the ledger: time, rank, pid, world size, step.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from model import GLOBAL_BATCH, Model, Tokens, loss_of
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

ledger, checkpoint = sys.argv[1], Path(sys.argv[2])
log = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DistributedDataParallel(Model())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
first = 0
if checkpoint.exists():
    saved = torch.load(checkpoint)
    model.module.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    first = saved["step"]
data = Tokens()
batches = iter(DataLoader(data, batch_size=GLOBAL_BATCH // world, sampler=DistributedSampler(data)))
for step in range(first, 100_000):
    optimizer.zero_grad()
    loss_of(model, next(batches)).backward()
    optimizer.step()
    os.write(log, f"{time.monotonic()} {rank} {os.getpid()} {world} {step}\n".encode())
    if rank == 0 and step % 10 == 9:
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
        torch.save(state, checkpoint.with_suffix(".tmp"))
        checkpoint.with_suffix(".tmp").rename(checkpoint)
