"""Evaluations and what is done at the end come out the same, whoever dies in them and however many take part."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.process import facts
from tests.process.cluster import JOBS, Cluster, Entry

STEPS = 20
SCRIPT = JOBS / "evaluate.py"
# Of three workers. The second dies in an evaluation; its replacement is let in while the others evaluate, because the
# third dies in that evaluation. At the end the first one dies where it should have saved the model.
DEATHS = {"1.0": "evaluate@4", "2.0": "evaluate with a newcomer@5", "0.0": "on_finish"}


def sums(entries: list[Entry]) -> dict[int, set[float]]:
    """step -> what workers got from the evaluation after it."""
    found: dict[int, set[float]] = {}
    for entry in entries:
        if entry["kind"] == "evaluated":
            found.setdefault(entry["step"], set()).add(entry["sum"])
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[int, set[float]], str]:
    """The sums and the fingerprint of a world of one."""
    directory = tmp_path_factory.mktemp("alone")
    cluster = Cluster(directory)
    try:
        process = cluster.run(SCRIPT, "--dir", directory, "--steps", STEPS, variables={"LOCAL_RANK": "0"})
        assert process.wait() == 0, process.output()
        return sums(cluster.ledger()), facts.fingerprint(directory)
    finally:
        cluster.close()


@pytest.mark.parametrize("workers", [2, 3])
def test_an_evaluation_gives_the_same_sum_in_every_world(
    cluster: Cluster, alone: tuple[dict[int, set[float]], str], workers: int
) -> None:
    agent = cluster.agent(SCRIPT, "--dir", cluster.directory, "--steps", STEPS, workers=workers)
    assert agent.wait() == 0, cluster.account()
    assert (sums(cluster.ledger()), facts.fingerprint(cluster.directory)) == alone
    assert all(len(found) == 1 for found in alone[0].values()) and len(alone[0]) == 5


def test_workers_that_die_in_evaluations_and_at_the_end_leave_no_trace(
    cluster: Cluster, alone: tuple[dict[int, set[float]], str], tmp_path: Path
) -> None:
    slow = tmp_path / "slow"
    slow.touch()
    options = ("--dir", tmp_path, "--steps", STEPS, "--deaths", json.dumps(DEATHS))
    agent = cluster.agent(SCRIPT, *options, workers=3)
    cluster.wait_for("the newcomer's death", lambda: any(tmp_path.glob("befell-2.0-*")))
    slow.unlink()
    assert agent.wait() == 0, cluster.account()
    assert any(tmp_path.glob("befell-0.0-on_finish*")) and any(tmp_path.glob("befell-1.0-*"))
    assert (sums(cluster.ledger()), facts.fingerprint(tmp_path)) == alone
    facts.check_samples(cluster.ledger(), STEPS)
