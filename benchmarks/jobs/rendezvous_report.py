"""What `rendezvous.py` has measured, as tables, and how it grows with the number of nodes."""

from __future__ import annotations

import math
import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

FIT_FROM = 64  # below, what a job costs once is the most of it


@dataclass(frozen=True, kw_only=True)
class Result:
    """None where it was not measured."""

    nodes: int
    seconds: float
    requests: float
    bytes: float
    of_etcd: float | None = None
    live_s: float | None = None
    join_s: float | None = None
    join_requests: float | None = None
    join_bytes: float | None = None
    told_bytes: float | None = None
    take_over_s: float | None = None


def exponent(results: Sequence[Result], what: str, least: int) -> float | None:
    """b of a·N^b, by least squares on logarithms; None for fewer than three sizes."""
    points = [(math.log(r.nodes), math.log(getattr(r, what))) for r in results if r.nodes >= least]
    if len(points) < 3:
        return None
    slope, _ = statistics.linear_regression(*zip(*points, strict=True))
    return slope


def median(results: Sequence[Result]) -> Result:
    """Of repeats, figure by figure."""
    values = {}
    for name in Result.__dataclass_fields__:
        found = [value for each in results if (value := getattr(each, name)) is not None]
        values[name] = statistics.median(found) if found else None
    return Result(**{**values, "nodes": results[0].nodes})


def table(results: Sequence[Result]) -> list[str]:
    lines = [
        "| N | seconds | requests | bytes | etcd | live | join | requests | bytes | take-over |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in results:
        joined = told = "–"
        if r.join_requests is not None and r.join_bytes is not None and r.told_bytes is not None:
            joined, told = f"{r.join_requests:,.0f}", f"{r.join_bytes:,.0f} ({r.told_bytes:,.0f})"
        lines.append(
            f"| {r.nodes:,} | {r.seconds:.3f} | {r.requests:,.0f} | {r.bytes:,.0f} | {whole(r.of_etcd)} "
            f"| {short(r.live_s)} | {short(r.join_s)} | {joined} | {told} | {short(r.take_over_s)} |"
        )
    return lines


def whole(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def short(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def growth(results: Sequence[Result]) -> str:
    told = []
    for least in (FIT_FROM, 0) if results[0].nodes < FIT_FROM else (0,):
        fits = {what: exponent(results, what, least) for what in ("requests", "bytes", "seconds")}
        sizes = [r.nodes for r in results if r.nodes >= least]
        if None not in fits.values():
            told.append(f"from {min(sizes)} to {max(sizes):,}: " + ", ".join(f"{w} {b:.2f}" for w, b in fits.items()))
    return "Exponents " + "; ".join(told) if told else "Too few sizes for an exponent"


def surroundings(root: Path, etcd_program: str) -> str:
    """Hardware, versions, commit."""
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    git = ["git", "-C", str(root)]
    commit = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    changed = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True).stdout.strip()
    etcd = subprocess.run([etcd_program, "--version"], capture_output=True, text=True).stdout.splitlines()[0]
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    return (
        f"{os.cpu_count()} cores ({names[0].partition(':')[2].strip() if names else platform.machine()}), "
        f"{memory:.0f} GiB, {platform.system()} {platform.release()}, Python {platform.python_version()}, "
        f"torch {version('torch')}, grpcio {version('grpcio')}, {etcd.replace(' Version:', '')} "
        f"with its data in /dev/shm; commit {commit}{' with changes' if changed else ''}; load {load} before."
    )
