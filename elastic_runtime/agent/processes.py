"""Worker processes: started in a process group of their own, watched by pidfd, ended with all their children.

A worker dies with its agent: it asks the kernel for SIGKILL when the thread that started it ends. So workers are
started from the agent's main thread only. What a worker started and left behind, in whatever process group, becomes a
child of the agent, which is a child subreaper.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import time
from collections.abc import Container, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import IO

import psutil  # type: ignore[import-untyped]

from elastic_runtime.agent.logs import Output
from elastic_runtime.channel import Channel

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_GONE_WITHIN_S = 5.0  # what was killed; a process that hangs in the kernel may take for ever
_libc = ctypes.CDLL(None, use_errno=True)
_files_at_start = resource.getrlimit(resource.RLIMIT_NOFILE)


@dataclass(slots=True)
class Process:
    """A running worker. `pidfd` becomes readable when it exits."""

    popen: subprocess.Popen[bytes]
    pidfd: int
    channel: Channel
    output: Output
    rank: int | None  # in the world that it was last announced to be in
    told: str = field(default="", init=False)  # the error that its Session told of
    signalled_at: float | None = field(default=None, init=False)  # in seconds since 1970

    @property
    def pid(self) -> int:
        return self.popen.pid

    def signal_group(self, number: signal.Signals) -> None:
        """To the worker and all processes of its group, such as loader processes."""
        self.signalled_at = self.signalled_at or time.time()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, number)

    def reap(self) -> int:
        """The exit code (negative: minus the signal). What the worker left of its group is killed."""
        exit_code = self.popen.wait()
        self.signal_group(signal.SIGKILL)
        os.close(self.pidfd)
        self.channel.close()
        return exit_code


def start_process(
    command: Sequence[str], output: Output, ours: Channel, theirs: Channel, *, rank: int | None
) -> Process:
    """Start a worker with its end of the channel. Raises OSError if the command cannot be executed."""
    agent = os.getpid()

    def die_with_agent() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        resource.setrlimit(resource.RLIMIT_NOFILE, _files_at_start)
        if os.getppid() != agent:  # it died before the call took effect
            os._exit(1)

    try:
        with ExitStack() as files:
            popen = subprocess.Popen(
                command,
                env=output.environment,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                preexec_fn=die_with_agent,
                stdout=_opened(output.stdout, files),
                stderr=_opened(output.stderr, files),
            )
    finally:
        theirs.close()
    return Process(popen=popen, pidfd=os.pidfd_open(popen.pid), channel=ours, output=output, rank=rank)


def open_many_files() -> None:
    """This process may open as many files as the system lets it: a coordinator holds a link to every node. Workers
    start with the limit that this process was started with."""
    _, most = _files_at_start
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _opened(path: str, files: ExitStack) -> IO[bytes] | None:
    """None: the stream is the agent's own. Appended to, so that a process that opens it as well overwrites nothing."""
    return files.enter_context(open(path, "ab", buffering=0)) if path else None


# -- what workers leave behind ----------------------------------------------------------------------------------------


def adopt_orphans() -> None:
    """From now on what descends from this process and loses its parent becomes its child."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def reap_strangers(own: Container[int]) -> None:
    """Take leave of children that nobody here started: orphans, and as process 1 those of everybody."""
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if found is None or found.si_pid in own:  # its own end is noticed elsewhere, and this is called again then
            return
        with contextlib.suppress(ChildProcessError):
            os.waitpid(found.si_pid, os.WNOHANG)


def end_orphans(mark: Mapping[str, str]) -> None:
    """SIGKILL for every descendant whose environment has this mark: it is a worker's, or a worker's child's."""
    deadline = time.monotonic() + _GONE_WITHIN_S
    while time.monotonic() < deadline:
        reap_strangers(())
        marked = [each for each in psutil.Process().children(recursive=True) if _is_marked(each, mark)]
        if not marked:
            return
        for each in marked:
            with contextlib.suppress(psutil.Error):
                each.kill()
        psutil.wait_procs(marked, timeout=0.1)


def _is_marked(process: psutil.Process, mark: Mapping[str, str]) -> bool:
    try:
        return mark.items() <= process.environ().items()
    except (psutil.Error, OSError):
        return False
