"""From a worker's SIGKILL to training again: a Session under elasticrun against DDP with checkpoints under torchrun.

Two workers, one is killed. Reported: seconds to the next committed step of anybody, to the next step with both
workers, and the steps that were computed again. torchrun runs with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, without which
three of ten of its recoveries hang. The checkpoint is in the temporary directory: name its disk with the figures.
    python benchmarks/recovery.py --repeats 5
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

JOBS = Path(__file__).parent / "jobs"
LAUNCHERS = {
    "torchrun": ([sys.executable, "-m", "torch.distributed.run", "--max-restarts=3"], "faulty_ddp.py"),
    "elasticrun": ([sys.executable, "-m", "launcher", "--max-restarts=3"], "faulty_session.py"),
}
STEPS_BEFORE, LIMIT_S = 25, 90.0


@dataclass(frozen=True)
class Line:
    time: float
    rank: int
    pid: int
    world: int
    step: int


@dataclass(frozen=True)
class Recovery:
    first_step_s: float
    full_world_s: float
    redone: int


def read(ledger: Path) -> list[Line]:
    if not ledger.exists():
        return []
    whole = ledger.read_text().rpartition("\n")[0]
    rows = (line.split() for line in whole.splitlines())
    return [Line(float(t), int(rank), int(pid), int(world), int(step)) for t, rank, pid, world, step in rows]


def wait_for(ledger: Path, found, process: subprocess.Popen[bytes]):
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        result = found(read(ledger))
        if result is not None:
            return result
        if process.poll() is not None:
            raise SystemExit(f"the job ended with {process.returncode}")
        time.sleep(0.005)
    raise SystemExit(f"nothing within {LIMIT_S:g} s")


def recover_once(name: str) -> Recovery:
    launcher, job = LAUNCHERS[name]
    with tempfile.TemporaryDirectory() as folder:
        ledger = Path(folder, "ledger")
        command = [*launcher, "--nproc-per-node=2", str(JOBS / job), str(ledger), str(Path(folder, "checkpoint"))]
        environment = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        try:
            victim = wait_for(
                ledger, lambda rows: next((r for r in rows if r.rank == 1 and r.step >= STEPS_BEFORE), None), process
            )
            killed_at = time.monotonic()
            os.kill(victim.pid, signal.SIGKILL)
            before = {r.pid for r in read(ledger)}
            reached = max(r.step for r in read(ledger))
            after = killed_at + 0.002  # a line that was being written when the signal arrived is no recovery
            first = wait_for(ledger, lambda rows: next((r for r in rows if r.time > after), None), process)
            full = wait_for(
                ledger,
                lambda rows: next((r for r in rows if r.time > after and r.world == 2 and r.pid not in before), None),
                process,
            )
            return Recovery(first.time - killed_at, full.time - killed_at, max(0, reached - first.step + 1))
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    results: dict[str, list[Recovery]] = {name: [] for name in LAUNCHERS}
    for repeat in range(options.repeats):
        for name in LAUNCHERS:
            result = recover_once(name)
            results[name].append(result)
            print(
                f"{repeat + 1} {name}: next step {result.first_step_s * 1e3:.0f} ms, both workers "
                f"{result.full_world_s * 1e3:.0f} ms, {result.redone} steps redone",
                flush=True,
            )
    medians = {}
    for name, values in results.items():
        first = sorted(v.first_step_s for v in values)
        medians[name] = statistics.median(first)
        full = statistics.median(v.full_world_s for v in values)
        print(
            f"{name}: next step {medians[name] * 1e3:.0f} ms (from {first[0] * 1e3:.0f} to {first[-1] * 1e3:.0f}), "
            f"both workers {full * 1e3:.0f} ms, medians of {len(values)}"
        )
    print(f"elasticrun over torchrun, next step: {medians['elasticrun'] / medians['torchrun']:.3f}")


if __name__ == "__main__":
    main()
