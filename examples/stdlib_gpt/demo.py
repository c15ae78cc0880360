"""The demo: train twice, once in peace and once while workers die, join and leave; the weights must be equal.

    python -m examples.stdlib_gpt.demo

The elastic run starts with one agent of two workers. One worker is killed and replaced, a second agent joins with
one more, and is drained again. Ends with code 0 when the two runs are equal, 1 when they are not or something failed.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from examples.stdlib_gpt.data import pack
from examples.stdlib_gpt.follow import Agent, DemoFailed, Event, Run, end, free_port, until
from examples.stdlib_gpt.picture import Mark, Point, draw

KILL_AT, JOIN_AT, DRAIN_AT = 0.2, 0.4, 0.75  # of the steps; each also waits for the one before it
VICTIM_SLOT = 0
STEP_LIMIT_S = 90.0  # for any one thing the demo waits for
Labels = list[tuple[int, str, str]]  # from this generation on, what unplanned and what planned changes are called
PAUSE = ("leave", "settle", "group", "state")  # the phases in which nobody trains


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of the world as the worker with the longest pause saw it."""

    label: str
    step: int
    old_world_size: int
    world_size: int
    pause_s: float
    redone: int
    phases: dict[str, float]


def main() -> int:
    args = parse()
    runs: list[Run] = []
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # clean up as on Ctrl-C
    try:
        began = time.monotonic()
        packed = pack(args.data / "stdlib.bytes")
        print(f"data: {packed.stat().st_size / 2**20:.1f} MiB in {packed}, {time.monotonic() - began:.1f} s")
        print(f"\n1. undisturbed: 2 workers, {args.steps} steps")
        runs.append(Run("undisturbed", args.folder / "undisturbed", data=args.data, steps=args.steps))
        undisturbed(runs[0])
        print(f"\n2. elastic: the same {args.steps} steps while the world changes")
        runs.append(Run("elastic", args.folder / "elastic", data=args.data, steps=args.steps))
        changes = elastic(runs[1])
        equal = report(runs[0], runs[1], changes)
        picture(args.folder / "demo.png", runs[0], runs[1], changes, equal)
        print(f"\n{time.monotonic() - began:.0f} s in all; logs, journals and traces are in {args.folder}")
        return 0 if equal else 1
    except DemoFailed as failure:
        print(f"\nThe demo failed: {failure}", file=sys.stderr)
        for agent in runs[-1].agents:
            print(agent.tail(), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted; ending the agents.", file=sys.stderr)
        return 130
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        end([agent for run in runs for agent in run.agents])


def undisturbed(run: Run) -> None:
    agent = run.start("only", "--standalone", "--nproc-per-node=2")
    until_ended(run, agent)


def elastic(run: Run) -> list[Change]:
    """The story. Returns one entry a change."""
    where = (
        "--nnodes=1:2",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint=127.0.0.1:{free_port()}",
        "--rdzv-id=demo",
        "--max-restarts=3",
    )
    labels: Labels = []
    a = run.start("a", *where, "--nproc-per-node=2")

    wait(run, f"{KILL_AT:.0%} of the steps are done", lambda: run.reached(KILL_AT), [a])
    victim = a.worker(VICTIM_SLOT)
    if victim is None:
        raise DemoFailed(f"the journal of agent a names no running worker in slot {VICTIM_SLOT}")
    labels.append((generation(run) + 1, "worker killed", "replacement in"))
    os.kill(victim, signal.SIGKILL)
    run.say(f"SIGKILL to worker {VICTIM_SLOT} of agent a, process {victim}")
    wait(run, "a replacement trains", lambda: world(run, labels) == 2, [a])
    run.say("its replacement trains")

    wait(run, f"{JOIN_AT:.0%} of the steps are done", lambda: run.reached(JOIN_AT), [a])
    labels.append((generation(run) + 1, "unplanned", "agent b joined"))
    b = run.start("b", *where, "--nproc-per-node=1")
    run.say("agent b starts, with one worker; the others train on while it gets ready")
    wait(run, "agent b's worker trains", lambda: world(run, labels) == 3, [a, b])
    run.say("agent b is in")

    wait(run, f"{DRAIN_AT:.0%} of the steps are done", lambda: run.reached(DRAIN_AT), [a, b])
    labels.append((generation(run) + 1, "unplanned", "agent b drained"))
    b.drain()
    run.say("SIGTERM to agent b: drain")
    wait(run, "agent b has left", lambda: world(run, labels) == 2 and b.process.poll() is not None, [a])
    run.say(f"agent b ended with code {b.process.returncode}")
    until_ended(run, a)
    return summary(run, labels)


def wait(run: Run, what: str, condition: Callable[[], bool], alive: Sequence[Agent]) -> None:
    def look() -> bool:
        run.reached(1.0)  # keeps the progress line going
        return condition()

    until(what, look, limit_s=STEP_LIMIT_S, alive=alive)


def until_ended(run: Run, agent: Agent) -> None:
    wait(run, f"agent {agent.name} has ended", lambda: agent.process.poll() is not None, [])
    run.say(f"agent {agent.name} ended with code {agent.process.returncode}")
    if agent.process.returncode != 0:
        raise DemoFailed(f"agent {agent.name} ended with code {agent.process.returncode}")


def generation(run: Run) -> int:
    """The newest generation that somebody trains in."""
    return max((item["generation"] for agent in run.agents for item in agent.journal("change")), default=0)


def world(run: Run, labels: Labels) -> int | None:
    """The world size after the newest change, if there was one since the last thing the demo did."""
    changes = run.changes()
    return changes[-1]["world_size"] if changes and changes[-1]["generation"] >= labels[-1][0] else None


def summary(run: Run, labels: Labels) -> list[Change]:
    slowest: dict[int, Event] = {}
    for item in run.changes():
        known = slowest.setdefault(item["generation"], item)
        if item["pause_s"] > known["pause_s"]:
            slowest[item["generation"]] = item
    return [
        Change(
            label=next(
                (label[item["planned"]] for first, *label in reversed(labels) if first <= number), item["reason"]
            ),
            step=item["step"],
            old_world_size=item["old_world_size"],
            world_size=item["world_size"],
            pause_s=item["pause_s"],
            redone=item["redone"],
            phases=item["phases"],
        )
        for number, item in sorted(slowest.items())
    ]


def report(undisturbed: Run, elastic: Run, changes: Sequence[Change]) -> bool:
    """Print the figures. Returns whether the two runs ended with the same bits."""
    changes_table(elastic.points(), changes)
    first, second = undisturbed.result(), elastic.result()
    calm, moved = undisturbed.points(), elastic.points()
    losses = {point.step: point.loss for point in calm}
    same = sum(losses.get(point.step) == point.loss for point in moved)
    print(f"\n{'':<22}{'undisturbed':>14}{'elastic':>14}")
    print(f"{'first training loss':<22}{calm[0].loss:>14.4f}{moved[0].loss:>14.4f}   nats a byte")
    print(f"{'last training loss':<22}{calm[-1].loss:>14.4f}{moved[-1].loss:>14.4f}")
    print(f"{'validation loss':<22}{first['validation_loss']:>14.4f}{second['validation_loss']:>14.4f}")
    print(f"{'unigram entropy':<22}{first['unigram_entropy']:>14.4f}{second['unigram_entropy']:>14.4f}")
    equal = bool(first["fingerprint"] == second["fingerprint"])
    print(f"\nlosses   {same} of {len(moved)} steps have the same bits in both runs")
    print(f"weights  {first['fingerprint']}  undisturbed")
    print(f"         {second['fingerprint']}  elastic: {'equal' if equal else 'DIFFERENT'}")
    return equal


def changes_table(points: Sequence[Point], changes: Sequence[Change]) -> None:
    """`apart`: from the last commit before the change to the first after it, by the trace, and a usual step there."""
    apart = {after.step: after.time - before.time for before, after in pairwise(points)}
    print(f"\n{'change':<16}{'step':>6}{'workers':>9}{'redone':>8}{'apart':>10}{'usual':>10}{'pause':>9}   of it")
    for change in changes:
        near = [apart.get(step) for step in range(change.step + 1, change.step + 16)]
        usual = median([seconds for seconds in near if seconds is not None] or [math.nan])
        seconds = (apart.get(change.step, math.nan), usual, change.pause_s)
        figures = "".join(f"{in_ms(value):>{width}}" for value, width in zip(seconds, (10, 10, 9), strict=True))
        phases = "  ".join(f"{name} {in_ms(change.phases[name])}" for name in PAUSE if name in change.phases)
        size = f"{change.old_world_size} → {change.world_size}"
        print(f"{change.label:<16}{change.step:>6}{size:>9}{change.redone:>8}{figures}   {phases}")


def in_ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"


def picture(path: Path, undisturbed: Run, elastic: Run, changes: Sequence[Change], equal: bool) -> None:
    try:
        draw(
            path,
            undisturbed=undisturbed.points(),
            elastic=elastic.points(),
            marks=[Mark(step=change.step, label=change.label, pause_s=change.pause_s) for change in changes],
            unigram_entropy=elastic.result()["unigram_entropy"],
            equal=equal,
        )
    except ImportError:
        print("\nno picture: matplotlib is not installed")
    else:
        print(f"\npicture  {path}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.stdlib_gpt.demo", description="Train twice and compare.")
    parser.add_argument("--folder", type=Path, default=Path("build/demo"), help="where runs and picture are written")
    parser.add_argument("--data", type=Path, default=Path("build/stdlib_gpt"), help="folder of the packed tokens")
    parser.add_argument("--steps", type=int, default=400)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
