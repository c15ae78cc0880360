"""Clusters for tests, and the runs that nothing disturbs, to compare with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.process import facts
from tests.process.cluster import JOBS, Cluster
from tests.process.facts import STEPS


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    one = Cluster(tmp_path)
    yield one
    one.close()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """The fingerprint of the ledger job with a number of workers, each computed once."""
    known: dict[tuple[int, int], str] = {}

    def compute(workers: int, steps: int = STEPS) -> str:
        if (workers, steps) not in known:
            known[workers, steps] = _run(tmp_path_factory.mktemp("undisturbed"), workers, steps)
        return known[workers, steps]

    return compute


def _run(directory: Path, workers: int, steps: int) -> str:
    cluster = Cluster(directory)
    try:
        options = ("--dir", directory, "--steps", steps)
        if workers == 1:
            process = cluster.run(JOBS / "ledger.py", *options)
        else:
            process = cluster.agent(JOBS / "ledger.py", *options, workers=workers)
        assert process.wait() == 0, process.output()
        facts.check_samples(cluster.ledger(), steps)
        return facts.fingerprint(directory)
    finally:
        cluster.close()
