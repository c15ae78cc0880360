"""A small training job that writes down what it reads and commits: one JSON line each, appended in one write.

"read": a micro-batch that a worker was given. "committed": a step as a worker saw it committed.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from elastic_runtime import Session

SAMPLES = 1000
GLOBAL_BATCH = 24
MICRO_BATCH = 4
SEED = 7


class Ledger:
    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, kind: str, session: Session, step: int, **fields: Any) -> None:
        entry = {"kind": kind, "step": step, "generation": session.generation, "world_size": session.world_size}
        entry |= {"rank": session.rank, "pid": os.getpid(), "time": time.monotonic(), **fields}
        os.write(self._fd, (json.dumps(entry) + "\n").encode())


class Samples(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor, int]]):
    """Each sample comes with its index, so that what is written down is what was read."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(SAMPLES, 32, generator=generator)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        return self.inputs[index], self.inputs[index, :8].sin(), index


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", type=Path, required=True, help="where ledger.jsonl and fingerprint.txt go")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--reduction", default="exact")
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--delay", type=float, default=0.0, help="seconds that each micro-batch takes beside computing")
    parser.add_argument("--slow-from", type=int, default=3, help="while DIR/slow exists, from this step on ...")
    parser.add_argument("--slow-s", type=float, default=0.2, help="... each micro-batch takes so much longer")
    return parser


def build(options: argparse.Namespace) -> tuple[Session, nn.Module]:

    torch.manual_seed(SEED)
    width = options.width
    model = nn.Sequential(
        nn.Linear(32, width), nn.Dropout(0.1), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 8)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    session = Session(
        model=model,
        optimizer=optimizer,
        lr_scheduler=torch.optim.lr_scheduler.StepLR(optimizer, step_size=10, gamma=0.9),
        global_batch_size=GLOBAL_BATCH,
        micro_batch_size=MICRO_BATCH,
        reduction=options.reduction,
        seed=SEED,
    )
    return session, model


def train(
    session: Session,
    model: nn.Module,
    options: argparse.Namespace,
    *,
    on_batch: Callable[[int], object] = lambda step: None,
    on_step: Callable[[int], object] = lambda step: None,
) -> None:
    ledger = Ledger(options.dir / "ledger.jsonl")
    slow = options.dir / "slow"

    def write_fingerprint() -> None:
        with (options.dir / "fingerprint.txt").open("a") as file:
            file.write(f"{session.fingerprint()}\n")

    session.on_finish(write_fingerprint)
    with session:
        for step in session.steps(Samples(), max_steps=options.steps):
            for inputs, wanted, index in step:
                ledger.write("read", session, step.number, sample_indices=index.tolist())
                assert index.tolist() == step.sample_indices[-len(index) :]
                on_batch(step.number)
                time.sleep(options.delay)
                if step.number >= options.slow_from and slow.exists():
                    time.sleep(options.slow_s)
                step.backward(((model(inputs) - wanted) ** 2).mean())
            committed_in = session.worker.progress.committed_in
            ledger.write("committed", session, step.number, loss=step.loss, committed_in=committed_in)
            on_step(step.number)


def main() -> None:
    options = arguments().parse_args()
    train(*build(options), options)


if __name__ == "__main__":
    main()
