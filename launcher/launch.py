"""Start a job from Python, as `torch.distributed.launcher.api` does.

The agent is a process of its own (`launch_agent`), because it needs what a caller cannot lend: the main thread, its
signals, an event loop, and to be the one who takes leave of all child processes. So this works from any thread and
from inside of another event loop, and leaves nothing behind. A function goes to its workers by name, as with the start
method `spawn`: in `launcher/call.py` they import the module that it stands in.
"""

from __future__ import annotations

import json
import multiprocessing.spawn
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig

from elastic_runtime.agent.logs import OutputSettings
from elastic_runtime.agent.settings import AgentSettings
from elastic_runtime.errors import ConfigurationError, StoreError
from launcher import call, launch_agent
from launcher.arguments import parser
from launcher.cli import settings_from
from launcher.config import Job

__all__ = ["LaunchConfig", "elastic_launch"]


class elastic_launch:
    """Run `entrypoint`, a function or a command, on the workers of this node: `elastic_launch(config, fn)(*args)`.

    Returns {global rank: what the function returned} of this node's workers, None for commands.

    Raises torch's ChildFailedError when workers failed, torch's SignalException when a signal ended the job,
    ConfigurationError for what cannot work (also an argument that a Session refused), StoreError when the store is
    gone, RuntimeError when the job ended because of another node.

    A function, its arguments and its result are pickled; the function must be importable by its name, so what it is
    called from has to be guarded by `if __name__ == "__main__"`. In the main thread the config's signals are handed on
    to the agent while it runs. In another thread Python lets nobody listen to signals: the job ends with this process.
    """

    def __init__(
        self, config: LaunchConfig, entrypoint: Callable[..., Any] | str, health_check_server: object = None
    ) -> None:
        if health_check_server is not None:
            raise ConfigurationError("health_check_server: the agent has its own; set TORCHELASTIC_HEALTH_CHECK_PORT")
        if not callable(entrypoint) and not isinstance(entrypoint, str):
            raise ConfigurationError(f"entrypoint must be a function or a command, not {entrypoint!r}")
        self._config, self._entrypoint = config, entrypoint

    def __call__(self, *args: Any) -> dict[int, Any]:
        config, entrypoint = self._config, self._entrypoint
        # Refuses to go on in a worker that is only importing its main module.
        preparation: dict[str, Any] = multiprocessing.spawn.get_preparation_data("elastic_launch")  # type: ignore[attr-defined]
        del preparation["authkey"]  # it may not be written down
        config.run_id = config.run_id or str(uuid.uuid4().int)
        payload = b"" if isinstance(entrypoint, str) else _payload(preparation, entrypoint, args, config.start_method)
        settings = _settings(config, entrypoint, args)
        run_dir = settings.run_dir
        unwanted = not settings.output.to_files  # it only had to be somewhere while the job ran
        try:
            if payload:
                (run_dir / call.FUNCTION).write_bytes(payload)
                command = [sys.executable, "-u", "-P", call.__file__, str(run_dir), "${local_rank}"]
                settings = replace(settings, command=command)
            if settings.output.specs is None:  # nothing of the caller's main module is needed
                preparation = {key: value for key, value in preparation.items() if not key.startswith("init_main")}
            orders = pickle.dumps(preparation) + pickle.dumps((settings, config.metrics_cfg))
            (run_dir / launch_agent.ORDERS).write_bytes(orders)
            _run(run_dir, settings.signals)
            return _results(run_dir, _outcome(run_dir), functions=bool(payload))
        finally:
            for path in run_dir.glob("*.pickle"):  # arguments, results and the environment are nobody else's
                path.unlink()
            if unwanted:
                shutil.rmtree(run_dir.parent, ignore_errors=True)


# -- before -----------------------------------------------------------------------------------------------------------


def _payload(preparation: dict[str, Any], function: Callable[..., Any], args: Sequence[Any], method: str) -> bytes:
    name = getattr(function, "__qualname__", repr(function))
    if method == "fork":
        raise ConfigurationError("start_method='fork': workers are started afresh here; 'spawn' is what they do")
    at_home = getattr(function, "__module__", "") == "__main__"
    if at_home and not {"init_main_from_name", "init_main_from_path"} & preparation.keys():
        raise ConfigurationError(f"{name} is defined where no worker can import it; put it into a module of its own")
    try:
        return pickle.dumps(preparation) + pickle.dumps((function, tuple(args)))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigurationError(
            f"{name} and its arguments must be picklable, the function by its name in a module: {error}"
        ) from None


def _settings(config: LaunchConfig, entrypoint: Callable[..., Any] | str, args: Sequence[Any]) -> AgentSettings:
    """What the same flags would give. Creates the run directory."""
    texts = [str(each) for each in args] if isinstance(entrypoint, str) else []
    arguments = parser().parse_args([sys.executable])
    vars(arguments).update(_as_flags(config), job=Job(), no_python=True, module=False, run_path=False)
    arguments.training_script = entrypoint if isinstance(entrypoint, str) else sys.executable
    arguments.training_script_args = texts
    specs = config.logs_specs
    assert specs is not None  # LaunchConfig sees to it
    output = OutputSettings(
        stdout_filters=tuple(config.duplicate_stdout_filters or ()),
        stderr_filters=tuple(config.duplicate_stderr_filters or ()),
        prefix=config.log_line_prefix_template or "",
        to_files=specs.root_log_dir != os.devnull,
    )
    if type(specs) is DefaultLogsSpecs:
        shown = None if specs._local_ranks_filter is None else frozenset(specs._local_ranks_filter)
        output = replace(output, redirects=specs._redirects, tee=specs._tee, shown=shown)
    else:
        output = replace(output, specs=specs)
    try:
        settings = settings_from(arguments)
    except ConfigurationError as error:
        named = re.sub(r"--([a-z][a-z-]*)", lambda flag: flag[1].replace("-", "_"), str(error))
        raise ConfigurationError(f"LaunchConfig: {named}") from None
    return replace(settings, output=output, entrypoint=_name(entrypoint, texts))


def _as_flags(config: LaunchConfig) -> dict[str, Any]:
    conf = dict(config.rdzv_configs)
    backend, endpoint, node_rank = config.rdzv_backend, config.rdzv_endpoint, 0
    if config.max_nodes == 1 and (not endpoint or (backend == "c10d" and endpoint.endswith(":0"))):
        backend, endpoint = "c10d", "127.0.0.1:0"  # nobody else has to find it
        conf["is_host"] = True
    elif backend == "static":
        node_rank = int(conf.pop("rank", 0))
    numa = config.numa_options
    assert config.logs_specs is not None
    return {
        "nnodes": f"{config.min_nodes}:{config.max_nodes}",
        "nproc_per_node": str(config.nproc_per_node),
        "rdzv_backend": backend,
        "rdzv_endpoint": endpoint,
        "rdzv_id": config.run_id,
        "rdzv_conf": ",".join(f"{key}={value}" for key, value in conf.items()),
        "standalone": False,
        "node_rank": node_rank,
        "master_port": None,
        "max_restarts": config.max_restarts,
        "role": config.role,
        "local_addr": config.local_addr,
        "log_dir": config.logs_specs.root_log_dir,
        "logs_specs": None,
        "redirects": "0",
        "tee": "0",
        "local_ranks_filter": "",
        "event_log_handler": config.event_log_handler,
        "numa_binding": numa.affinity_mode.value if numa else None,
        "signals_to_handle": config.signals_to_handle,
        "virtual_local_rank": config.virtual_local_rank,
        "shutdown_timeout": config.shutdown_timeout,
    }


def _name(entrypoint: Callable[..., Any] | str, texts: Sequence[str]) -> str:
    """What a failure is reported of."""
    if not isinstance(entrypoint, str):
        return getattr(entrypoint, "__name__", repr(entrypoint))
    if entrypoint == sys.executable:
        return next((text for text in texts if not text.startswith("-")), "")
    return entrypoint


# -- meanwhile --------------------------------------------------------------------------------------------------------


def _run(run_dir: Path, signals: Sequence[signal.Signals]) -> None:
    """Until the agent has ended. A session of its own: a key pressed here reaches it once, through this process."""
    command = [sys.executable, "-P", launch_agent.__file__, str(run_dir), str(os.getpid())]
    with _handed_on(signals) as receivers:
        process = subprocess.Popen(command, start_new_session=True)
        receivers.append(process)
        try:
            process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise


@contextmanager
def _handed_on(signals: Sequence[signal.Signals]) -> Iterator[list[subprocess.Popen[bytes]]]:
    receivers: list[subprocess.Popen[bytes]] = []
    before: dict[signal.Signals, Any] = {}

    def hand_on(number: int, frame: object) -> None:
        for each in receivers:
            each.send_signal(number)

    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, hand_on) for number in signals}
    try:
        yield receivers
    finally:
        for number, old in before.items():
            signal.signal(number, signal.SIG_DFL if old is None else old)


# -- after ------------------------------------------------------------------------------------------------------------


def _outcome(run_dir: Path) -> int:
    """The exit code, raising what it stands for."""
    try:
        outcome: launch_agent.Outcome = pickle.loads((run_dir / launch_agent.OUTCOME).read_bytes())
    except FileNotFoundError:
        raise RuntimeError(f"the agent ended without an outcome; what happened is in {run_dir}") from None
    if outcome.refused is not None:
        raise ConfigurationError(outcome.refused)
    if outcome.unreachable is not None:
        raise StoreError(outcome.unreachable)
    if outcome.failures:
        raise ChildFailedError(outcome.entrypoint, outcome.failures)
    return outcome.exit_code


def _results(run_dir: Path, exit_code: int, *, functions: bool) -> dict[int, Any]:
    entries = [json.loads(line) for line in (run_dir / "journal.jsonl").read_text().splitlines()]
    why = next((each["reason"] for each in reversed(entries) if each["event"] == "closed"), "it left the job")
    if exit_code == 2:
        raise ConfigurationError(why)
    if exit_code > 128:
        number = signal.Signals(exit_code - 128)
        raise SignalException(f"the job was ended by {number.name}", number)
    if exit_code:
        raise RuntimeError(f"the job failed: {why}")
    ranks = {each["slot"]: each["rank"] for each in entries if each["event"] == "worker_exited"}
    return {
        rank: call.result(run_dir, slot) if functions else None
        for slot, rank in sorted(ranks.items(), key=lambda item: (item[1] is None, item[1]))
        if rank is not None
    }
