"""Whose state is the newest, who pulls it from whom, and which unfinished work between steps is served first.

Every member of a new generation computes the same answer from the same table: one `Standing` a rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

IN_STEPS = 1 << 40  # place of a worker whose next collective belongs to a step
FINISHING = 1 << 41  # place of a worker that is leaving its Session


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a worker stands as it enters a generation."""

    has_state: int  # 1 once it has taken part in a generation
    committed_in: int  # the generation in which its last step was committed
    step: int  # steps committed
    place: int  # number of the evaluation it is in since that commit, or IN_STEPS, or FINISHING
    slots: int  # size of the reduction that this place waits for


FIELDS = 5


@dataclass(frozen=True, slots=True)
class Transfer:
    """`sources` hold the newest state, `targets` pull it. Both are ranks, ascending."""

    sources: tuple[int, ...]
    targets: tuple[int, ...]
    from_nothing: bool  # nobody had a state: rank 0's is where training starts


def plan_transfer(standings: Sequence[Standing]) -> Transfer:
    """The newest state is that of the highest (generation of commit, step). Equal pairs are equal content."""
    holders = [s for s in standings if s.has_state]
    if not holders:
        return Transfer((0,), tuple(range(1, len(standings))), True)
    newest = max((s.committed_in, s.step) for s in holders)
    is_source = [bool(s.has_state) and (s.committed_in, s.step) == newest for s in standings]
    return Transfer(
        tuple(rank for rank, yes in enumerate(is_source) if yes),
        tuple(rank for rank, yes in enumerate(is_source) if not yes),
        False,
    )


def byte_ranges(size: int, sources: Sequence[int], *, align: int = 64) -> dict[int, range]:
    """Split `size` bytes over the sources, so that a target pulls from all of them at once."""
    share = -(-size // max(1, len(sources)))
    share = -(-share // align) * align
    return {rank: range(min(size, place * share), min(size, (place + 1) * share)) for place, rank in enumerate(sources)}


def served_first(standings: Sequence[Standing]) -> Standing:
    """The unfinished evaluation that everybody completes before anything else; its place is IN_STEPS if none is."""
    return min(standings, key=lambda s: (s.place, -s.slots))
