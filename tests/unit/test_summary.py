"""The small integers of a step, summed over ranks as a collective would."""

from __future__ import annotations

from math import isnan

from elastic_runtime.session.reduction.summary import Summary, fact_code, pack_summary, unpack_summary


def over_ranks(*ranks: list[int], slots: int) -> Summary:
    numbers = [sum(column) for column in zip(*ranks, strict=True)]
    return unpack_summary(numbers, parameters=(len(numbers) - 1 - 2 * slots), slots=slots)


def test_facts_about_parameters_are_kept_apart() -> None:
    codes = [
        [fact_code(used=True), fact_code(used=True, overflow=True), fact_code(used=True, nonfinite=True), 0],
        [fact_code(used=False), fact_code(used=True, overflow=True), fact_code(used=True, overflow=True), 0],
    ]
    summary = over_ranks(*(pack_summary(flag=1, codes=c, slots=0, weights={}, losses={}) for c in codes), slots=0)
    assert summary.flag == 2
    assert summary.used == [True, True, True, False]
    assert summary.nonfinite == [False, False, True, False]
    # Of the third nobody needs a larger range, whichever rank saw what.
    assert summary.overflow == [False, True, False, False]


def test_a_million_ranks_do_not_carry_over_into_the_next_counter() -> None:
    codes = [(2**20 - 1) * fact_code(used=True), (2**20 - 1) * fact_code(used=True, nonfinite=True)]
    summary = over_ranks(pack_summary(flag=0, codes=codes, slots=0, weights={}, losses={}), slots=0)
    assert (summary.used, summary.nonfinite, summary.overflow) == ([True, True], [False, True], [False, False])


def test_the_loss_is_the_weighted_mean_in_slot_order_for_any_placement() -> None:
    weights, losses = {0: 3, 1: 1, 3: 7}, {0: 0.1, 1: -1e16, 3: 1 / 3}
    expected = (3 * 0.1 + -1e16 + 7 * (1 / 3)) / 11
    for cut in range(5):
        parts = [
            pack_summary(
                flag=0,
                codes=[],
                slots=4,
                weights={slot: w for slot, w in weights.items() if (slot < cut) is low},
                losses={slot: loss for slot, loss in losses.items() if (slot < cut) is low},
            )
            for low in (True, False)
        ]
        summary = over_ranks(*parts, slots=4)
        assert (summary.weight, summary.loss) == (11, expected)


def test_a_step_without_weight_has_no_loss() -> None:
    assert isnan(over_ranks(pack_summary(flag=0, codes=[], slots=2, weights={}, losses={}), slots=2).loss)
