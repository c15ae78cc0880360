"""Calls in threads and programs in processes of their own, on whose facts tests wait with a limit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

PROMPT_S = 2.0  # generous for a loaded machine, and far below any limit that it must not be confused with

_ROOT = Path(__file__).parents[2]


class Background:
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._future: Future[object] = Future()
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()

    def _run(self, call: Callable[[], object]) -> None:
        try:
            self._future.set_result(call())
        except Exception as error:
            self._future.set_exception(error)

    def stays_blocked(self, for_s: float = 0.2) -> bool:
        self._thread.join(for_s)
        return self._thread.is_alive()

    def result(self, within_s: float = PROMPT_S) -> object:
        try:
            return self._future.result(within_s)
        finally:
            self._thread.join(within_s)


class Program:
    """A Python program in a process of its own, which ends when its input is closed."""

    def __init__(self, text: str, *arguments: object) -> None:
        command = [sys.executable, "-c", text, *map(str, arguments)]
        self.process = subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def line(self) -> str:
        assert self.process.stdout is not None
        return str(Background(self.process.stdout.readline).result(60.0)).strip()

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def stop(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)  # all of its threads stand still

    def resume(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()
