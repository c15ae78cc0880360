"""The demo's picture: both loss curves, the world size, and a mark at each change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

INK, GREY, BLUE, ORANGE = "#222222", "#8a8a8a", "#2a6fbb", "#e0872b"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A committed step of a run; `time` in seconds since 1970, of the host that wrote the trace."""

    step: int
    loss: float
    world_size: int
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A change: the first step in the new world, what it was, and how long nobody trained, in seconds."""

    step: int
    label: str
    pause_s: float


def draw(
    path: Path,
    *,
    undisturbed: Sequence[Point],
    elastic: Sequence[Point],
    marks: Sequence[Mark],
    unigram_entropy: float,
    equal: bool,
) -> None:
    """Write the PNG. Raises ImportError where matplotlib is missing."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import MaxNLocator

    figure, (loss, world) = plt.subplots(
        2, 1, figsize=(10, 6.4), sharex=True, height_ratios=(3.2, 1), layout="constrained"
    )
    steps = [point.step for point in elastic]
    loss.plot(steps, [p.loss for p in elastic], color=ORANGE, linewidth=3.5, alpha=0.55, label="elastic run")
    loss.plot(
        [p.step for p in undisturbed],
        [p.loss for p in undisturbed],
        color=BLUE,
        linewidth=0.9,
        label="undisturbed run, 2 workers",
    )
    loss.axhline(unigram_entropy, color=GREY, linestyle=":", linewidth=1.2, label="unigram entropy of the data")
    loss.set_ylabel("training loss, nats a byte")
    verdict = "the same final weights, bit for bit" if equal else "the final weights DIFFER"
    loss.set_title(f"A worker killed, a node joined and drained: {verdict}", loc="left", color=INK)

    sizes = [point.world_size for point in elastic]
    world.fill_between(steps, sizes, step="mid", color=ORANGE, alpha=0.3, linewidth=0)
    world.step(steps, sizes, where="mid", color=ORANGE, linewidth=1.8)
    world.set_ylim(0, max(sizes) + 0.6)
    world.yaxis.set_major_locator(MaxNLocator(integer=True))
    world.set_ylabel("workers")
    world.set_xlabel("step")

    low, high = loss.get_ylim()
    for number, mark in enumerate(marks):
        for axes in (loss, world):
            axes.axvline(mark.step - 0.5, color=INK, linestyle="--", linewidth=0.8, alpha=0.7)
        # Each label a line lower than the one before: a kill and its replacement are close together.
        height = high - (high - low) * (0.05 + 0.065 * number)
        text = f"{mark.label}: {mark.pause_s * 1000:.0f} ms pause"
        box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.0}
        place = {"xy": (mark.step, height), "xytext": (5, 0), "textcoords": "offset points"}
        loss.annotate(text, **place, fontsize=9, color=INK, va="center", bbox=box)
    loss.legend(loc="center right", facecolor="white", edgecolor="none", framealpha=1.0)
    for axes in (loss, world):
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.01)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)
