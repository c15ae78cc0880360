"""Where the output of workers goes: torchrun's flags and torchrun's files, for workers that are replaced one by one.

    <log-dir>/<run id>_<random>/attempt_<n>/<local rank>/{stdout.log, stderr.log, error.json}
                                          /filtered_{stdout,stderr}.log

The workers of a group that starts together share an attempt; a worker that takes the place of another has one of its
own. Nothing that an earlier process wrote is ever used again or deleted, so n is no count of restarts.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from string import Template

from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs, Std, to_map

from elastic_runtime.agent.logs_tail import Sink, Stream, Tail
from elastic_runtime.core.supervision_events import Start
from elastic_runtime.core.view import Kind

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
_ATTEMPT = "TORCHELASTIC_RESTART_COUNT"  # what a foreign layout takes for the number of the attempt
_STDOUT, _STDERR = 1, 2

Streams = Std | dict[int, Std]
Environment = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSettings:
    redirects: Streams = Std.NONE  # to files
    tee: Streams = Std.NONE  # to files and to the console
    shown: frozenset[int] | None = None  # local ranks whose output reaches the console; None: all
    stdout_filters: tuple[str, ...] = ()  # lines of a tee that also go to the attempt's filtered_stdout.log
    stderr_filters: tuple[str, ...] = ()
    prefix: str = ""  # template of what precedes a line on the console; empty: torchrun's
    specs: LogsSpecs | None = None  # another layout than the one above
    to_files: bool = True  # False: no file at all, not even for errors

    @property
    def keeps_files(self) -> bool:
        """Whether somebody asked for files, and will look for them after a job that went well."""
        return self.to_files and (self.redirects != Std.NONE or self.tee != Std.NONE)


@dataclass(slots=True)
class Output:
    """Of one process. Paths are empty for streams that it inherits and for files that it has not."""

    environment: Environment
    stdout: str = ""
    stderr: str = ""
    error_file: str = ""
    streams: list[Stream] = field(default_factory=list)

    @property
    def log(self) -> str:
        """Where a person looks first: errors, else what was printed, else nothing."""
        return next((path for path in (self.stderr, self.stdout) if path not in ("", os.devnull)), "")


class Logs:
    def __init__(self, settings: OutputSettings, *, run_dir: Path, role: str, slots: int) -> None:
        self._settings, self._run_dir, self._role, self._slots = settings, run_dir, role, slots
        self._tail = Tail()
        self._attempt = 0
        self._group = 0  # the generation whose first processes the attempt belongs to, 0 for a replaced worker's
        self._seen: set[int] = set()  # slots that had a process
        self._foreign: tuple[LogsDest, dict[int, Environment]] | None = None  # of this attempt

    def place(self, start: Start, environment_of: Callable[[int], Environment]) -> Output:
        """Make room for a process. `environment_of` a slot: as if the process in it started now. May raise OSError."""
        slot, settings = start.slot, self._settings
        if not settings.to_files:
            return Output(environment={**environment_of(slot), ERROR_FILE: ""})
        first = start.announced.kind is Kind.START or slot not in self._seen
        group = start.announced.generation if first else 0
        if not group or group != self._group:
            self._begin_attempt()
        self._group = group
        self._seen.add(slot)
        if settings.specs is None:
            there, environment = self._layout(slot), environment_of(slot)
            environment[ERROR_FILE] = there.error_files[slot]
        else:
            there, environment = self._foreign_layout(settings.specs, slot, environment_of)
        output = Output(
            environment=environment,
            stdout=there.stdouts[slot],
            stderr=there.stderrs[slot],
            error_file=there.error_files.get(slot, ""),
        )
        self._follow(output, there, slot)
        return output

    def ended(self, output: Output) -> None:
        """The process is gone: what it wrote is all."""
        for stream in output.streams:
            self._tail.end(stream)

    def close(self) -> None:
        """Blocks until the console has it all."""
        self._tail.close()

    def _begin_attempt(self) -> None:
        self._foreign = None
        while True:  # an agent that came back as another node finds the attempts of the one before
            try:
                (self._run_dir / f"attempt_{self._attempt}").mkdir()
                return
            except FileExistsError:
                self._attempt += 1

    def _layout(self, slot: int) -> LogsDest:
        settings = self._settings
        attempt = self._run_dir / f"attempt_{self._attempt}"
        folder = attempt / str(slot)
        folder.mkdir()
        tee = to_map(settings.tee, self._slots)[slot]
        files = to_map(settings.redirects, self._slots)[slot] | tee
        hidden = settings.shown is not None and slot not in settings.shown
        otherwise = os.devnull if hidden else ""
        stdout = str(folder / "stdout.log") if files & Std.OUT else otherwise
        stderr = str(folder / "stderr.log") if files & Std.ERR else otherwise
        return LogsDest(
            stdouts={slot: stdout},
            stderrs={slot: stderr},
            tee_stdouts={slot: stdout} if tee & Std.OUT and not hidden else {},
            tee_stderrs={slot: stderr} if tee & Std.ERR and not hidden else {},
            error_files={slot: str(folder / "error.json")},
            filtered_stdout=str(attempt / "filtered_stdout.log"),
            filtered_stderr=str(attempt / "filtered_stderr.log"),
        )

    def _foreign_layout(
        self, specs: LogsSpecs, slot: int, environment_of: Callable[[int], Environment]
    ) -> tuple[LogsDest, Environment]:
        """It is asked for whole groups only; of a group that a replaced worker stands for, the others stay empty."""
        if self._foreign is None:
            group = {each: {**environment_of(each), _ATTEMPT: str(self._attempt)} for each in range(self._slots)}
            self._foreign = (specs.reify(group), group)
        there, group = self._foreign
        mine = environment_of(slot)
        changed = {name: value for name, value in group[slot].items() if name not in mine or name == ERROR_FILE}
        return there, {**mine, **changed}

    def _follow(self, output: Output, there: LogsDest, slot: int) -> None:
        rank = output.environment.get("RANK", "")
        template = self._settings.prefix or "[${role_name}${local_rank}]:"
        prefix = Template(template).safe_substitute(role_name=self._role, local_rank=slot, rank=rank).encode()
        for tee, console, filters, filtered in (
            (there.tee_stdouts, _STDOUT, self._settings.stdout_filters, there.filtered_stdout),
            (there.tee_stderrs, _STDERR, self._settings.stderr_filters, there.filtered_stderr),
        ):
            if slot not in tee or tee[slot] == os.devnull:
                continue
            sinks = [Sink(console)]
            if filters:
                to = os.open(filtered, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
                sinks.append(Sink(to, needles=tuple(each.encode() for each in filters), owned=True))
            stream = Stream(path=tee[slot], prefix=prefix, sinks=tuple(sinks))
            output.streams.append(stream)
            self._tail.follow(stream)
