"""What the command line and the environment say about workers' output, devices and cores."""

from __future__ import annotations

import argparse
import logging
import os
import re
import shutil

from torch.distributed.elastic.events.handlers import get_logging_handler
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsSpecs, Std
from torch.distributed.run import _get_logs_specs_class
from torch.numa.binding import AffinityMode, NumaOptions, _maybe_wrap_command_args_with_numa_binding

from elastic_runtime.agent.logs import OutputSettings, Streams
from elastic_runtime.agent.worker_environment import own_device
from elastic_runtime.errors import ConfigurationError

HEALTH_CHECK_PORT = "TORCHELASTIC_HEALTH_CHECK_PORT"


def output_settings(arguments: argparse.Namespace) -> OutputSettings:
    redirects = _streams("--redirects", arguments.redirects)
    tee = _streams("--tee", arguments.tee)
    shown = _ranks(arguments.local_ranks_filter)
    return OutputSettings(
        redirects=redirects,
        tee=tee,
        shown=shown,
        stdout_filters=tuple(arguments.duplicate_stdout_filters or ()),
        stderr_filters=tuple(arguments.duplicate_stderr_filters or ()),
        prefix=os.environ.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", ""),
        specs=_specs(arguments, redirects, tee, shown),
        to_files=arguments.log_dir != os.devnull,
    )


def _streams(flag: str, text: str) -> Streams:
    """As `Std.from_str`, which knows local ranks of one digit only."""
    if re.fullmatch(r"[0-3]", text):
        return Std(int(text))
    if re.fullmatch(r"\d+:[0-3](,\d+:[0-3])*", text):
        pairs = (each.split(":") for each in text.split(","))
        return {int(rank): Std(int(streams)) for rank, streams in pairs}
    raise ConfigurationError(f"{flag}={text} is neither 0, 1, 2 or 3 nor RANK:VALUE,RANK:VALUE of these")


def _ranks(text: str) -> frozenset[int] | None:
    try:
        return frozenset(map(int, text.split(","))) if text else None
    except ValueError:
        raise ConfigurationError(
            f"--local-ranks-filter={text} must be a comma-separated list of integers, such as 0,1,2"
        ) from None


def _specs(
    arguments: argparse.Namespace, redirects: Streams, tee: Streams, shown: frozenset[int] | None
) -> LogsSpecs | None:
    """A layout that is installed under the entry points `torchrun.logs_specs`; None for torchrun's own."""
    try:
        specs = _get_logs_specs_class(arguments.logs_specs)
    except ValueError as error:
        raise ConfigurationError(f"--logs-specs={arguments.logs_specs}: {error}") from None
    if specs is DefaultLogsSpecs:
        return None
    filtered = None if shown is None else set(shown)
    made: LogsSpecs = specs(log_dir=arguments.log_dir, redirects=redirects, tee=tee, local_ranks_filter=filtered)
    return made


def check_devices(virtual_local_rank: bool, slots: int) -> None:
    try:
        if virtual_local_rank:
            own_device(os.environ, slots - 1)
    except ValueError as error:
        raise ConfigurationError(f"--virtual-local-rank: {error}") from None


def binding_prefixes(mode: str | None, slots: int) -> dict[int, tuple[str, ...]]:
    """What the command of each worker runs under, so that it keeps to the cores near its GPU."""
    if mode is None:
        return {}
    options = NumaOptions(affinity_mode=AffinityMode(mode))
    if shutil.which("numactl") is None:
        raise ConfigurationError(f"--numa-binding={mode}: numactl CLI is required for NUMA binding")
    logging.getLogger("torch.numa.binding").setLevel(logging.CRITICAL)  # it logs what it also raises
    try:
        return {
            slot: _maybe_wrap_command_args_with_numa_binding((), gpu_index=slot, numa_options=options)
            for slot in range(slots)
        }
    except Exception as error:  # it asks CUDA, the system's files and a program, and all of them fail in their own way
        raise ConfigurationError(f"--numa-binding={mode}: {str(error) or type(error).__name__}") from None


def event_log(name: str) -> str:
    try:
        get_logging_handler(name)
    except KeyError:
        raise ConfigurationError(f"--event-log-handler={name} is not known to torch.distributed.elastic") from None
    return name


def health_port() -> int | None:
    text = os.environ.get(HEALTH_CHECK_PORT)
    if not text:
        return None
    if not text.isdigit() or not 0 < int(text) < 65536:
        raise ConfigurationError(f"{HEALTH_CHECK_PORT}={text} is not a port")
    return int(text)
