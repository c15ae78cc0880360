"""How long a machine that fails again and again stays out."""

from __future__ import annotations

import pytest

from elastic_runtime.core.flapping import FREE_LOSSES, LONGEST_WAIT_S, WINDOW_S, Flapping


@pytest.mark.parametrize(
    ("losses", "wait_s"),
    [([], 0), ([0], 0), ([0, 1], 0), ([0, 1, 2], 2), ([0, 1, 2, 3], 4), ([0, 1, 2, 3, 4], 8), (range(20), 120)],
)
def test_the_first_losses_are_free_and_each_further_one_doubles_the_wait(losses: list[int], wait_s: float) -> None:
    flapping = Flapping()
    for at in losses:
        flapping.lost("h", float(at))
    last = float(max(losses, default=0))
    assert flapping.free_at("h", last) == last + wait_s
    assert flapping.free_at("another", last) == last


def test_who_was_well_for_long_starts_anew() -> None:
    flapping = Flapping()
    for at in range(FREE_LOSSES + 1):
        flapping.lost("h", float(at))
    well = FREE_LOSSES + WINDOW_S
    assert flapping.free_at("h", well) == well
    flapping.lost("h", well)
    assert flapping.losses["h"] == [well]  # nothing older is kept


def test_a_node_that_names_no_machine_is_never_held_back() -> None:
    flapping = Flapping()
    for at in range(10):
        flapping.lost("", float(at))
    assert flapping.free_at("", 10.0) == 10.0 and flapping.losses == {}


def test_a_machine_that_always_fails_at_once_changes_the_world_a_bounded_number_of_times() -> None:
    flapping, now, changes = Flapping(), 0.0, 0
    while now < 3600.0:
        changes += 1
        flapping.lost("h", now)
        now = flapping.free_at("h", now) + 0.1
    assert changes < 12 + 3600.0 / LONGEST_WAIT_S * 1.5
