"""Which sample stands at which position of the endless stream of a job, and which random key goes with it.

Both are pure functions of (seed, position): whoever computes them, whenever, gets the same answer, so that nothing
about the data order has to be stored or handed over except the position.

The order within an epoch is a keyed permutation that is computed, not stored: a balanced-as-possible Feistel network
over the next power of two (Luby and Rackoff 1988), with cycle walking to stay inside [0, size) (Black and Rogaway,
"Ciphers with Arbitrary Finite Domains", CT-RSA 2002). The round function is multiply-and-shift with a key per round.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

# With six rounds a chi-square test tells the orders of three samples from uniform ones; with eight it does not.
_ROUNDS = 8
# A network over fewer bits than this reaches too few permutations; tiny data sets walk further instead.
_MIN_BITS = 6
_BETWEEN_STEPS = -1


def sample_at(*, seed: int, epoch: int, size: int, offset: int) -> int:
    """The index of the sample at `offset` in the shuffled `epoch` of a data set with `size` samples."""
    if not 0 <= offset < size:
        raise ValueError(f"offset {offset} is outside of a data set of {size} samples")
    return _walk(offset, size, _bits(size), _round_keys(seed, epoch))


def indices(*, seed: int, size: int, positions: range, shuffle: bool) -> list[int]:
    """The sample indices at `positions`: position p is epoch p // size, offset p % size."""
    if size < 1:
        raise ValueError("a data set without samples has no positions")
    if not shuffle:
        return [position % size for position in positions]
    bits = _bits(size)
    return [_walk(p % size, size, bits, _round_keys(seed, p // size)) for p in positions]


def micro_batch_key(seed: int, position: int, slot: int = _BETWEEN_STEPS) -> int:
    """A 63-bit key for the random numbers of micro-batch `slot` of the step at `position` (-1: between two steps)."""
    return _hash(f"random numbers:{seed}:{position}:{slot}") >> 1


def _walk(value: int, size: int, bits: int, keys: Sequence[tuple[int, int]]) -> int:
    right_bits = bits // 2
    left_bits = bits - right_bits
    left_mask, right_mask = (1 << left_bits) - 1, (1 << right_bits) - 1
    while True:
        left, right = value >> right_bits, value & right_mask
        # Halves of unequal width alternate as the one that is changed, so that each round is invertible.
        for (key_a, key_b), (key_c, key_d) in zip(keys[::2], keys[1::2], strict=True):
            left ^= ((right + key_a) * key_b >> 40) & left_mask
            right ^= ((left + key_c) * key_d >> 40) & right_mask
        value = left << right_bits | right
        if value < size:
            return value


def _bits(size: int) -> int:
    return max(_MIN_BITS, (size - 1).bit_length())


@lru_cache(maxsize=8)
def _round_keys(seed: int, epoch: int) -> tuple[tuple[int, int], ...]:
    name = f"sample order:{seed}:{epoch}"
    # An odd multiplier keeps the low bits of what it multiplies.
    return tuple((_hash(f"{name}:{i}:add"), _hash(f"{name}:{i}:multiply") | 1) for i in range(_ROUNDS))


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")
