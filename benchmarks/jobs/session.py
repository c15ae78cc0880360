"""The loop of `ddp.py` with a Session. Arguments: steps, reduction. Prints seconds per step as JSON from rank 0."""

from __future__ import annotations

import json
import sys
import time

import torch
from model import GLOBAL_BATCH, MICRO_BATCH, Model, Tokens, loss_of

from elastic_runtime import Session

steps, reduction = int(sys.argv[1]), sys.argv[2]
torch.manual_seed(0)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
seconds: list[float] = []
with Session(
    model=model,
    optimizer=optimizer,
    global_batch_size=GLOBAL_BATCH,
    micro_batch_size=MICRO_BATCH,
    reduction=reduction,
    threads=1,
) as session:
    last = time.perf_counter()
    for step in session.steps(Tokens(), max_steps=steps):
        for batch in step:
            step.backward(loss_of(model, batch))
        now = time.perf_counter()
        seconds.append(now - last)
        last = now
    if session.rank == 0:
        print(json.dumps(seconds))
