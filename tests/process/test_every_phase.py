"""A worker is killed in each phase of a change; those that are left go on, to the same bits."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.process import facts
from tests.process.cluster import JOBS, Cluster, Entry
from tests.process.facts import STEPS

# SLOT.N, the N-th process in a slot: where it dies. Each one is replaced by the next.
NEWCOMERS = {
    "1.0": "computing@3",
    "1.1": "arriving",
    "1.2": "arrived",
    "1.3": "connecting",
    "1.4": "formed",
    "1.5": "pulled",
    "1.6": "loaded",
    "1.7": "commit",
    "1.8": "inside the commit",
    "1.9": "committed",
}
# Three at first. The first dies in a step, the second as it learns of that; the third goes on alone, hands its state
# over to both replacements, and dies in the commit of a world of three.
SURVIVORS = {
    "0.0": "reducing@3",
    "1.0": "settling",
    "2.0": "inside the commit@4/3",
    "0.1": "source@5/3",
    "1.1": "sending@6/3",
}
# The first takes the end of a step for broken when the other has committed it, and pulls that state; the second time
# the one ahead dies before it has handed it over, and the step is done again.
LAGGARDS = {"0.0": "lag@3/2", "1.0": "sending@6"}


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
        marks = {directory / f"here-{name}-{where.partition('@')[0]}" for name, where in deaths.items()}

        def all_happened() -> bool:
            return all(mark.exists() for mark in marks)

        cluster.wait_for(f"all of {deaths}", all_happened, within_s=150)
        (directory / "slow").unlink()
        assert agent.wait() == 0, cluster.account()
        return Run(directory, cluster.journal(), facts.ledger(directory))
    finally:
        cluster.close()
