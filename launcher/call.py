"""A worker that calls a function: `python -P call.py RUN_DIRECTORY SLOT`.

Only the standard library is imported up here: where the rest is found is known once the caller's `sys.path` is.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.spawn
import os
import pickle
import sys
from pathlib import Path
from typing import Any

FUNCTION = "function.pickle"  # in the run directory: how to prepare, then (function, arguments)
RESULT = "result_{slot}.pickle"


def prepare(found: dict[str, Any]) -> None:
    """Be as the caller is: its path, directory and arguments, and its main module under another name."""
    process: Any = multiprocessing.current_process()
    process._inheriting = True  # so that a main module without a guard is told of it, and starts no jobs of its own
    try:
        multiprocessing.spawn.prepare(found)  # type: ignore[attr-defined]
    finally:
        del process._inheriting


def main(run_dir: Path, slot: int) -> None:
    with (run_dir / FUNCTION).open("rb") as file:
        found = pickle.load(file)
        sys.path[:] = found["sys_path"]
        from torch.distributed.elastic.multiprocessing.errors import record

        def call() -> None:
            prepare(found)
            function, args = pickle.load(file)
            keep(run_dir, slot, function(*args))

        record(call)()


def keep(run_dir: Path, slot: int, value: Any) -> None:
    path = run_dir / RESULT.format(slot=slot)
    path.with_suffix(".part").write_bytes(pickle.dumps(value))
    os.replace(path.with_suffix(".part"), path)


def result(run_dir: Path, slot: int) -> Any:
    """None also of a worker that ended in another way than by returning."""
    path = run_dir / RESULT.format(slot=slot)
    return pickle.loads(path.read_bytes()) if path.exists() else None


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
