"""DistributedDataParallel with gradient accumulation, clipping and a schedule: torchrun --nproc-per-node=2 ..."""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

GLOBAL_BATCH, MICRO_BATCH, STEPS = 32, 4, 10


def train() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(320, 8, generator=torch.Generator().manual_seed(1))
    dataset = TensorDataset(inputs, inputs.sin().sum(1, keepdim=True))
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    loader = DataLoader(dataset, batch_size=MICRO_BATCH, sampler=DistributedSampler(dataset, shuffle=False))
    pieces = GLOBAL_BATCH // (MICRO_BATCH * dist.get_world_size())
    total = torch.zeros(())
    for number, (x, y) in enumerate(loader, 1):
        last = number % pieces == 0
        with nullcontext() if last else model.no_sync():
            loss = nn.functional.mse_loss(model(x), y) / pieces
            loss.backward()
        total += loss.detach() / dist.get_world_size()
        if last:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            dist.all_reduce(total)
            if dist.get_rank() == 0:
                print(f"step {number // pieces - 1} loss {total.item():.9f}", flush=True)
            total.zero_()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train()
    dist.destroy_process_group()
