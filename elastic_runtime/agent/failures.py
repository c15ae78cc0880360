"""Workers that failed by themselves: the line that a person gets of each, and torchrun's report when the job fails.

A worker that its agent has signalled did not fail, whatever it made of the signal; unless it had written down its
error before.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure, get_error_handler

from elastic_runtime.agent.logs import Output

NO_RANK = -1  # of a worker that was in no world yet; those of further slots count down
LONGEST_CAUSE = 200  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    slot: int
    rank: int | None
    pid: int
    exit_code: int
    at: float  # when it was seen, in seconds since 1970
    signalled_at: float | None
    output: Output

    @property
    def failed_at(self) -> float:
        """When it wrote down its error, which may be long before it was gone."""
        try:
            return min(self.at, os.stat(self.output.error_file).st_mtime)
        except OSError:
            return self.at

    def recorded(self) -> str:
        """What it wrote down of its error, whatever that is; empty if nothing."""
        try:
            return Path(self.output.error_file).read_text(errors="replace") if self.output.error_file else ""
        except OSError:
            return ""

    @property
    def is_failure(self) -> bool:
        return self.exit_code != 0 and (self.signalled_at is None or self.failed_at < self.signalled_at)


class Failures:
    def __init__(self, entrypoint: str) -> None:
        self._entrypoint = entrypoint
        self._found: dict[int, tuple[Death, ProcessFailure]] = {}  # slot -> of the process that was not replaced since

    def add(self, death: Death, *, told: str = "") -> str:
        """Why, and where to read more; empty if nothing is known, or nothing failed. `told`: what it told by itself."""
        if not death.is_failure:
            return ""
        failure = _failure(death)
        self._found[death.slot] = (death, failure)
        cause = "" if told else _cause(failure)
        return (f" ({cause})" if cause else "") + (f", see {death.output.log}" if death.output.log else "")

    def replaced(self, slot: int) -> None:
        self._found.pop(slot, None)

    def error(self) -> ChildFailedError | None:
        """All failures of processes that were not replaced, the first one named as the cause."""
        found = sorted(self._found.values(), key=lambda each: (each[1].timestamp, each[0].failed_at))
        if not found:
            return None
        ranked = {NO_RANK - d.slot if d.rank is None else d.rank: failure for d, failure in found}
        return ChildFailedError(self._entrypoint, ranked)

    def logs(self) -> Iterable[tuple[int, str]]:
        """slot, path: where the failed ones' output is."""
        return [(slot, death.output.log) for slot, (death, _) in sorted(self._found.items()) if death.output.log]


def _failure(death: Death) -> ProcessFailure:
    """What the worker wrote into its error file is not to be relied on."""
    path = death.output.error_file
    try:
        failure = ProcessFailure(local_rank=death.slot, pid=death.pid, exitcode=death.exit_code, error_file=path)
        if not isinstance(failure.message, dict) or isinstance(_traceback(failure), str):
            return failure
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        pass
    failure = ProcessFailure(local_rank=death.slot, pid=death.pid, exitcode=death.exit_code, error_file="")
    failure.error_file = path  # a person may make something of it
    return failure


def _traceback(failure: ProcessFailure) -> object:
    message: object = failure.message
    if not isinstance(message, dict):
        return message
    return message.get("extraInfo", {}).get("py_callstack", message.get("message", ""))


def _cause(failure: ProcessFailure) -> str:
    """The first line of what the worker recorded; the exit code is told elsewhere."""
    message: object = failure.message
    text = message.get("message", "") if isinstance(message, dict) else ""
    return (str(text).strip().splitlines() or [""])[0][:LONGEST_CAUSE]


def report(failures: Failures, own_error_file: str) -> None:
    """Tell of the failures on stderr, and hand the first one's error file up as this process's own."""
    error = failures.error()
    if error is None:
        return
    print(error, file=sys.stderr)
    for slot, path in failures.logs():
        print(f"elasticrun: the output of worker {slot} is in {path}", file=sys.stderr)
    sys.stderr.flush()
    _, first = error.get_first_failure()
    if own_error_file and Path(first.error_file).is_file():
        get_error_handler().dump_error_file(first.error_file, first.exitcode)


def record_own(error: Exception, own_error_file: str) -> None:
    """As `record` does for whatever ends a launcher."""
    if own_error_file:
        get_error_handler().record_exception(error)
