"""Ranks: who keeps which, and what each worker is told of its place."""

from __future__ import annotations

import pytest

from elastic_runtime.core.world import Assignment, WorkerId, assignments, rank_order


def workers(text: str) -> tuple[WorkerId, ...]:
    """`a0 b1.2`: node, slot, and the spawn if it is not the first."""
    return tuple(WorkerId(w[0], int(w[1]), int(w[3:] or 1)) for w in text.split())


@pytest.mark.parametrize(
    ("members", "seniority", "ordered"),
    [
        ("", {}, ""),
        ("b0 a0", {}, "a0 b0"),  # all new: by name
        ("a1 a0 b1 b0", {}, "a0 a1 b0 b1"),
        ("a0 b0", {"b0": 2, "a0": 5}, "b0 a0"),  # the oldest is rank 0
        ("a0 b0 c0", {"b0": 2, "c0": 2}, "b0 c0 a0"),  # unknown ones are the youngest
        ("a0.2 a1 b0 b1", {"a1": 2, "b0": 2, "b1": 2}, "a1 a0.2 b0 b1"),  # a node stays together, its elder first
        ("a0.2 a1.2 b0 b1.2", {"b0": 2, "a0.2": 4, "a1.2": 4}, "b0 b1.2 a0.2 a1.2"),
        ("a0.3 b0 c0", {"a0.3": 7, "b0": 3, "c0": 7}, "b0 a0.3 c0"),
    ],
)
def test_survivors_keep_their_order_and_nodes_stay_together(
    members: str, seniority: dict[str, int], ordered: str
) -> None:
    ages = {workers(name)[0]: generation for name, generation in seniority.items()}
    assert rank_order(workers(members), ages) == workers(ordered)
    assert rank_order(reversed(workers(members)), ages) == workers(ordered)


def test_each_worker_is_told_its_place() -> None:
    world = workers("b1 b0 a0")
    assert assignments(world) == {
        world[0]: Assignment(rank=0, world_size=3, local_world_size=2, node_rank=0, node_count=2, local_index=0),
        world[1]: Assignment(rank=1, world_size=3, local_world_size=2, node_rank=0, node_count=2, local_index=1),
        world[2]: Assignment(rank=2, world_size=3, local_world_size=1, node_rank=1, node_count=2, local_index=0),
    }
    assert assignments(()) == {}


def test_a_process_is_the_same_only_as_itself() -> None:
    first, second = workers("a0 a0.2")
    assert first != second and first == WorkerId("a", 0, 1)
