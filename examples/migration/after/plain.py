"""The same on workers that may die, join and leave: elasticrun --nproc-per-node=2 plain.py"""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from elastic_runtime import Session

GLOBAL_BATCH, EPOCHS = 32, 2


def train() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(160, 8, generator=torch.Generator().manual_seed(1))
    dataset = TensorDataset(inputs, inputs.sin().sum(1, keepdim=True))
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with Session(model=model, optimizer=optimizer, global_batch_size=GLOBAL_BATCH, micro_batch_size=8) as session:
        for step in session.steps(dataset, epochs=EPOCHS, shuffle=False):
            for x, y in step:
                loss = nn.functional.mse_loss(model(x), y)
                step.backward(loss)
            if session.rank == 0:
                print(f"step {step.number} loss {step.loss:.9f}", flush=True)


if __name__ == "__main__":
    train()
