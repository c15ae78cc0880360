"""Shares, step plans and the number of micro-batches."""

from __future__ import annotations

import pytest

from elastic_runtime.core.batch import micro_batches_for, plan_step, split
from elastic_runtime.errors import ConfigurationError


@pytest.mark.parametrize("micro_batches", [0, 1, 2, 16, 23, 24])
@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 7, 32])
def test_shares_cover_every_slot_once_in_order_and_differ_by_at_most_one(micro_batches: int, world_size: int) -> None:
    shares = [split(micro_batches, world_size, rank) for rank in range(world_size)]
    assert [slot for share in shares for slot in share] == list(range(micro_batches))
    lengths = [len(share) for share in shares]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] - lengths[-1] <= 1


@pytest.mark.parametrize(("world_size", "rank"), [(0, 0), (2, 2), (2, -1)])
def test_a_rank_outside_of_the_world_has_no_share(world_size: int, rank: int) -> None:
    with pytest.raises(ValueError, match="no share"):
        split(4, world_size, rank)


@pytest.mark.parametrize(
    ("position", "end", "sizes"),
    [
        (0, None, (4, 4, 4)),
        (24, 36, (4, 4, 4)),
        (24, 35, (4, 4, 3)),
        (24, 32, (4, 4)),
        (24, 29, (4, 1)),
        (24, 25, (1,)),
    ],
)
def test_a_step_reads_what_is_left_and_never_more(position: int, end: int | None, sizes: tuple[int, ...]) -> None:
    plan = plan_step(position=position, end=end, micro_batch_size=4, micro_batches=3)
    assert plan.sizes == sizes
    read = [p for slot in range(len(sizes)) for p in plan.offsets(slot)]
    assert read == list(range(position, position + plan.samples))


def test_there_is_no_step_behind_the_end() -> None:
    with pytest.raises(ValueError, match="no sample is left"):
        plan_step(position=24, end=24, micro_batch_size=4, micro_batches=3)


@pytest.mark.parametrize(
    ("rule", "world_size", "expected"),
    [("fixed_global", 1, 16), ("fixed_global", 5, 16), ("fixed_per_worker", 4, 16), ("fixed_per_worker", 3, 12)],
)
def test_the_number_of_micro_batches_follows_the_rule(rule: str, world_size: int, expected: int) -> None:
    v = micro_batches_for(rule, global_batch_size=64, micro_batch_size=4, world_size=world_size, base_world_size=4)
    assert v == expected


@pytest.mark.parametrize(
    ("rule", "global_batch_size", "base_world_size", "message"),
    [
        ("fixed_global", 63, 1, "not a multiple"),
        ("fixed_global", 0, 1, "not a multiple"),
        ("fixed_per_worker", 64, 3, "base_world_size=3"),
        ("fixed_per_worker", 64, 0, "base_world_size=0"),
        ("fixed", 64, 1, "fixed_global, fixed_per_worker"),
    ],
)
def test_batches_that_do_not_divide_are_refused(
    rule: str, global_batch_size: int, base_world_size: int, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        micro_batches_for(
            rule,
            global_batch_size=global_batch_size,
            micro_batch_size=4,
            world_size=2,
            base_world_size=base_world_size,
        )
