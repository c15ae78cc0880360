"""A plain DistributedDataParallel loop: what `steady.py` compares with. Prints seconds per step as JSON from rank 0."""

from __future__ import annotations

import json
import sys
import time

import torch
import torch.distributed as dist
from model import GLOBAL_BATCH, Model, Tokens, loss_of
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

steps = int(sys.argv[1])
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(Model())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = Tokens()
loader = DataLoader(data, batch_size=GLOBAL_BATCH // dist.get_world_size(), sampler=DistributedSampler(data))
seconds: list[float] = []
batches = iter(loader)
last = time.perf_counter()
for _ in range(steps):
    optimizer.zero_grad()
    loss_of(model, next(batches)).backward()
    optimizer.step()
    now = time.perf_counter()
    seconds.append(now - last)
    last = now
if dist.get_rank() == 0:
    print(json.dumps(seconds))
dist.destroy_process_group()
