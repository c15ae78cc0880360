"""A script with a Session that must be refused, or a loop that breaks its contract. The first argument says which."""

from __future__ import annotations

import sys

import torch
from torch import nn

from elastic_runtime import Session

INPUTS = torch.randn(64, 4)


def main(what: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    arguments = {"global_batch_size": 8, "micro_batch_size": 4}
    match what:
        case "batch":
            arguments["global_batch_size"] = 9
        case "batch_rule":
            arguments["batch_rule"] = "fixed_globl"
        case "lr_rule":
            arguments["lr_rule"] = "liner"
        case "norm":
            model.append(nn.BatchNorm1d(4))
        case "ddp":
            model = AlmostDdp(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Session(model=model, optimizer=optimizer, **arguments) as session:
        for step in session.steps(INPUTS, max_steps=5):
            for batch in step:
                loss = model(batch).mean()
                match what:
                    case "plain backward":
                        loss.backward()
                    case "two backwards":
                        step.backward(loss)
                        step.backward(model(batch).mean())
                    case "break":
                        break
                    case "own step":
                        step.backward(loss)
                        optimizer.step()
                    case _:
                        step.backward(loss)


class AlmostDdp(nn.parallel.DistributedDataParallel):
    """DDP itself wants a process group, and has none before a Session is open."""

    def __init__(self, module: nn.Module) -> None:
        nn.Module.__init__(self)
        self.module = module


if __name__ == "__main__":
    main(sys.argv[1])
