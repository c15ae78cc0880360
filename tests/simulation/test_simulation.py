"""Many small clusters, each with its own history of faults, judged by the checkers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest

from elastic_runtime.core.view import Kind
from tests.simulation.coordinator_faults import ELECTED_KINDS
from tests.simulation.faults import KINDS, PHASES
from tests.simulation.run import Outcome, run_seed

SEEDS = 1000  # about half of them with a coordinator that is elected
OF_THE_STORE = ("store_is_away", "store_is_slow", "store_out", "lose_replies")


@dataclass
class Batch:
    """What remains of many runs: everything of those that went wrong, counts of the others."""

    wrong: list[Outcome] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    died_in: Counter[str] = field(default_factory=Counter)
    ends: Counter[tuple[bool, int]] = field(default_factory=Counter)  # (elastic, exit code of the job)
    forms: Counter[bool] = field(default_factory=Counter)  # whether the coordinator is elected
    generations: int = 0
    coordinators: int = 0
    abandonments: int = 0
    returns: int = 0

    def run(self, seeds: range, *, elected: bool | None = None) -> Batch:
        for seed in seeds:
            outcome = run_seed(seed, elected=elected)
            if outcome.violation is not None:
                self.wrong.append(outcome)
            self._count(outcome)
        return self

    def _count(self, outcome: Outcome) -> None:
        cluster = outcome.cluster
        self.faults.update(outcome.faults)
        self.died_in.update(p.phase for p in cluster.processes if p.exit_code == -9)
        self.forms[cluster.setup.elected] += 1
        self.generations += cluster.checkers.generations
        self.coordinators += cluster.coordinators if cluster.setup.elected else 0
        self.abandonments += cluster.checkers.succession.abandonments
        self.returns += sum(agent.came_from is not None for agent in cluster.agents.values())
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
    """All kinds of faults struck, workers died in every phase, jobs ended well and badly, coordinators moved."""
    assert {kind: batch.faults[kind] for kind in KINDS if batch.faults[kind] < 10} == {}
    assert {kind: batch.faults[kind] for kind in ELECTED_KINDS if batch.faults[kind] < 10} == {}
    assert {phase: batch.died_in[phase] for phase in PHASES if batch.died_in[phase] < 5} == {}
    assert batch.ends[True, 0] > SEEDS / 2 and batch.ends[False, 0] > SEEDS / 20 and batch.ends[True, 1] > 5
    assert batch.generations > 2 * SEEDS
    assert min(batch.forms[True], batch.forms[False]) > SEEDS / 3
    assert batch.coordinators > 1.5 * batch.forms[True]
    assert batch.abandonments > 3 and batch.returns > SEEDS / 20


@pytest.mark.parametrize("elected", [False, True])
@pytest.mark.parametrize("seed", [3, 17, 256])
def test_a_seed_is_the_whole_history(seed: int, elected: bool) -> None:
    first, second = str(run_seed(seed, elected=elected)), str(run_seed(seed, elected=elected))
    assert first == second
    assert first != str(run_seed(seed + 1, elected=elected))


def test_an_outage_of_the_store_changes_no_world_and_stops_no_training() -> None:
    """Whatever the store does, one group of processes trains to the end, and nobody is lost."""
    kinds = {kind: ELECTED_KINDS[kind] for kind in OF_THE_STORE}
    trained = 0
    for seed in range(150):
        outcome = run_seed(seed, elected=True, kinds=kinds)
        cluster = outcome.cluster
        assert outcome.violation is None, outcome
        begins = [agent for _, agent, what in cluster.trace if what[:1] == ("leads",)]
        live = [settled for settled in cluster.checkers.settled() if settled.kind is Kind.LIVE]
        if live and cluster.setup.policy.max_nodes >= cluster.setup.nodes and len(begins) == 1:
            trained += 1
            assert {p.exit_code for p in cluster.processes} <= {0, -15}  # a group that starts may be started anew
            assert all(" node " not in f" {settled.reason}" or settled.planned for settled in live)
    assert trained > 50


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("elected", [False, True])
def test_ten_times_as_many_histories(elected: bool) -> None:
    batch = Batch().run(range(SEEDS, 11 * SEEDS), elected=elected)
    if batch.wrong:
        pytest.fail(str(batch.wrong[0]), pytrace=False)
