"""Run one seed and judge it. `python -m tests.simulation.run SEED` prints its trace; with `A B` the seeds [A, B).

With `elected` or `anchored` after them, all of them are of this form.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from random import Random
from typing import Any

from tests.simulation.clock import Endless
from tests.simulation.cluster import Cluster
from tests.simulation.coordinator_faults import ELECTED_KINDS
from tests.simulation.faults import KINDS, Kinds, Plan, draw_setup
from tests.simulation.violation import Violation

HEAL_S = {False: 60.0, True: 150.0}  # how long after the last fault a job may take to its end; True: it is elected


@dataclass(slots=True)
class Outcome:
    seed: int
    violation: Violation | None
    cluster: Cluster
    faults: dict[str, int]

    def __str__(self) -> str:
        lines = [f"seed {self.seed}: {self.violation}", str(self.cluster.setup)]
        lines += [f"{at:8.4f} {who:12} {' '.join(map(show, what))}" for at, who, what in self.cluster.trace]
        return "\n".join([*lines, f"seed {self.seed}: {self.violation}"])


def run_seed(seed: int, *, elected: bool | None = None, kinds: Kinds | None = None) -> Outcome:
    """The form is drawn by the seed as well, half of each, unless it is given; so is what may go wrong."""
    form = Random(f"form of {seed}").random() < 0.5 if elected is None else elected
    rng = Random(seed)
    cluster = Cluster(draw_setup(rng, elected=form), rng.randrange(1 << 62))
    plan = Plan(cluster, rng, (ELECTED_KINDS if form else KINDS) if kinds is None else kinds)
    plan.schedule()
    violation = None
    try:
        cluster.run(plan.end_s + HEAL_S[form])
        cluster.checkers.at_end()
    except Violation as found:
        violation = found
    except Endless as error:
        violation = Violation("liveness", str(error))
    except Exception as error:  # what the real core raised is as bad
        violation = Violation("exception", f"{error!r} at {traceback.extract_tb(error.__traceback__)[-1]}")
    return Outcome(seed, violation, cluster, plan.done)


def show(thing: Any) -> str:
    """Short: what differs from a field's default."""
    if isinstance(thing, list):
        return "-> " + "; ".join(map(show, thing)) if thing else ""
    if isinstance(thing, Enum):
        return str(thing.value)
    if is_dataclass(thing) and not isinstance(thing, type):
        named = [(f, getattr(thing, f.name)) for f in fields(thing)]
        return f"{type(thing).__name__}({', '.join(f'{f.name}={_brief(v)}' for f, v in named if v != f.default)})"
    return str(thing)


def _brief(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_brief, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {getattr(v, 'rank', v)}" for k, v in value.items()) + "}"
    return f"{value:.3f}" if isinstance(value, float) else show(value)


def main(arguments: list[str]) -> int:
    elected = {"elected": True, "anchored": False}.get(arguments[-1])
    arguments = arguments if elected is None else arguments[:-1]
    if len(arguments) == 1:
        outcome = run_seed(int(arguments[0]), elected=elected)
        print(outcome)
        return int(outcome.violation is not None)
    begin = time.process_time()
    bad: list[tuple[int, str]] = []
    seen: Counter[str] = Counter()
    virtual, most = 0.0, 0
    for seed in range(int(arguments[0]), int(arguments[1])):
        outcome = run_seed(seed, elected=elected)
        virtual += outcome.cluster.clock.now
        seen.update(outcome.faults)
        most = max(most, outcome.cluster.clock.events)
        seen["commits"] += outcome.cluster.checkers.training.commits
        seen["generations"] += outcome.cluster.checkers.generations
        seen["coordinators"] += outcome.cluster.coordinators
        seen[f"ended {outcome.cluster.checkers.ended_with and outcome.cluster.checkers.ended_with[0]}"] += 1
        if outcome.violation is not None:
            bad.append((seed, str(outcome.violation)))
    for seed, text in bad[:40]:
        print(seed, text[:300])
    print(
        f"{len(bad)} violations, {time.process_time() - begin:.1f} s, {virtual:.0f} virtual s, {most} events at most",
        dict(seen),
    )
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
