"""Seconds per step with nothing going wrong: a Session under elasticrun against plain DDP under torchrun.

Both jobs run one after the other, again and again, on the same machine: only the ratio of a pair means anything.
    python benchmarks/steady.py --pairs 7
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

JOBS = Path(__file__).parent / "jobs"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
ELASTICRUN = [sys.executable, "-m", "launcher"]
WARM_UP = 10


def median_step(launcher: list[str], workers: int, job: str, *arguments: str) -> float:
    command = [*launcher, f"--nproc-per-node={workers}", str(JOBS / job), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    seconds = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("[")))
    return statistics.median(seconds[WARM_UP:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--reductions", nargs="+", default=["fast", "exact"], choices=["fast", "exact"])
    options = parser.parse_args()
    ratios: dict[str, list[float]] = {reduction: [] for reduction in options.reductions}
    steps = str(options.steps)
    for pair in range(options.pairs):
        for reduction in ratios:
            # Alternate who goes first, so that a drift of the machine favours nobody.
            jobs = [(TORCHRUN, "ddp.py", (steps,)), (ELASTICRUN, "session.py", (steps, reduction))]
            order = jobs if pair % 2 == 0 else jobs[::-1]
            took = {job: median_step(launcher, options.workers, job, *rest) for launcher, job, rest in order}
            ratios[reduction].append(took["session.py"] / took["ddp.py"])
            print(
                f"pair {pair + 1} {reduction}: DDP {took['ddp.py'] * 1e3:.1f} ms, Session "
                f"{took['session.py'] * 1e3:.1f} ms, ratio {ratios[reduction][-1]:.3f}",
                flush=True,
            )
    for reduction, values in ratios.items():
        print(
            f"{reduction}: median {statistics.median(values):.3f} of {len(values)} pairs, "
            f"from {min(values):.3f} to {max(values):.3f}"
        )


if __name__ == "__main__":
    main()
