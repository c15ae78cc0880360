"""Train a small byte-level GPT on the sources of Python's standard library, elastically.

    python train.py                                 one process
    torchrun --nproc-per-node=2 train.py            a fixed world
    elasticrun --nnodes=1:2 --nproc-per-node=2 train.py     a world that may change at any step

Did it learn? A model that guesses uniformly costs ln 256 = 5.55 nats a byte and one that knows only how often each
byte occurs costs the unigram entropy, about 3.2. With the defaults the validation loss ends near 2.0.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from pathlib import Path

import torch
from data import Windows, pack
from model import ByteGPT, next_byte_loss
from torch.utils.data import Subset

from elastic_runtime import Session

PROGRESS_EVERY = 20  # steps
HELD_OUT_WINDOWS = 512


def main() -> None:
    args = parse()
    packed = pack(args.data / "stdlib.bytes")
    training = Windows(packed, "training", context=args.context)
    validation = Windows(packed, "validation", context=args.context)
    held_out = Subset(validation, range(0, len(validation), max(1, len(validation) // HELD_OUT_WINDOWS)))

    torch.manual_seed(args.seed)
    model = ByteGPT(context=args.context, width=args.width, layers=args.layers, heads=args.heads, dropout=args.dropout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: lr_factor(step, args.warmup, args.steps))

    with Session(
        model=model,
        optimizer=optimizer,
        lr_scheduler=schedule,
        global_batch_size=args.global_batch_size,
        micro_batch_size=args.micro_batch_size,
        reduction=args.reduction,
        max_grad_norm=1.0,
        seed=args.seed,
        threads=1,
    ) as session:
        if session.rank == 0:
            announce(model, training)
        loss = train(session, model, training, args)
        model.eval()
        total = session.evaluate(held_out, lambda windows: next_byte_loss(model, windows).double() * len(windows))
        model.train()
        result = {
            "fingerprint": session.fingerprint(),
            "steps": args.steps,
            "final_loss": loss,  # None on a worker that came after the last step
            "validation_loss": float(total) / len(held_out),
            "unigram_entropy": training.unigram_entropy(),
        }
        session.on_finish(lambda: save(args.out, model, result))


def train(session: Session, model: torch.nn.Module, training: Windows, args: argparse.Namespace) -> float | None:
    """Take the steps that are still to be taken. Returns the loss of the last one, None if this worker took none."""
    loss, counted, since = None, 0, time.monotonic()
    for step in session.steps(training, max_steps=args.steps):
        for windows in step:
            step.backward(next_byte_loss(model, windows))
        loss, counted = step.loss, counted + 1
        if session.rank == 0 and args.trace:
            append(args.trace, step=step.number, loss=loss, world_size=step.world_size, time=time.time())
        if step.number % PROGRESS_EVERY == 0 or step.number == args.steps - 1:
            speed = counted * args.global_batch_size * args.context / (time.monotonic() - since)
            counted, since = 0, time.monotonic()
            if session.rank == 0:
                line = f"step {step.number:5d}   loss {loss:.4f}   world {step.world_size}   {speed:8,.0f} tokens/s"
                print(line, flush=True)
    return loss


def lr_factor(step: int, warmup: int, steps: int) -> float:
    """Linear warm-up, then half a cosine down to a tenth."""
    if step < warmup:
        return (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, steps - warmup))
    return 0.55 + 0.45 * math.cos(math.pi * progress)


def announce(model: torch.nn.Module, training: Windows) -> None:
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{parameters:,} parameters, {len(training.tokens):,} bytes to train on", flush=True)
    print(f"uniform {math.log(256):.3f} nats a byte, unigram {training.unigram_entropy():.3f}", flush=True)


def append(path: Path, **fields: float) -> None:
    """Add one JSON line in one write, so that a line is there as a whole or not at all."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, (json.dumps(fields) + "\n").encode())
    finally:
        os.close(descriptor)


def save(out: Path, model: torch.nn.Module, result: dict[str, object]) -> None:
    """Each file under a temporary name first: whoever sees it sees all of it."""
    out.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), out / "model.pt.part")
    os.replace(out / "model.pt.part", out / "model.pt")
    (out / "result.json.part").write_text(json.dumps(result, indent=2) + "\n")
    os.replace(out / "result.json.part", out / "result.json")
    print(f"validation loss {result['validation_loss']:.4f} nats a byte; saved in {out}", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("build/stdlib_gpt"), help="folder of the packed tokens")
    parser.add_argument("--out", type=Path, default=Path("build/stdlib_gpt"), help="folder of model.pt and result.json")
    parser.add_argument("--trace", type=Path, help="file that gets a JSON line a step")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--reduction", choices=("exact", "fast"), default="exact")
    parser.add_argument("--global-batch-size", type=int, default=64, help="windows a step, at every world size")
    parser.add_argument("--micro-batch-size", type=int, default=8, help="windows a forward pass")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--warmup", type=int, default=20, help="steps")
    parser.add_argument("--context", type=int, default=64, help="bytes a window")
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--dropout", type=float, default=0.05)
    return parser.parse_args()


if __name__ == "__main__":
    main()
