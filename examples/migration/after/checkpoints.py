"""The same: a checkpoint is for the next job now, since within a job the workers have the state."""

import sys
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.utils.data import Subset, TensorDataset

from elastic_runtime import Session

GLOBAL_BATCH, SAVE_EVERY = 32, 4


class Begun:
    """The step that this job began at. Carried, because a worker that joins later finds a newer checkpoint."""

    step = 0

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step = state["step"]


def train(folder: Path, steps: int) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(320, 8, generator=torch.Generator().manual_seed(1))
    dataset = TensorDataset(inputs, inputs.sin().sum(1, keepdim=True))
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    begun = Begun()
    if (folder / ".metadata").exists():
        weights, moments = get_state_dict(model, optimizer)
        saved = {"model": weights, "optimizer": moments, "step": 0}
        dcp.load(saved, checkpoint_id=folder, no_dist=True)
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
        begun.step = saved["step"]
    with Session(
        model=model,
        optimizer=optimizer,
        state={"begun": begun},
        global_batch_size=GLOBAL_BATCH,
        micro_batch_size=8,
    ) as session:
        rest = Subset(dataset, range(begun.step * GLOBAL_BATCH, steps * GLOBAL_BATCH))
        for step in session.steps(rest, max_steps=steps - begun.step, shuffle=False):
            for x, y in step:
                loss = nn.functional.mse_loss(model(x), y)
                step.backward(loss)
            done = begun.step + step.number + 1
            if session.rank == 0:
                print(f"step {done - 1} loss {step.loss:.9f}", flush=True)
            if session.rank == 0 and done % SAVE_EVERY == 0:
                weights, moments = get_state_dict(model, optimizer)
                dcp.save({"model": weights, "optimizer": moments, "step": done}, checkpoint_id=folder, no_dist=True)


if __name__ == "__main__":
    train(Path(sys.argv[1]), int(sys.argv[2]))
