"""A worker is killed in each phase of a change; those that are left go on, to the same bits."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.process import facts
from tests.process.cluster import JOBS, Cluster, Entry
from tests.process.facts import STEPS

# SLOT.N, the N-th process in a slot: where it dies. Each one is replaced by the next; slot 0 lives through it all.
NEWCOMERS = {
    "1.0": "computing@3",
    "1.1": "arriving",
    "1.2": "pulled",
    "1.3": "commit",
    "2.0": "reducing@3",
    "2.1": "connecting",
    "2.2": "loaded",
    "2.3": "inside the commit",
}
MORE_NEWCOMERS = {"1.0": "committed@3", "1.1": "arrived", "2.0": "updated@5", "2.1": "formed"}
# Three at first. The first dies in a step, the second as it learns of that; the third goes on alone and hands its state
# to both replacements, which die later, when they are to hand it on.
SURVIVORS = {
    "0.0": "reducing@3",
    "1.0": "settling",
    "2.0": "inside the commit@4/3",
    "0.1": "source@5",
    "1.1": "sending@5",
}
# The first takes the end of a step for broken that the other has committed, and pulls that state. The next time the
# other dies before it has handed the state over: nobody has the commit any more.
LAGGARD = {"0.0": "lag@3/2,lag@6/2", "1.0": "source@7"}


@dataclass
class Run:
    directory: Path
    journal: list[Entry]
    ledger: list[Entry]


def run(directory: Path, deaths: dict[str, str], workers: int) -> Run:
    (directory / "slow").touch()
    cluster = Cluster(directory)
    try:
        agent = cluster.agent(
            JOBS / "phases.py", "--dir", directory, "--deaths", json.dumps(deaths), "--steps", STEPS, workers=workers
        )

        marks = [f"befell-{name}-{one.replace('/', '-')}" for name, all_ in deaths.items() for one in all_.split(",")]

        def all_happened() -> bool:
            return all((directory / mark).exists() for mark in marks)

        cluster.wait_for(f"all of {deaths}", all_happened, within_s=150)
        (directory / "slow").unlink()
        assert agent.wait() == 0, cluster.account()
        return Run(directory, cluster.journal(), cluster.ledger())
    finally:
        cluster.close()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("deaths", [NEWCOMERS, pytest.param(MORE_NEWCOMERS, marks=pytest.mark.slow)])
def test_newcomers_that_die_in_any_phase_leave_no_trace(
    tmp_path: Path, undisturbed: Callable[..., str], deaths: dict[str, str]
) -> None:
    result = run(tmp_path, deaths, workers=3)
    check(result, undisturbed)
    killed = [e for e in result.journal if e["event"] == "worker_exited" and e["exit_code"] == -9]
    assert len(killed) == len(deaths)
    survivor = {e["pid"] for e in result.journal if e["event"] == "worker_started" and e["slot"] == 0}
    assert len(survivor) == 1, "the worker that never died was replaced"


@pytest.mark.timeout(240)
def test_survivors_that_die_in_the_recovery_leave_no_trace(tmp_path: Path, undisturbed: Callable[..., str]) -> None:
    check(run(tmp_path, SURVIVORS, workers=3), undisturbed)


def test_a_step_is_redone_only_if_nobody_has_its_commit(tmp_path: Path, undisturbed: Callable[..., str]) -> None:
    result = run(tmp_path, LAGGARD, workers=2)
    check(result, undisturbed)
    assert 3 not in redone(result)
    assert 6 in redone(result)


def redone(result: Run) -> set[int]:
    """Steps that were read in more than one generation."""
    steps = [step for step, _ in {(e["step"], e["generation"]) for e in result.ledger if e["kind"] == "read"}]
    return {step for step in steps if steps.count(step) > 1}


def check(result: Run, undisturbed: Callable[..., str]) -> None:
    facts.check_samples(result.ledger, STEPS)
    facts.check_losses(result.ledger)
    assert facts.fingerprint(result.directory) == undisturbed(1)
