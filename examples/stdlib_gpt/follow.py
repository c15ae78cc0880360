"""The demo's eyes and hands: start an agent, read what it and its workers write, end it. It knows no story."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from examples.stdlib_gpt.picture import Point

PROJECT = Path(__file__).resolve().parents[2]
TRAIN = Path(__file__).resolve().parent / "train.py"
LOOK_AGAIN_S = 0.05
DRAIN_LIMIT_S = 4.0
END_LIMIT_S = 10.0

Event = dict[str, Any]
T = TypeVar("T")


class DemoFailed(Exception):
    """The run did not go as the story says; the message says what was waited for."""


class JsonLines:
    """The complete lines of a growing file that may not exist yet. Reads on from where it stopped."""

    def __init__(self) -> None:
        self.items: list[Event] = []
        self._offset = 0

    def read(self, path: Path | None) -> list[Event]:
        if path is not None and path.exists():
            with open(path, "rb") as file:
                file.seek(self._offset)
                complete, newline, _ = file.read().rpartition(b"\n")
            self._offset += len(complete) + len(newline)
            self.items += [json.loads(line) for line in complete.splitlines()]
        return self.items


class Agent:
    """One `elasticrun`, its output in `<folder>/agent.log`, its journal somewhere below `<folder>/log`."""

    def __init__(self, name: str, folder: Path, flags: Sequence[str], script: Sequence[str]) -> None:
        self.name = name
        self.folder = folder
        folder.mkdir(parents=True)
        command = [sys.executable, "-m", "launcher", *flags, f"--log-dir={folder / 'log'}", *script]
        paths = [str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
        with open(folder / "agent.log", "wb") as log:
            # A session of its own: a Ctrl-C reaches the demo, and the demo ends its agents in order.
            self.process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._journal = JsonLines()

    def journal(self, event: str | None = None) -> list[Event]:
        """All that is in the journal by now, or only the events of one kind."""
        path = next(iter(self.folder.glob("log/*/journal.jsonl")), None)
        return [item for item in self._journal.read(path) if event in (None, item["event"])]

    def worker(self, slot: int) -> int | None:
        """The process id of the worker that now runs in a slot."""
        exited = {item["pid"] for item in self.journal("worker_exited")}
        started = [item["pid"] for item in self.journal("worker_started") if item["slot"] == slot]
        return started[-1] if started and started[-1] not in exited else None

    def drain(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def tail(self, lines: int = 30) -> str:
        text = (self.folder / "agent.log").read_text(errors="replace").splitlines()[-lines:]
        return "\n".join([f"--- the end of {self.folder / 'agent.log'}", *text])


class Run:
    """A training run in a folder of its own: the agents it started, its trace and its result."""

    def __init__(self, name: str, folder: Path, *, data: Path, steps: int) -> None:
        self.name, self.folder, self.steps = name, folder, steps
        self.agents: list[Agent] = []
        self._trace = JsonLines()
        self._shown = -1
        self._began = time.monotonic()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self._script = [str(TRAIN), f"--data={data}", f"--trace={folder / 'trace.jsonl'}", f"--out={folder}"]
        self._script += [f"--steps={steps}", "--reduction=exact"]

    def start(self, name: str, *flags: str) -> Agent:
        agent = Agent(name, self.folder / f"agent-{name}", flags, self._script)
        self.agents.append(agent)
        return agent

    def points(self) -> list[Point]:
        """The committed steps in order. A step can be in the trace twice, if rank 0 died and it was done again."""
        by_step = {item["step"]: item for item in self._trace.read(self.folder / "trace.jsonl")}
        steps = (by_step[step] for step in sorted(by_step))
        return [Point(step=p["step"], loss=p["loss"], world_size=p["world_size"], time=p["time"]) for p in steps]

    def reached(self, share: float) -> bool:
        """Whether this share of the steps is done. Shows the progress line."""
        points = self.points()
        if points:
            self._show(points[-1])
        return bool(points) and points[-1].step + 1 >= share * self.steps

    def changes(self) -> list[Event]:
        """What survivors of each change reported, oldest first; the start of the job is none."""
        found = [item for agent in self.agents for item in agent.journal("change") if item["old_world_size"] > 0]
        return sorted(found, key=lambda item: (item["generation"], item["time"]))

    def result(self) -> dict[str, Any]:
        path = self.folder / "result.json"
        if not path.exists():
            raise DemoFailed(f"the {self.name} run ended and left no {path}")
        result: dict[str, Any] = json.loads(path.read_text())
        return result

    def say(self, text: str) -> None:
        """Print a line that stays."""
        clear = "\r\x1b[K" if sys.stdout.isatty() else ""
        print(f"{clear}  {time.monotonic() - self._began:5.1f} s  {text}", flush=True)

    def _show(self, point: Point) -> None:
        """Print a line that the next one replaces, or, where that cannot be, one line in fifty."""
        line = f"step {point.step + 1:4d}/{self.steps}   loss {point.loss:.3f}   workers {'●' * point.world_size}"
        if not sys.stdout.isatty():
            if self._shown < 0 or point.step // 50 > self._shown // 50:
                self.say(line)
                self._shown = point.step
        elif point.step != self._shown:
            print(f"\r\x1b[K  {time.monotonic() - self._began:5.1f} s  {line}", end="", flush=True)
            self._shown = point.step


def end(agents: Sequence[Agent]) -> None:
    """End whatever still runs: drain all, then end their job, then kill. An agent takes its workers with it."""
    for sign, limit_s in ((signal.SIGTERM, DRAIN_LIMIT_S), (signal.SIGTERM, END_LIMIT_S), (signal.SIGKILL, None)):
        running = [agent.process for agent in agents if agent.process.poll() is None]
        for process in running:
            process.send_signal(sign)
        deadline = None if limit_s is None else time.monotonic() + limit_s
        for process in running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))


def until(what: str, condition: Callable[[], T | None], *, limit_s: float, alive: Sequence[Agent]) -> T:
    """Wait for a fact in the files. Raises DemoFailed at the limit, or at once when an agent in `alive` ended."""
    deadline = time.monotonic() + limit_s
    while True:
        ended = [agent for agent in alive if agent.process.poll() is not None]
        found = condition()  # after the look at the agents: what they wrote before they ended counts
        if found is not None and found is not False:
            return found
        for agent in ended:
            code = agent.process.returncode
            raise DemoFailed(f"agent {agent.name} ended with code {code} while the demo waited until {what}")
        if time.monotonic() > deadline:
            raise DemoFailed(f"waited {limit_s:.0f} s in vain until {what}")
        time.sleep(LOOK_AGAIN_S)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
