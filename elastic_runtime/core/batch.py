"""Which worker computes which micro-batch of a step, and which samples that micro-batch reads.

The global batch is V micro-batches of b samples, the same ones at every world size: a change of world moves
micro-batches between workers and never changes them. Knows nothing of datasets or of tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

from elastic_runtime.errors import ConfigurationError

BATCH_RULES = ("fixed_global", "fixed_per_worker")


def split(micro_batches: int, world_size: int, rank: int) -> range:
    """The contiguous slots that `rank` computes: the first V % W ranks get one more; empty for a rank on standby."""
    if micro_batches < 0 or not 0 <= rank < world_size:
        raise ValueError(f"no share for rank {rank} of {world_size} with {micro_batches} micro-batches")
    each, extra = divmod(micro_batches, world_size)
    start = rank * each + min(rank, extra)
    return range(start, start + each + (rank < extra))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """What one step reads: the samples at [position, position + sum(sizes)), slot by slot.

    Every slot has b samples, except in the last step of a bounded run, which may have fewer slots and a smaller
    last one.
    """

    position: int
    sizes: tuple[int, ...]

    @property
    def samples(self) -> int:
        return sum(self.sizes)

    def offsets(self, slot: int) -> range:
        """The positions that micro-batch `slot` reads."""
        start = self.position + sum(self.sizes[:slot])
        return range(start, start + self.sizes[slot])


def plan_step(*, position: int, end: int | None, micro_batch_size: int, micro_batches: int) -> StepPlan:
    """The step that starts at `position`; `end` is the first position that must not be read (None: unbounded)."""
    batch = micro_batch_size * micro_batches
    left = batch if end is None else min(batch, end - position)
    if left <= 0:
        raise ValueError(f"no sample is left at position {position} of {end}")
    full, tail = divmod(left, micro_batch_size)
    return StepPlan(position=position, sizes=(micro_batch_size,) * full + ((tail,) if tail else ()))


def micro_batches_for(
    rule: str, *, global_batch_size: int, micro_batch_size: int, world_size: int, base_world_size: int
) -> int:
    """V, the number of micro-batches of a step in a world of `world_size`.

    `fixed_global`: always global_batch_size / micro_batch_size. `fixed_per_worker`: global_batch_size is that of a
    world of base_world_size, and every worker keeps its part of it.
    """
    if micro_batch_size < 1 or global_batch_size < 1 or global_batch_size % micro_batch_size:
        raise ConfigurationError(
            f"global_batch_size={global_batch_size} is not a multiple of micro_batch_size={micro_batch_size}"
        )
    base = global_batch_size // micro_batch_size
    if rule == "fixed_global":
        return base
    if rule != "fixed_per_worker":
        raise ConfigurationError(f"batch_rule={rule!r} is not one of {', '.join(BATCH_RULES)}")
    if base_world_size < 1 or base % base_world_size:
        raise ConfigurationError(
            f"batch_rule='fixed_per_worker' needs the {base} micro-batches of the base batch to divide by"
            f" base_world_size={base_world_size}"
        )
    return base // base_world_size * world_size
