"""Many small clusters, each with its own history of faults, judged by the checkers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest

from tests.simulation.faults import KINDS, PHASES
from tests.simulation.run import Outcome, run_seed

SEEDS = 1000


@dataclass
class Batch:
    """What remains of many runs: everything of those that went wrong, counts of the others."""

    wrong: list[Outcome] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    died_in: Counter[str] = field(default_factory=Counter)
    ends: Counter[tuple[bool, int]] = field(default_factory=Counter)  # (elastic, exit code of the job)
    generations: int = 0

    def run(self, seeds: range) -> Batch:
        for seed in seeds:
            outcome = run_seed(seed)
            if outcome.violation is not None:
                self.wrong.append(outcome)
            self._count(outcome)
        return self

    def _count(self, outcome: Outcome) -> None:
        cluster = outcome.cluster
        self.faults.update(outcome.faults)
        self.died_in.update(p.phase for p in cluster.processes if p.exit_code == -9)
        self.generations += cluster.coordination.machine.generation.number
        if cluster.checkers.ended_with is not None:
            self.ends[cluster.setup.job.elastic, cluster.checkers.ended_with[0]] += 1


@pytest.fixture(scope="module")
def batch() -> Batch:
    return Batch().run(range(SEEDS))


def test_every_history_keeps_what_is_promised(batch: Batch) -> None:
    if batch.wrong:
        seeds = ", ".join(f"{outcome.seed} ({outcome.violation})" for outcome in batch.wrong)
        pytest.fail(f"{batch.wrong[0]}\nseeds that went wrong: {seeds}", pytrace=False)


def test_the_histories_are_worth_looking_at(batch: Batch) -> None:
    """All kinds of faults struck, workers died in every phase, jobs ended well and badly."""
    assert {kind: batch.faults[kind] for kind in KINDS if batch.faults[kind] < 10} == {}
    assert {phase: batch.died_in[phase] for phase in PHASES if batch.died_in[phase] < 5} == {}
    assert batch.ends[True, 0] > SEEDS / 2 and batch.ends[False, 0] > SEEDS / 20 and batch.ends[True, 1] > 5
    assert batch.generations > 2 * SEEDS


@pytest.mark.parametrize("seed", [3, 17, 256])
def test_a_seed_is_the_whole_history(seed: int) -> None:
    first, second = str(run_seed(seed)), str(run_seed(seed))
    assert first == second
    assert first != str(run_seed(seed + 1))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_times_as_many_histories() -> None:
    batch = Batch().run(range(SEEDS, 11 * SEEDS))
    if batch.wrong:
        pytest.fail(str(batch.wrong[0]), pytrace=False)
