"""`elasticrun`: parse, check, hand over to the agent, return its exit code."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import sys
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path

from torch.distributed.run import determine_local_world_size, parse_min_max_nnodes

from elastic_runtime.agent.run import run_agent
from elastic_runtime.agent.settings import AgentSettings
from elastic_runtime.core.node import Limits
from elastic_runtime.core.view import Policy
from elastic_runtime.errors import ConfigurationError
from elastic_runtime.rendezvous import conf
from elastic_runtime.rendezvous.find import Backend, Endpoint, Rendezvous
from launcher.arguments import parse
from launcher.worker_arguments import binding_prefixes, check_devices, event_log, health_port, output_settings

STATIC_PORT = 29500
BACKENDS: dict[str, Backend] = {"c10d": "tcp", "etcd3": "etcd3"}


def main(argv: Sequence[str] | None = None) -> int:
    if sys.platform != "linux":
        print("elasticrun: runs on Linux only; `python train.py` works here, as a world of one", file=sys.stderr)
        return 2
    arguments = parse(argv)
    run_dir: Path | None = None
    refused = False
    try:
        settings = settings_from(arguments)
        run_dir = settings.run_dir
        exit_code = run_agent(settings)
    except ConfigurationError as error:
        print(f"elasticrun: {arguments.job.located(str(error))}", file=sys.stderr)
        exit_code, refused = 2, True
    if run_dir is not None:
        is_own = arguments.log_dir in (None, os.devnull)  # nobody named it
        unwanted = is_own and (arguments.log_dir is not None or (exit_code == 0 and not settings.output.keeps_files))
        if exit_code and not refused and not unwanted:
            print(f"elasticrun: what happened is in {run_dir / 'journal.jsonl'}", file=sys.stderr)
        if refused or unwanted:
            shutil.rmtree(run_dir.parent if is_own else run_dir, ignore_errors=True)
    return exit_code


def settings_from(arguments: argparse.Namespace) -> AgentSettings:
    """Everything the agent needs, checked. Raises ConfigurationError; creates the run directory last."""
    policy = _policy(arguments)
    slots = _slots(arguments.nproc_per_node)
    command = _command(arguments)
    rendezvous = _rendezvous(arguments, policy)
    output = output_settings(arguments)
    check_devices(arguments.virtual_local_rank, slots)
    return AgentSettings(
        command=command,
        rendezvous=rendezvous,
        policy=policy,
        limits=Limits(
            slots=slots,
            max_restarts=arguments.max_restarts,
            shutdown_timeout_s=30.0 if arguments.shutdown_timeout is None else float(arguments.shutdown_timeout),
        ),
        role=arguments.role,
        environment={
            **os.environ,
            **arguments.job.variables(),
            "TORCHELASTIC_SIGNALS_TO_HANDLE": arguments.signals_to_handle,
        },
        local_addr=_local_addr(arguments.local_addr),
        find_timeout_s=policy.join_timeout_s,
        silent_after_s=arguments.dead_after,
        signals=_signals(arguments.signals_to_handle),
        output=output,
        entrypoint=arguments.training_script,
        command_prefixes=binding_prefixes(arguments.numa_binding, slots),
        virtual_local_rank=arguments.virtual_local_rank,
        event_log=event_log(arguments.event_log_handler),
        health_port=health_port(),
        run_dir=_run_dir(arguments.log_dir, rendezvous.run_id),
    )


def _policy(arguments: argparse.Namespace) -> Policy:
    try:
        least, most = parse_min_max_nnodes(arguments.nnodes)
    except (RuntimeError, ValueError):
        raise ConfigurationError(f"--nnodes={arguments.nnodes} is neither N nor MIN:MAX") from None
    if not 0 < least <= most:
        raise ConfigurationError(f"--nnodes={arguments.nnodes}: MIN must be at least 1 and at most MAX")
    if arguments.max_restarts is not None and arguments.max_restarts < 0:
        raise ConfigurationError(f"--max-restarts={arguments.max_restarts} must not be negative")
    if not arguments.dead_after > 0:
        raise ConfigurationError(f"--dead-after={arguments.dead_after} must be positive")
    given = _conf(arguments.rdzv_conf)
    return Policy(
        min_nodes=least,
        max_nodes=most,
        join_timeout_s=conf.seconds(given, "join_timeout", 600.0),
        last_call_s=conf.seconds(given, "last_call_timeout", 0.5),
    )


def _conf(text: str) -> dict[str, str]:
    found = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise ConfigurationError(f"--rdzv-conf: {part!r} is not key=value")
        found[key.strip()] = value.strip()
    conf.check_keys(found)
    return found


def _local_addr(text: str | None) -> str | None:
    """Whether others reach it is seen at the join, where the coordinator tries."""
    try:
        if text is not None:
            socket.getaddrinfo(text, 0, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigurationError(f"--local-addr={text} is no address and does not resolve: {error.strerror}") from None
    return text


def _slots(text: str) -> int:
    try:
        slots = int(determine_local_world_size(text))
    except ValueError as error:
        raise ConfigurationError(f"--nproc-per-node={text}: {error}") from None
    if slots < 1:
        raise ConfigurationError(f"--nproc-per-node={text} must be at least 1")
    return slots


def _command(arguments: argparse.Namespace) -> list[str]:
    script, rest = arguments.training_script, list(arguments.training_script_args)
    if arguments.run_path:
        _check_script(script)
        return [sys.executable, "-u", "-m", "elastic_runtime.agent.run_path", script, *rest]
    if arguments.no_python:
        if arguments.module:
            raise ConfigurationError("--no-python and --module exclude each other")
        return [script, *rest]
    python = [os.environ.get("PYTHON_EXEC", sys.executable), "-u"]
    if arguments.module:
        return [*python, "-m", script, *rest]
    _check_script(script)
    return [*python, script, *rest]


def _check_script(script: str) -> None:
    if not Path(script).is_file():
        raise ConfigurationError(f"there is no script {script!r} in {Path.cwd()}")


def _rendezvous(arguments: argparse.Namespace, policy: Policy) -> Rendezvous:
    """Where the job meets, and its id."""
    one_node = arguments.rdzv_backend == "static" and policy.max_nodes == 1 and not arguments.rdzv_endpoint
    if arguments.standalone or (one_node and arguments.master_port is None):
        here = Endpoint(host="127.0.0.1", port=0)
        return Rendezvous(backend="tcp", endpoints=(here,), may_host=True, run_id=str(uuid.uuid4()))
    run_id = arguments.rdzv_id
    if arguments.rdzv_backend == "static":
        text = arguments.rdzv_endpoint or f"{arguments.master_addr}:{arguments.master_port or STATIC_PORT}"
        endpoint = conf.endpoint(text, STATIC_PORT)
        return Rendezvous(backend="tcp", endpoints=(endpoint,), may_host=arguments.node_rank == 0, run_id=run_id)
    if arguments.rdzv_backend not in BACKENDS:
        raise ConfigurationError(f"--rdzv-backend={arguments.rdzv_backend} is not known here: c10d, etcd3 or static")
    backend = BACKENDS[arguments.rdzv_backend]
    return conf.rendezvous(backend, arguments.rdzv_endpoint, run_id, _conf(arguments.rdzv_conf))


def _signals(text: str) -> tuple[signal.Signals, ...]:
    try:
        return tuple(signal.Signals[name.strip()] for name in text.split(",") if name.strip())
    except KeyError as error:
        raise ConfigurationError(f"--signals-to-handle: {error} is not a signal") from None


def _run_dir(log_dir: str | None, run_id: str) -> Path:
    log_dir = None if log_dir == os.devnull else log_dir  # the journal has to be somewhere while the job runs
    try:
        if log_dir is not None:
            Path(log_dir).mkdir(parents=True, exist_ok=True)
        base = log_dir or tempfile.mkdtemp(prefix="elasticrun_")
        return Path(tempfile.mkdtemp(prefix=f"{run_id.replace('/', '_')}_", dir=base))
    except OSError as error:
        raise ConfigurationError(f"--log-dir={log_dir}: {error}") from None
