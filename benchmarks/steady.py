"""Seconds per step with nothing going wrong: a Session under elasticrun against plain DDP.

Two ways, because the first is exact about the difference and the second is what a user would see:
  in turns    both in the same processes, a block of steps each: a drift of the machine meets both
  launches    DDP under torchrun, then the Session under elasticrun, and again: noisy on a shared machine

    python benchmarks/steady.py --blocks 40 --pairs 7
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

JOBS = Path(__file__).parent / "jobs"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
ELASTICRUN = [sys.executable, "-m", "launcher"]
WARM_UP = 10


def run(launcher: list[str], workers: int, job: str, *arguments: str) -> Any:
    """What the job printed as JSON."""
    command = [*launcher, f"--nproc-per-node={workers}", str(JOBS / job), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("[")))


def in_turns(workers: int, reduction: str, blocks: int) -> list[float]:
    """Ratios Session / DDP, one per pair of blocks."""
    pairs = run(ELASTICRUN, workers, "alternating.py", reduction, str(blocks))
    print(f"{reduction}, in turns: DDP {statistics.median(ddp for ddp, _ in pairs) * 1e3:.1f} ms a step", flush=True)
    return [session / ddp for ddp, session in pairs]


def launches(workers: int, reduction: str, pairs: int, steps: int) -> list[float]:
    """Ratios Session / DDP, one per pair of launches."""
    jobs = [
        (TORCHRUN, "ddp.py", (str(steps),)),
        (ELASTICRUN, "session.py", (str(steps), reduction)),
    ]
    ratios = []
    for pair in range(pairs):
        # Alternate who goes first, so that a drift of the machine favours nobody.
        took = {
            job: statistics.median(run(launcher, workers, job, *rest)[WARM_UP:])
            for launcher, job, rest in (jobs if pair % 2 == 0 else jobs[::-1])
        }
        ratios.append(took["session.py"] / took["ddp.py"])
        print(
            f"{reduction}, launches {pair + 1}: DDP {took['ddp.py'] * 1e3:.1f} ms, "
            f"Session {took['session.py'] * 1e3:.1f} ms, ratio {ratios[-1]:.3f}",
            flush=True,
        )
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=40, help="pairs of blocks in turns (default 40)")
    parser.add_argument("--pairs", type=int, default=0, help="pairs of launches (default 0: none)")
    parser.add_argument("--steps", type=int, default=120, help="steps of a launch (default 120)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--reductions", nargs="+", default=["fast", "exact"], choices=["fast", "exact"])
    options = parser.parse_args()
    for reduction in options.reductions:
        found = {"in turns": in_turns(options.workers, reduction, options.blocks)}
        if options.pairs:
            found["launches"] = launches(options.workers, reduction, options.pairs, options.steps)
        for way, ratios in found.items():
            low, _, high = statistics.quantiles(ratios, n=4)
            print(
                f"{reduction}, {way}: Session / DDP median {statistics.median(ratios):.3f} of {len(ratios)}, "
                f"quartiles {low:.3f} and {high:.3f}, from {min(ratios):.3f} to {max(ratios):.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
