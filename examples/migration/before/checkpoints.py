"""A loop that saves with torch.distributed.checkpoint and goes on from there: torchrun ... FOLDER STEPS"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

GLOBAL_BATCH, SAVE_EVERY = 32, 4


def train(folder: Path, steps: int) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(320, 8, generator=torch.Generator().manual_seed(1))
    dataset = TensorDataset(inputs, inputs.sin().sum(1, keepdim=True))
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    done = 0
    if (folder / ".metadata").exists():
        weights, moments = get_state_dict(model, optimizer)
        saved = {"model": weights, "optimizer": moments, "step": done}
        dcp.load(saved, checkpoint_id=folder)
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
        done = saved["step"]
    rest = Subset(dataset, range(done * GLOBAL_BATCH, steps * GLOBAL_BATCH))
    sampler = DistributedSampler(rest, shuffle=False)
    for x, y in DataLoader(rest, batch_size=GLOBAL_BATCH // dist.get_world_size(), sampler=sampler):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        done += 1
        mean = loss.detach() / dist.get_world_size()
        dist.all_reduce(mean)
        if dist.get_rank() == 0:
            print(f"step {done - 1} loss {mean.item():.9f}", flush=True)
        if done % SAVE_EVERY == 0:
            weights, moments = get_state_dict(model, optimizer)
            dcp.save({"model": weights, "optimizer": moments, "step": done}, checkpoint_id=folder)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train(Path(sys.argv[1]), int(sys.argv[2]))
    dist.destroy_process_group()
