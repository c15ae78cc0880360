"""Fetching and collating the samples of micro-batches, here or in child processes.

Random augmentation is keyed by the micro-batch and not by the process that fetches it, so which worker, child or
attempt a micro-batch falls to changes nothing in it. Knows nothing of steps, shares or the order of samples.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate

from elastic_runtime.errors import ConfigurationError
from elastic_runtime.session.rng import seed_all

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Task:
    """One micro-batch to fetch: the key of its random numbers and the indices of its samples."""

    key: int
    indices: tuple[int, ...]


class Batches:
    """Collated micro-batches of a map-style data set.

    With `num_workers` > 0, that many child processes are started by the first `open` and kept until `close`.
    """

    def __init__(
        self, dataset: Any, *, collate_fn: Callable[[list[Any]], Any] | None = None, num_workers: int = 0
    ) -> None:
        if isinstance(dataset, IterableDataset) or not (
            hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
        ):
            raise ConfigurationError(
                f"a {type(dataset).__name__} has no len() and indices; steps() needs a map-style data set, because any"
                " worker must be able to read any sample"
            )
        if num_workers < 0:
            raise ConfigurationError(f"num_workers={num_workers} is negative")
        self._fetch = _Fetch(dataset, collate_fn or default_collate)
        self._tasks = _Tasks()
        self._loader: DataLoader[Any] | None = None
        self._opened: Any = None
        if num_workers > 0:
            self._loader = DataLoader(
                self._fetch,  # type: ignore[arg-type]
                sampler=self._tasks,
                batch_size=None,
                collate_fn=_as_it_is,
                num_workers=num_workers,
                persistent_workers=True,
                worker_init_fn=partial(_die_with_parent, os.getpid()),
                # Its draws seed the children, which reseed for every task; the script's generator is not to notice.
                generator=torch.Generator(),
            )

    def open(self, tasks: Sequence[Task]) -> Iterator[Any]:
        """The batches of `tasks`, in order. Ends whatever was opened before.

        In this process fetching seeds all random number generators: whoever uses them afterwards seeds them again.
        """
        if self._loader is None or not tasks:
            return map(self._fetch.__getitem__, tasks)
        self._tasks.current = tuple(tasks)
        opened = iter(self._loader)
        self._opened = opened
        return opened

    def close(self) -> None:
        """End the child processes, even while somebody (a traceback, say) still holds what was opened."""
        opened, self._opened, self._loader = self._opened, None, None
        if opened is not None:
            opened._shutdown_workers()


class _Fetch:
    """A data set whose indices are tasks and whose samples are collated micro-batches."""

    def __init__(self, dataset: Any, collate_fn: Callable[[list[Any]], Any]) -> None:
        self._dataset = dataset
        self._collate_fn = collate_fn

    def __getitem__(self, task: Task) -> Any:
        seed_all(task.key)
        several = getattr(self._dataset, "__getitems__", None)
        if several is not None:
            return self._collate_fn(several(list(task.indices)))
        return self._collate_fn([self._dataset[index] for index in task.indices])


class _Tasks:
    """What torch's loader takes for a sampler."""

    def __init__(self) -> None:
        self.current: tuple[Task, ...] = ()

    def __iter__(self) -> Iterator[Task]:
        return iter(self.current)

    def __len__(self) -> int:
        return len(self.current)


def _as_it_is(batch: Any) -> Any:
    return batch


def _die_with_parent(parent: int, child: int) -> None:
    """A child holds copies of its parent's sockets: if it outlived a killed parent, peers would not see them close."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
