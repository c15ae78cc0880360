"""Fetching micro-batches, in this process and in children."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, TensorDataset

from elastic_runtime.errors import ConfigurationError
from elastic_runtime.session.loader import Batches, Task

TASKS = [Task(key=100 + slot, indices=tuple(range(3 * slot, 3 * slot + 3))) for slot in range(5)]


class Augmented:
    """Samples with noise from both generators, and the process that read them."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> tuple[int, Tensor, float, int]:
        return index, torch.rand(2), random.random(), os.getpid()


class Batched:
    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> int:
        raise AssertionError("not one by one")

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [-index for index in indices]


class Failing(Augmented):
    def __getitem__(self, index: int) -> Any:
        raise KeyError(f"no sample {index}")


def numbers(batches: list[Any]) -> list[Any]:
    return [[index.tolist(), noise.tolist(), plain.tolist()] for index, noise, plain, _ in batches]


def test_random_augmentation_depends_on_the_task_and_on_nothing_else() -> None:
    here = Batches(Augmented())
    children = Batches(Augmented(), num_workers=2)
    expected = numbers(list(here.open(TASKS)))
    assert [index for index, _, _ in expected] == [list(task.indices) for task in TASKS]
    assert len({str(noise) for _, noise, _ in expected}) == len(TASKS)
    assert numbers(list(here.open(TASKS[2:]))) == expected[2:]
    assert numbers(list(children.open(TASKS))) == expected
    assert numbers(list(children.open(TASKS[3:]))) == expected[3:]
    children.close()


def test_children_are_kept_between_openings_and_end_with_close() -> None:
    batches = Batches(Augmented(), num_workers=2)
    used = [{int(pid) for batch in batches.open(TASKS) for pid in batch[3]} for _ in range(2)]
    assert used[0] == used[1] and len(used[0]) == 2 and os.getpid() not in used[0]
    # What is left unread by an attempt that was given up does not come out of the next one.
    assert next(batches.open(TASKS))[0].tolist() == [0, 1, 2]
    assert [batch[0].tolist() for batch in batches.open(TASKS[3:])] == [[9, 10, 11], [12, 13, 14]]
    batches.close()
    for pid in used[0]:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_the_scripts_generator_does_not_notice_the_children() -> None:
    batches = Batches(Augmented(), num_workers=1)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    list(batches.open(TASKS))
    list(batches.open(TASKS))
    assert torch.equal(torch.get_rng_state(), before)
    batches.close()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="parent-death signals are Linux's")
def test_children_do_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    # A child has its parent's sockets: while it lives, peers do not see them close.
    script = """
import os, signal, sys
from elastic_runtime.session.loader import Batches, Task
class Pids:
    def __len__(self): return 8
    def __getitem__(self, index): return os.getpid()
batches = Batches(Pids(), num_workers=2)
print(*sorted({int(pid) for pid in batches.open([Task(0, (0,)), Task(1, (1,))])}), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    parent = subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True)
    assert parent.wait(60) == -9
    # The children have the pipe as well, so its end says that they are gone. Left to itself torch looks every 5 s.
    began = time.monotonic()
    output, _ = parent.communicate(timeout=60)
    assert time.monotonic() - began < 2
    assert len(output.split()) == 2


def test_samples_are_collated_by_torch_or_by_the_script() -> None:
    data = TensorDataset(torch.arange(30.0))
    (batch,) = Batches(data).open(TASKS[:1])
    assert batch[0].tolist() == [0.0, 1.0, 2.0]
    (batch,) = Batches([1, 2, 3], collate_fn=sum).open(TASKS[:1])
    assert batch == 6
    (batch,) = Batches(Batched(), collate_fn=list).open(TASKS[1:2])
    assert batch == [-3, -4, -5]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_no_task_is_no_batch_and_a_failing_sample_fails_here(num_workers: int) -> None:
    batches = Batches(Failing(), num_workers=num_workers)
    assert list(batches.open([])) == []
    with pytest.raises(KeyError, match="no sample 0"):
        list(batches.open(TASKS))
    batches.close()


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(3))


@pytest.mark.parametrize("dataset", [Stream(), iter([1, 2]), object()])
def test_data_that_cannot_be_addressed_is_refused(dataset: Any) -> None:
    with pytest.raises(ConfigurationError, match="map-style"):
        Batches(dataset)


def test_a_negative_number_of_children_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="num_workers=-1"):
        Batches([1], num_workers=-1)
