"""The order of samples, and the keys of random numbers."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from math import factorial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_runtime.core.samples import indices, micro_batch_key, sample_at


@pytest.mark.parametrize("size", [1, 2, 3, 63, 64, 65, 1000, 4097])
def test_an_epoch_is_every_sample_once(size: int) -> None:
    for epoch in (0, 1):
        assert sorted(sample_at(seed=1, epoch=epoch, size=size, offset=o) for o in range(size)) == list(range(size))


@given(st.integers(1, 2**44), st.integers(0, 2**40), st.integers(-(2**70), 2**70))
@settings(deadline=None, max_examples=50)
def test_positions_are_addressed_one_by_one_or_in_ranges_alike(size: int, start: int, seed: int) -> None:
    positions = range(start, start + 3)
    expected = [sample_at(seed=seed, epoch=p // size, size=size, offset=p % size) for p in positions]
    assert indices(seed=seed, size=size, positions=positions, shuffle=True) == expected
    assert all(0 <= index < size for index in expected)


def test_without_shuffling_the_stream_repeats_the_data_set() -> None:
    assert indices(seed=0, size=5, positions=range(3, 12), shuffle=False) == [3, 4, 0, 1, 2, 3, 4, 0, 1]


def test_the_order_is_what_running_jobs_already_use() -> None:
    # A joiner of another release must read the same samples: these values may never change.
    assert indices(seed=0, size=10, positions=range(12), shuffle=True) == [5, 4, 2, 0, 6, 7, 8, 1, 3, 9, 8, 6]
    assert micro_batch_key(0, 0, -1) == 7918905140289481718
    assert micro_batch_key(1, 96, 3) == 9172861490047507711


@pytest.mark.parametrize("size", [2, 3, 4])
def test_all_permutations_of_a_tiny_set_are_about_equally_frequent(size: int) -> None:
    draws = 3000
    seen = Counter(tuple(indices(seed=s, size=size, positions=range(size), shuffle=True)) for s in range(draws))
    expected = draws / factorial(size)
    deviation = sum((seen[order] - expected) ** 2 / expected for order in permutations(range(size)))
    assert deviation < 5 * (factorial(size) - 1)


def test_neighbours_and_epochs_are_unrelated() -> None:
    size, draws = 100, 2000
    gaps: Counter[int] = Counter()
    epochs: Counter[int] = Counter()
    for seed in range(draws):
        here = sample_at(seed=seed, epoch=0, size=size, offset=10)
        gaps[(sample_at(seed=seed, epoch=0, size=size, offset=11) - here) % size] += 1
        epochs[(sample_at(seed=seed, epoch=1, size=size, offset=10) - here) % size] += 1
    assert gaps[0] == 0
    for counts, cells in ((gaps, range(1, size)), (epochs, range(size))):
        expected = draws / len(cells)
        assert sum((counts[c] - expected) ** 2 / expected for c in cells) < 1.6 * len(cells)


def test_keys_are_distinct_63_bit_numbers() -> None:
    keys = {micro_batch_key(s, p, slot) for s in range(3) for p in range(0, 960, 96) for slot in range(-1, 24)}
    assert len(keys) == 3 * 10 * 25
    assert all(0 <= key < 2**63 for key in keys)
    # Half of all bits are set: no part of the key is constant.
    assert sum(key.bit_count() for key in keys) / len(keys) == pytest.approx(31.5, abs=1)
