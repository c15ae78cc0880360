"""The few integers that go with the gradients of a step: one small tensor, summed once over the world.

Losses travel as the bit patterns of float64 in slots of their own, which all ranks but one leave at zero, so that
summing integers hands every rank the exact values and all of them add up the mean loss in slot order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from struct import pack, unpack

# Ranks that used a parameter, saw a non-finite gradient of it, saw one outside of its range: three counters in one
# integer. A counter holds a million ranks.
_COUNTER_BITS = 20
_COUNTER_MASK = (1 << _COUNTER_BITS) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSums:
    """What a step came to, the same on every rank.

    `flag`: the sum of the flags given to finish(). `weight`: Σ w over the global batch. `loss`: Σ w·loss / Σ w in slot
    order, nan when the weight is 0. `overflow`: in exact mode, parameters with a gradient outside of their range; if
    positive nothing was installed.
    """

    flag: int
    weight: int
    loss: float
    overflow: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The summed summary, read; `loss` as in StepSums, then one entry per parameter: what happened anywhere."""

    flag: int
    weight: int
    loss: float
    used: list[bool]
    nonfinite: list[bool]
    overflow: list[bool]


def fact_code(*, used: bool, nonfinite: bool = False, overflow: bool = False) -> int:
    """This rank's facts about one parameter, ready to be summed over ranks."""
    return used | nonfinite << _COUNTER_BITS | overflow << 2 * _COUNTER_BITS


def pack_summary(
    *, flag: int, codes: Sequence[int], slots: int, weights: Mapping[int, int], losses: Mapping[int, float]
) -> list[int]:
    """This rank's summands: the flag, a code per parameter, a weight per slot, a loss per slot."""
    numbers = [flag, *codes]
    numbers.extend(weights.get(slot, 0) for slot in range(slots))
    numbers.extend(_bits(losses[slot]) if slot in losses else 0 for slot in range(slots))
    return numbers


def unpack_summary(numbers: Sequence[int], *, parameters: int, slots: int) -> Summary:
    """What the summed numbers say.

    A parameter with a non-finite gradient is not counted as overflowing whatever else happened to it: its result is
    NaN at any range, and which of the two a rank sees first depends on placement.
    """
    codes, rest = numbers[1 : 1 + parameters], numbers[1 + parameters :]
    weight = sum(rest[:slots])
    total = 0.0
    for w, bits in zip(rest[:slots], rest[slots:], strict=True):
        if w:
            total += w * _float(bits)
    loss = total / weight if weight else float("nan")
    nonfinite = [code >> _COUNTER_BITS & _COUNTER_MASK > 0 for code in codes]
    overflow = [code >> 2 * _COUNTER_BITS > 0 for code in codes]
    return Summary(
        flag=numbers[0],
        weight=weight,
        loss=loss,
        used=[code & _COUNTER_MASK > 0 for code in codes],
        nonfinite=nonfinite,
        overflow=[too_large and not odd for too_large, odd in zip(overflow, nonfinite, strict=True)],
    )


def _bits(value: float) -> int:
    bits: int = unpack("<q", pack("<d", value))[0]
    return bits


def _float(bits: int) -> float:
    value: float = unpack("<d", pack("<q", bits))[0]
    return value
