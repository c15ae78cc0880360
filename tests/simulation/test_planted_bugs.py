"""The simulation must find each planted bug, by a checker that says what is wrong.

A simulation that finds nothing proves something only if it would have found these.
"""

from __future__ import annotations

import pytest

from tests.simulation.faults import Kinds
from tests.simulation.planted import BUGS
from tests.simulation.planted_succession import OF_SUCCESSION
from tests.simulation.run import run_seed

SEEDS = 400


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, checkers = BUGS[name]
    plant(monkeypatch)
    _find(checkers, elected=False)


@pytest.mark.parametrize("name", OF_SUCCESSION)
def test_a_planted_bug_of_succession_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, checkers, kinds = OF_SUCCESSION[name]
    plant(monkeypatch)
    _find(checkers, elected=True, kinds=kinds)


def _find(checkers: set[str], *, elected: bool, kinds: Kinds | None = None) -> None:
    for seed in range(SEEDS):
        violation = run_seed(seed, elected=elected, kinds=kinds).violation
        if violation is not None:
            assert violation.checker in checkers, f"seed {seed}: {violation}"
            return
    pytest.fail(f"none of {SEEDS} histories went wrong")
