"""The simulation must find each planted bug, by a checker that says what is wrong.

A simulation that finds nothing proves something only if it would have found these.
"""

from __future__ import annotations

import pytest

from tests.simulation.planted import BUGS
from tests.simulation.run import run_seed

SEEDS = 200


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, checkers = BUGS[name]
    plant(monkeypatch)
    for seed in range(SEEDS):
        violation = run_seed(seed).violation
        if violation is not None:
            assert violation.checker in checkers, f"seed {seed}: {violation}"
            return
    pytest.fail(f"none of {SEEDS} histories went wrong")
