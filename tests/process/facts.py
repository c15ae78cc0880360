"""What the ledger of a job must say, whatever happened to the job."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from elastic_runtime.core.samples import indices
from tests.process.cluster import Entry
from tests.process.jobs import ledger as job

STEPS = 120  # of every job that is compared with an undisturbed one


def fingerprint(directory: Path) -> str:
    """Written once, by one worker."""
    lines = (directory / "fingerprint.txt").read_text().split()
    assert len(lines) == 1, f"on_finish ran {len(lines)} times"
    return lines[0]


def committed(entries: list[Entry]) -> dict[int, int]:
    """step -> the generation that committed it for good: the newest one, if an older one's holders all died."""
    found: dict[int, int] = {}
    for entry in entries:
        if entry["kind"] == "committed":
            found[entry["step"]] = max(entry["committed_in"], found.get(entry["step"], 0))
    return found


def check_samples(entries: list[Entry], steps: int) -> None:
    """In the generation that committed a step its workers read exactly the planned samples, each once."""
    generations = committed(entries)
    assert sorted(generations) == list(range(steps))
    read: dict[tuple[int, int], list[int]] = {}
    for entry in entries:
        if entry["kind"] == "read":
            read.setdefault((entry["step"], entry["generation"]), []).extend(entry["sample_indices"])
    for step, generation in generations.items():
        positions = range(step * job.GLOBAL_BATCH, (step + 1) * job.GLOBAL_BATCH)
        planned = indices(seed=job.SEED, size=job.SAMPLES, positions=positions, shuffle=True)
        got = read.get((step, generation), [])
        assert Counter(got) == Counter(planned), f"step {step}, committed in generation {generation}: {sorted(got)}"


def check_losses(entries: list[Entry]) -> None:
    """Whoever saw a step committed saw the same loss, also when it was committed twice."""
    losses: dict[int, set[float]] = {}
    for entry in entries:
        if entry["kind"] == "committed":
            losses.setdefault(entry["step"], set()).add(entry["loss"])
    assert {step: seen for step, seen in losses.items() if len(seen) > 1} == {}
