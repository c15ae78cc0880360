"""Jobs that are started from Python: `launched.py WHAT [torch]`. What came of each is one line of JSON."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

import launcher
from elastic_runtime import ConfigurationError, Session

if "torch" in sys.argv:
    from torch.distributed.launcher.api import elastic_launch
else:
    from launcher import elastic_launch


class Answer:
    """Of the script's own, so that it is pickled as one of `__main__`."""

    def __init__(self, value: Any) -> None:
        self.value = value


def add(one: int, tensor: torch.Tensor) -> Answer:
    dist.init_process_group("gloo")
    total = tensor * (dist.get_rank() + one)
    dist.all_reduce(total)
    dist.destroy_process_group()
    return Answer([int(os.environ["RANK"]), total.tolist()])


def fail() -> None:
    if os.environ["RANK"] == "1":
        raise ValueError("it is wrong")
    time.sleep(3600)


def train(lr: float) -> float:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    with Session(model=model, optimizer=optimizer, global_batch_size=4, micro_batch_size=2) as session:
        for step in session.steps([torch.ones(2)] * 8, max_steps=3):
            for batch in step:
                step.backward(model(batch).mean())
        return step.loss


def wrong() -> None:
    Session(model=nn.Linear(1, 1), optimizer=None, global_batch_size=3, micro_batch_size=2)  # type: ignore[arg-type]


def wait(ready: str) -> None:
    Path(ready).touch()
    time.sleep(3600)


def config(workers: int, **more: Any) -> launcher.LaunchConfig:
    there = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "run_id": "job", "max_restarts": 0}
    return launcher.LaunchConfig(1, 1, workers, **{**there, **more})


def tell(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def results() -> None:
    answers = elastic_launch(config(2), add)(1, torch.ones(2))
    tell(results={rank: answer.value for rank, answer in answers.items()})


def failure() -> None:
    try:
        elastic_launch(config(2), fail)()
    except ChildFailedError as error:
        rank, first = error.get_first_failure()
        with open(first.error_file) as file:
            written = json.load(file)
        shown = [line.split(":")[0].strip() for line in str(error).splitlines() if ":" in line][:8]
        what = {"name": error.name, "rank": rank, "exit_code": first.exitcode, "message": first.message["message"]}
        tell(failed=what, local_rank=first.local_rank, file=written["message"]["message"], shown=shown)


def elsewhere() -> None:
    """From another thread, while the main one runs an event loop as a notebook's does; a Session in the workers."""

    async def notebook() -> dict[int, Any]:
        return await asyncio.to_thread(elastic_launch(config(1), train), 0.1)

    losses = asyncio.run(notebook())
    tell(ranks=sorted(losses), losses=[type(loss).__name__ for loss in losses.values()])


async def command() -> None:
    """In the main thread, inside of an event loop, with a child of the caller's own that must be left alone."""
    child = os.spawnlp(os.P_NOWAIT, "true", "true")
    before = signal.getsignal(signal.SIGTERM)
    text = "import os; print('worker', os.environ['RANK'], '${local_rank}')"
    found = elastic_launch(launcher.LaunchConfig(1, 1, 2), sys.executable)("-c", text)
    status = os.waitpid(child, 0)[1]
    tell(results=found, child=status, restored=signal.getsignal(signal.SIGTERM) is before)


def refused() -> None:
    try:
        elastic_launch(config(1), wrong)()
    except ConfigurationError as error:
        tell(refused=str(error))


def interrupted(ready: str) -> None:
    try:
        elastic_launch(config(1), wait)(ready)
    except SignalException as ended:
        tell(ended=ended.sigval.name)


if __name__ == "__main__":
    for what in sys.argv[1].split(","):
        match what:
            case "results":
                results()
            case "failure":
                failure()
            case "elsewhere":
                elsewhere()
            case "command":
                asyncio.run(command())
            case "refused":
                refused()
            case "interrupted":
                interrupted(sys.argv[2])
