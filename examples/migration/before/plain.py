"""A DistributedDataParallel loop as most scripts have it: torchrun --nproc-per-node=2 plain.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

GLOBAL_BATCH, EPOCHS = 32, 2


def train() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(160, 8, generator=torch.Generator().manual_seed(1))
    dataset = TensorDataset(inputs, inputs.sin().sum(1, keepdim=True))
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    sampler = DistributedSampler(dataset, shuffle=False)
    loader = DataLoader(dataset, batch_size=GLOBAL_BATCH // dist.get_world_size(), sampler=sampler)
    step = 0
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            mean = loss.detach() / dist.get_world_size()
            dist.all_reduce(mean)
            if dist.get_rank() == 0:
                print(f"step {step} loss {mean.item():.9f}", flush=True)
            step += 1


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train()
    dist.destroy_process_group()
