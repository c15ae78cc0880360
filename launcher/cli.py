"""`elasticrun`: parse, check, hand over to the agent, return its exit code."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
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
from elastic_runtime.rendezvous.find import Endpoint, Rendezvous
from elastic_runtime.stores.security import Security
from launcher.arguments import parse

C10D_PORT = 29400
STATIC_PORT = 29500
ETCD_PORT = 2379
CONF_KEYS = ("join_timeout", "last_call_timeout", "is_host", "timeout", "read_timeout", "close_timeout", "store_type")
ETCD_CONF_KEYS = ("protocol", "cacert", "cert", "key", "user", "password_file")


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
        print(f"elasticrun: {error}", file=sys.stderr)
        exit_code, refused = 2, True
    if run_dir is not None and exit_code and not refused:
        print(f"elasticrun: what happened is in {run_dir / 'journal.jsonl'}", file=sys.stderr)
    if run_dir is not None and (refused or (exit_code == 0 and arguments.log_dir is None)):
        shutil.rmtree(run_dir if arguments.log_dir else run_dir.parent, ignore_errors=True)
    return exit_code


def settings_from(arguments: argparse.Namespace) -> AgentSettings:
    """Everything the agent needs, checked. Raises ConfigurationError; creates the run directory last."""
    policy = _policy(arguments)
    slots = _slots(arguments.nproc_per_node)
    command = _command(arguments)
    rendezvous = _rendezvous(arguments, policy)
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
        environment=dict(os.environ),
        local_addr=arguments.local_addr,
        find_timeout_s=policy.join_timeout_s,
        silent_after_s=arguments.dead_after,
        signals=_signals(arguments.signals_to_handle),
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
    conf = _conf(arguments.rdzv_conf)
    try:
        return Policy(
            min_nodes=least,
            max_nodes=most,
            join_timeout_s=float(conf.get("join_timeout", 600)),
            last_call_s=float(conf.get("last_call_timeout", 0.5)),
        )
    except ValueError as error:
        raise ConfigurationError(f"--rdzv-conf: {error}") from None


def _conf(text: str) -> dict[str, str]:
    conf = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise ConfigurationError(f"--rdzv-conf: {part!r} is not key=value")
        if key.strip() not in CONF_KEYS + ETCD_CONF_KEYS:
            known = ", ".join(CONF_KEYS + ETCD_CONF_KEYS)
            raise ConfigurationError(f"--rdzv-conf: {key.strip()!r} is not one of {known}")
        conf[key.strip()] = value.strip()
    return conf


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
    if arguments.no_python:
        if arguments.module:
            raise ConfigurationError("--no-python and --module exclude each other")
        return [script, *rest]
    python = [os.environ.get("PYTHON_EXEC", sys.executable), "-u"]
    if arguments.module:
        return [*python, "-m", script, *rest]
    if not Path(script).is_file():
        raise ConfigurationError(f"there is no script {script!r} in {Path.cwd()}")
    return [*python, script, *rest]


def _rendezvous(arguments: argparse.Namespace, policy: Policy) -> Rendezvous:
    """Where the job meets, and its id."""
    one_node = arguments.rdzv_backend == "static" and policy.max_nodes == 1 and not arguments.rdzv_endpoint
    if arguments.standalone or (one_node and arguments.master_port is None):
        here = Endpoint(host="127.0.0.1", port=0)
        return Rendezvous(backend="tcp", endpoints=(here,), may_host=True, run_id=str(uuid.uuid4()))
    run_id = arguments.rdzv_id
    if arguments.rdzv_backend == "static":
        text = arguments.rdzv_endpoint or f"{arguments.master_addr}:{arguments.master_port or STATIC_PORT}"
        endpoint = _endpoint(text, STATIC_PORT)
        return Rendezvous(backend="tcp", endpoints=(endpoint,), may_host=arguments.node_rank == 0, run_id=run_id)
    conf = _conf(arguments.rdzv_conf)
    if arguments.rdzv_backend == "etcd3":
        endpoints = tuple(_endpoint(text, ETCD_PORT) for text in _split(arguments.rdzv_endpoint or "localhost"))
        return Rendezvous(backend="etcd3", endpoints=endpoints, run_id=run_id, security=_security(conf))
    if arguments.rdzv_backend != "c10d":
        raise ConfigurationError(f"--rdzv-backend={arguments.rdzv_backend} is not known here: c10d, etcd3 or static")
    given = [key for key in ETCD_CONF_KEYS if key in conf]
    if given:
        raise ConfigurationError(f"--rdzv-conf: {given[0]!r} belongs to --rdzv-backend=etcd3")
    is_host = conf.get("is_host")
    may_host = None if is_host is None else is_host.lower() in ("1", "true", "t", "yes", "y")
    endpoint = _endpoint(arguments.rdzv_endpoint or "localhost", C10D_PORT)
    return Rendezvous(backend="tcp", endpoints=(endpoint,), may_host=may_host, run_id=run_id)


def _security(conf: dict[str, str]) -> Security:
    """TLS and user of an etcd store. A password is read from a file: a command line is for everybody to see."""
    protocol = conf.get("protocol", "https" if "cacert" in conf else "http")
    if protocol not in ("http", "https"):
        raise ConfigurationError(f"--rdzv-conf: protocol={protocol} is neither http nor https")
    for key in ("cacert", "cert", "key", "password_file"):
        if key in conf and not os.access(conf[key], os.R_OK):
            raise ConfigurationError(f"--rdzv-conf: {key}={conf[key]} cannot be read")
    if ("user" in conf) != ("password_file" in conf):
        raise ConfigurationError("--rdzv-conf: user and password_file belong together")
    return Security(
        tls=protocol == "https",
        ca_cert=conf.get("cacert"),
        cert=conf.get("cert"),
        key=conf.get("key"),
        user=conf.get("user"),
        password=Path(conf["password_file"]).read_text().strip() if "password_file" in conf else None,
    )


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _endpoint(text: str, default_port: int) -> Endpoint:
    host, colon, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not colon:
        host, port = text, str(default_port)
    if not port.isdigit() or int(port) > 65535:
        raise ConfigurationError(f"--rdzv-endpoint={text}: {port!r} is not a port")
    return Endpoint(host=host.strip("[]") or "localhost", port=int(port))


def _signals(text: str) -> tuple[signal.Signals, ...]:
    try:
        return tuple(signal.Signals[name.strip()] for name in text.split(",") if name.strip())
    except KeyError as error:
        raise ConfigurationError(f"--signals-to-handle: {error} is not a signal") from None


def _run_dir(log_dir: str | None, run_id: str) -> Path:
    try:
        if log_dir is not None:
            Path(log_dir).mkdir(parents=True, exist_ok=True)
        base = log_dir or tempfile.mkdtemp(prefix="elasticrun_")
        return Path(tempfile.mkdtemp(prefix=f"{run_id.replace('/', '_')}_", dir=base))
    except OSError as error:
        raise ConfigurationError(f"--log-dir={log_dir}: {error}") from None
