"""Whose state is the newest, which bytes come from whom, and which evaluation is completed first."""

from __future__ import annotations

import pytest

from elastic_runtime.core.recovery import (
    FINISHING,
    IN_STEPS,
    Standing,
    Transfer,
    byte_ranges,
    plan_transfer,
    served_first,
)


def standings(text: str) -> list[Standing]:
    """`3.7` committed step 7 in generation 3; `-` has no state."""
    found = []
    for word in text.split():
        committed_in, step = (0, 0) if word == "-" else map(int, word.split("."))
        found.append(Standing(int(word != "-"), committed_in, step, IN_STEPS, 0))
    return found


@pytest.mark.parametrize(
    ("told", "sources", "targets", "from_nothing"),
    [
        ("-", (0,), (), True),
        ("- - -", (0,), (1, 2), True),
        ("- 2.0 -", (1,), (0, 2), False),
        ("3.7 3.7 3.7", (0, 1, 2), (), False),
        ("3.7 3.8 3.7", (1,), (0, 2), False),
        ("3.8 4.8 -", (1,), (0, 2), False),  # the same step committed again later: equal content, one of them leads
        ("2.9 4.3 4.3", (1, 2), (0,), False),  # a later generation outweighs more steps
    ],
)
def test_the_newest_state_is_handed_on(
    told: str, sources: tuple[int, ...], targets: tuple[int, ...], from_nothing: bool
) -> None:
    assert plan_transfer(standings(told)) == Transfer(sources, targets, from_nothing)


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 1000, 4096])
@pytest.mark.parametrize("sources", [(0,), (1, 4), (0, 2, 5)])
def test_ranges_cover_the_payload_once_and_are_aligned(size: int, sources: tuple[int, ...]) -> None:
    ranges = byte_ranges(size, sources)
    assert tuple(ranges) == sources
    assert [byte for part in ranges.values() for byte in part] == list(range(size))
    assert all(part.start % 64 == 0 for part in ranges.values() if part)


@pytest.mark.parametrize(
    ("places", "first"),
    [
        ([(IN_STEPS, 0), (IN_STEPS, 0)], (IN_STEPS, 0)),
        ([(IN_STEPS, 0), (1, 9), (0, 4)], (0, 4)),
        ([(FINISHING, 0), (IN_STEPS, 0)], (IN_STEPS, 0)),
        ([(0, 0), (0, 8)], (0, 8)),  # the one that knows the size
    ],
)
def test_what_is_unfinished_is_served_in_order(places: list[tuple[int, int]], first: tuple[int, int]) -> None:
    found = served_first([Standing(1, 1, 1, place, slots) for place, slots in places])
    assert (found.place, found.slots) == first
