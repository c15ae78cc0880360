"""Real agents and workers on loopback, and the facts they leave behind: journals, ledgers, outputs, exit codes.

A `Cluster` is one job. Tests wait on facts with a deadline. Whatever a cluster started it ends, by pid, and `close`
fails if a process, a listening socket or a file in shared memory is left.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
Entry = dict[str, Any]

ROOT = Path(__file__).parents[2]
JOBS = Path(__file__).parent / "jobs"
LIMIT_S = 60.0  # of any wait: several times what it takes on a busy machine
_LOOK_EVERY_S = 0.01
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def free_port() -> int:
    """A port nobody listens on. Below those the kernel gives to outgoing connections, which might take it meanwhile."""
    while True:
        port = random.SystemRandom().randrange(15000, 30000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def environment(**more: str) -> dict[str, str]:
    """What a user's shell would hand down: nothing of a launcher that this test itself may run under."""
    foreign = ("RANK", "WORLD_SIZE", "MASTER_", "LOCAL_", "GROUP_", "ROLE_", "TORCHELASTIC_", "PET_", "ELASTIC_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **more}


class Lines:
    """The complete lines of a growing file of JSON objects; what was read once is not read again."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0
        self._entries: list[Entry] = []

    def read(self) -> list[Entry]:
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._offset)
                whole, newline, _ = file.read().rpartition(b"\n")
            self._offset += len(whole + newline)
            self._entries += map(json.loads, whole.splitlines())
        return self._entries


@dataclass(slots=True)
class Process:
    """A command that was started, its output in a file."""

    popen: subprocess.Popen[bytes]
    output_path: Path

    @property
    def pid(self) -> int:
        return self.popen.pid

    def output(self) -> str:
        return self.output_path.read_text(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        self.popen.send_signal(number)

    def wait(self, within_s: float = LIMIT_S) -> int:
        try:
            return self.popen.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.popen.args} did not end within {within_s:g} s:\n{self.output()}") from None


@dataclass(slots=True)
class Agent(Process):
    log_dir: Path
    lines: Lines | None = None

    def journal(self) -> list[Entry]:
        """What it wrote down so far; nothing if it never got so far as to have a run directory."""
        if self.lines is None and (found := list(self.log_dir.glob("*/journal.jsonl"))):
            self.lines = Lines(found[0])
        return self.lines.read() if self.lines else []

    @property
    def node(self) -> str:
        """The name it has now; an agent that was declared gone comes back under a new one."""
        return str(self.journal()[-1]["node"])

    def workers(self) -> dict[int, int]:
        """slot -> pid of the process that runs in it."""
        if self.popen.poll() is not None:
            return {}
        running: dict[int, int] = {}
        for entry in self.journal():
            if entry["event"] == "worker_started":
                running[entry["slot"]] = entry["pid"]
            elif entry["event"] == "worker_exited" and running.get(entry["slot"]) == entry["pid"]:
                del running[entry["slot"]]
        return running


class Cluster:
    def __init__(self, directory: Path, *, nnodes: str = "1:4", run_id: str = "job", port: int | None = None) -> None:
        self.directory = directory
        self.port = port or free_port()
        self.agents: list[Agent] = []
        self.others: list[Process] = []
        self._nnodes, self._run_id = nnodes, run_id
        self._ledger = Lines(directory / "ledger.jsonl")
        self._shared_memory = set(os.listdir("/dev/shm"))
        directory.mkdir(parents=True, exist_ok=True)

    # -- starting -----------------------------------------------------------------------------------------------------

    def agent(
        self,
        script: str | Path,
        *arguments: object,
        workers: int = 1,
        flags: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
        within: Sequence[str] = (),
    ) -> Agent:
        """One node: an agent with `workers` workers. The first one started serves the store. Later flags win.

        `within`: what executes its arguments as a command, for an agent that is to run elsewhere.
        """
        if len(self.agents) == 1:
            first = self.agents[0]
            self.wait_for("the first agent serves the store", lambda: first.journal() or first.popen.poll() is not None)
        log_dir = self.directory / f"agent{len(self.agents)}"
        command = [*within, sys.executable, "-m", "launcher", f"--nnodes={self._nnodes}", f"--nproc-per-node={workers}"]
        command += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self.port}", f"--rdzv-id={self._run_id}"]
        command += [f"--log-dir={log_dir}", "--max-restarts=50", *flags, str(script), *map(str, arguments)]
        process = self._start(command, f"agent{len(self.agents)}.txt", variables or {})
        self.agents.append(Agent(process.popen, process.output_path, log_dir))
        return self.agents[-1]

    def run(self, *command: object, variables: Mapping[str, str] | None = None) -> Process:
        """Any other command of this interpreter, such as a script without a launcher."""
        name = f"other{len(self.others)}.txt"
        self.others.append(self._start([sys.executable, *map(str, command)], name, variables or {}))
        return self.others[-1]

    def _start(self, command: list[str], output: str, variables: Mapping[str, str]) -> Process:
        path = self.directory / output
        with path.open("wb") as stream:
            popen = subprocess.Popen(
                command,
                cwd=self.directory,
                env=environment(**variables, ELASTIC_TEST_DIRECTORY=str(self.directory)),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                # Should the tests themselves be killed, nothing of them stays.
                preexec_fn=lambda: _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),
            )
        return Process(popen, path)

    # -- facts --------------------------------------------------------------------------------------------------------

    def journal(self) -> list[Entry]:
        """All agents' entries, in the order of time."""
        return sorted((e for agent in self.agents for e in agent.journal()), key=lambda e: e["time"])

    def ledger(self) -> list[Entry]:
        """What the workers of `jobs/ledger.py` wrote down, if this cluster's directory is where they do."""
        return self._ledger.read()

    def events(self, event: str, **fields: Any) -> list[Entry]:
        return [e for e in self.journal() if e["event"] == event and fields.items() <= e.items()]

    def wait_for(self, what: str, look: Callable[[], T], within_s: float = LIMIT_S) -> T:
        """The first true answer of `look`. Fails, telling all that is known, at the deadline or when nothing runs."""
        deadline = time.monotonic() + within_s
        while True:
            over = time.monotonic() > deadline or all(p.popen.poll() is not None for p in self._processes())
            if found := look():
                return found
            if over:
                raise AssertionError(f"never seen: {what}\n{self.account()}")
            time.sleep(_LOOK_EVERY_S)

    def wait_for_event(self, event: str, *, count: int = 1, within_s: float = LIMIT_S, **fields: Any) -> list[Entry]:
        def look() -> list[Entry]:
            found = self.events(event, **fields)
            return found if len(found) >= count else []

        return self.wait_for(f"{count} × {event} {fields}", look, within_s)

    def account(self) -> str:
        """Everything for a person who has to find out what happened."""
        shown = ["journal:"]
        shown += [json.dumps({k: v for k, v in e.items() if k not in ("phases", "described")}) for e in self.journal()]
        for process in self._processes():
            shown += [f"--- {process.output_path.name}, exit code {process.popen.poll()}:", process.output()[-4000:]]
        return "\n".join(shown)

    def _processes(self) -> list[Process]:
        return [*self.agents, *self.others]

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self, *, check: bool = True) -> None:
        """End what runs. With `check`, what the processes should have ended by themselves must be gone."""
        for process in self._processes():
            if process.popen.poll() is None:
                process.popen.kill()
            process.popen.wait()
        left = self._left(within_s=5.0)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if check:
            assert not left, f"processes left over: {left}\n{self.account()}"
            assert not is_listening(self.port), f"somebody still listens on port {self.port}"
            files = set(os.listdir("/dev/shm")) - self._shared_memory
            mine = [name for name in files if any(str(pid) in name.split("_") for pid in self._pids())]
            assert not mine, f"left over in /dev/shm: {mine}"

    def _pids(self) -> set[int]:
        started = {e["pid"] for e in self.events("worker_started")}
        return started | {process.pid for process in self._processes()}

    def _left(self, within_s: float) -> dict[int, str]:
        """Processes of this job that do not end within a while: what the kernel kills takes a moment to go."""
        deadline = time.monotonic() + within_s
        while (left := dict(self._marked())) and time.monotonic() < deadline:
            time.sleep(_LOOK_EVERY_S)
        return left

    def _marked(self) -> Iterator[tuple[int, str]]:
        """Everything that descends from what was started here has inherited its mark, whoever its parent is now."""
        mark = f"ELASTIC_TEST_DIRECTORY={self.directory}".encode()
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if mark in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                    yield int(name), Path(f"/proc/{name}/cmdline").read_text().replace("\0", " ")


def is_listening(port: int) -> bool:
    listening, want = "0A", f"{port:04X}"
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            if state == listening and local.rpartition(":")[2] == want:
                return True
    return False


class Watch:
    """A process that is not our child, watched through a pidfd."""

    def __init__(self, pid: int) -> None:
        self.pid, self._fd = pid, os.pidfd_open(pid)

    def kill(self) -> float:
        """SIGKILL. Returns when, on the monotonic clock."""
        now = time.monotonic()
        signal.pidfd_send_signal(self._fd, signal.SIGKILL)
        return now

    def wait(self, within_s: float = LIMIT_S) -> None:
        """Return once it is gone."""
        ready, _, _ = select.select([self._fd], [], [], within_s)
        os.close(self._fd)
        assert ready, f"process {self.pid} still runs after {within_s:g} s"
