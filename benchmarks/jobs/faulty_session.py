"""The job of `faulty_ddp.py` with a Session and no checkpoint. Arguments: ledger, and one that is ignored."""

from __future__ import annotations

import os
import sys
import time

import torch
from model import GLOBAL_BATCH, MICRO_BATCH, Model, Tokens, loss_of

from elastic_runtime import Session

log = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
torch.manual_seed(0)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
with Session(
    model=model, optimizer=optimizer, global_batch_size=GLOBAL_BATCH, micro_batch_size=MICRO_BATCH, threads=1
) as session:
    for step in session.steps(Tokens(), max_steps=100_000):
        for batch in step:
            step.backward(loss_of(model, batch))
        line = f"{time.monotonic()} {session.rank} {os.getpid()} {step.world_size} {step.number}\n"
        os.write(log, line.encode())
