"""The scripts of docs/migration.md: each learns the same before and after, and the document shows what changed.

The scripts of before let go of their model before they destroy the group. The other way round torch 2.13 hangs now and
then: the destructor of DDP's reducer holds the GIL and waits for gloo's threads, one of which wants it for a tensor.
"""

from __future__ import annotations

import difflib
import re
import shutil
from pathlib import Path

import pytest

from tests.process.cluster import ROOT, Cluster, Process

SCRIPTS = ROOT / "examples" / "migration"
NAMES = ("plain", "accumulation", "checkpoints")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
ELASTICRUN = ("-m", "launcher", "--standalone", "--nproc-per-node=2")
TOLERANCE = 1e-6  # relative: the same sums, added up in another order


def losses(process: Process) -> dict[int, float]:
    assert process.wait() == 0, process.output()
    return {int(step): float(loss) for step, loss in re.findall(r"^step (\d+) loss (\S+)$", process.output(), re.M)}


@pytest.mark.parametrize("name", ["plain", pytest.param("accumulation", marks=pytest.mark.slow)])
def test_a_script_learns_the_same_before_and_after(cluster: Cluster, name: str) -> None:
    before, after = SCRIPTS / "before" / f"{name}.py", SCRIPTS / "after" / f"{name}.py"
    runs = [cluster.run(*TORCHRUN, before), cluster.run(*ELASTICRUN, before), cluster.run(*ELASTICRUN, after)]
    torchrun, ours, migrated = map(losses, runs)
    assert len(torchrun) == 10 and torchrun[9] < torchrun[0]
    assert ours == torchrun
    assert migrated == pytest.approx(torchrun, rel=TOLERANCE)


@pytest.mark.slow
def test_a_script_with_checkpoints_goes_on_from_those_of_before(cluster: Cluster) -> None:
    before, after = SCRIPTS / "before" / "checkpoints.py", SCRIPTS / "after" / "checkpoints.py"
    folders = [cluster.directory / name for name in ("torchrun", "elasticrun", "after")]
    runs = [
        cluster.run(*TORCHRUN, before, folders[0], 8),
        cluster.run(*ELASTICRUN, before, folders[1], 8),
        cluster.run(*ELASTICRUN, after, folders[2], 4),
    ]
    torchrun, ours, migrated = map(losses, runs)
    assert ours == torchrun and len(torchrun) == 8
    assert migrated == pytest.approx({step: torchrun[step] for step in range(4)}, rel=TOLERANCE)
    migrated_later = cluster.directory / "later"
    shutil.copytree(folders[0], migrated_later)
    later = [cluster.run(*TORCHRUN, before, folders[0], 10), cluster.run(*ELASTICRUN, after, migrated_later, 10)]
    torchrun, migrated = map(losses, later)
    assert sorted(torchrun) == [8, 9]
    assert migrated == pytest.approx(torchrun, rel=TOLERANCE)


def difference(name: str) -> str:
    texts = [(SCRIPTS / when / f"{name}.py").read_text().splitlines(keepends=True) for when in ("before", "after")]
    return "".join(difflib.unified_diff(*texts, f"before/{name}.py", f"after/{name}.py", n=2))


@pytest.mark.parametrize("name", NAMES)
def test_the_document_shows_what_changed(name: str) -> None:
    document = Path(ROOT / "docs" / "migration.md").read_text()
    assert f"```diff\n{difference(name)}```" in document, f"what it should show:\n{difference(name)}"
