"""Worker processes: started in a process group of their own, watched by pidfd, ended with all their children.

A worker dies with its agent: it asks the kernel for SIGKILL when the thread that started it ends. So workers are
started from the agent's main thread only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from elastic_runtime.channel import Channel

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(slots=True)
class Process:
    """A running worker. `pidfd` becomes readable when it exits."""

    popen: subprocess.Popen[bytes]
    pidfd: int
    channel: Channel

    @property
    def pid(self) -> int:
        return self.popen.pid

    def signal_group(self, number: signal.Signals) -> None:
        """To the worker and all processes of its group, such as loader processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, number)

    def reap(self) -> int:
        """The exit code (negative: minus the signal). What the worker left of its group is killed."""
        exit_code = self.popen.wait()
        self.signal_group(signal.SIGKILL)
        os.close(self.pidfd)
        self.channel.close()
        return exit_code


def start_process(command: Sequence[str], environment: Mapping[str, str], ours: Channel, theirs: Channel) -> Process:
    """Start a worker with its end of the channel. Raises OSError if the command cannot be executed."""
    agent = os.getpid()

    def die_with_agent() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != agent:  # it died before the call took effect
            os._exit(1)

    try:
        popen = subprocess.Popen(
            command,
            env=dict(environment),
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            preexec_fn=die_with_agent,
        )
    finally:
        theirs.close()
    return Process(popen=popen, pidfd=os.pidfd_open(popen.pid), channel=ours)
