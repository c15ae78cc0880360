"""Each text file beside this one is a scenario with the trace that is expected of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.play import play, read

FILES = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_scenario_goes_as_it_is_written(path: Path) -> None:
    scenario = read(path)
    assert play(scenario) == scenario.expected


def test_the_scenarios_are_found() -> None:
    assert len(FILES) >= 8
