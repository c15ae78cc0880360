"""A small process that outlives an agent which is killed, and kills what the agent's workers started.

The kernel ends a worker with its agent, but not the worker's own children. The guardian holds the reading end of a
pipe; at its end without a farewell it kills every process that inherited the run's mark, wherever that is by now.

Executed as a file, by an interpreter without site packages: only the standard library, and little of it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping

FAREWELL = b"."
NEEDED = ("LD_LIBRARY_PATH",)
TRIES, TRY_EVERY_S = 50, 0.1


class Guardian:
    """`mark`: NAME=VALUE in the environment of all that descends from this run's workers, and of nobody else.

    Of the agent's own environment it has only what an interpreter may need to start: it is not to bear the mark of
    a run that this agent is itself a worker of.
    """

    def __init__(self, mark: str, environment: Mapping[str, str]) -> None:
        reader, self._writer = os.pipe()
        try:
            self._popen = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, mark],
                stdin=reader,
                stdout=subprocess.DEVNULL,  # whoever reads the agent's output waits for its end
                stderr=subprocess.DEVNULL,
                env={name: environment[name] for name in NEEDED if name in environment},
                cwd="/",
                start_new_session=True,
            )
        finally:
            os.close(reader)

    @property
    def pid(self) -> int:
        return self._popen.pid

    def dismiss(self) -> None:
        try:
            os.write(self._writer, FAREWELL)
        except BrokenPipeError:
            pass  # somebody ended it
        os.close(self._writer)
        self._popen.wait()


def _stand(mark: bytes) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)  # it ends with the agent, whatever else is told to end
    if os.read(0, 1) == FAREWELL:
        return
    for _ in range(TRIES):
        found = [int(name) for name in os.listdir("/proc") if name.isdigit() and _has(name, mark)]
        if not found:
            return
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass  # gone by itself, or of another user
        time.sleep(TRY_EVERY_S)


def _has(name: str, mark: bytes) -> bool:
    try:
        with open(f"/proc/{name}/environ", "rb") as file:
            return mark in file.read().split(b"\0")
    except OSError:
        return False


if __name__ == "__main__":
    _stand(os.fsencode(sys.argv[1]))
