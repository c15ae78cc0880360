"""The same: accumulation is what a Session does whenever there are more micro-batches than workers."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from elastic_runtime import Session

GLOBAL_BATCH, MICRO_BATCH, STEPS = 32, 4, 10


def train() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(320, 8, generator=torch.Generator().manual_seed(1))
    dataset = TensorDataset(inputs, inputs.sin().sum(1, keepdim=True))
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    with Session(
        model=model,
        optimizer=optimizer,
        lr_scheduler=schedule,
        global_batch_size=GLOBAL_BATCH,
        micro_batch_size=MICRO_BATCH,
        max_grad_norm=1.0,
    ) as session:
        for step in session.steps(dataset, max_steps=STEPS, shuffle=False):
            for x, y in step:
                loss = nn.functional.mse_loss(model(x), y)
                step.backward(loss)
            if session.rank == 0:
                print(f"step {step.number} loss {step.loss:.9f}", flush=True)


if __name__ == "__main__":
    train()
