"""What `--rdzv-endpoint` and `--rdzv-conf` mean, whichever launcher they were given to. Wrong ones are refused here."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elastic_runtime.errors import ConfigurationError
from elastic_runtime.rendezvous.find import Backend, Endpoint, Rendezvous
from elastic_runtime.stores.security import Security

DEFAULT_PORT: Mapping[Backend, int] = {"tcp": 29400, "etcd3": 2379}
MEANT = ("join_timeout", "last_call_timeout", "is_host")
OF_ETCD = ("protocol", "cacert", "cert", "key", "user", "password_file")
# torchrun's, for its own rendezvous: taken, so that a command line stays valid, and without a meaning here.
IDLE = (
    "timeout",
    "read_timeout",
    "close_timeout",
    "store_type",
    "heartbeat_timeout",
    "keep_alive_interval",
    "keep_alive_max_attempt",
)
TRUE, FALSE = ("1", "true", "t", "yes", "y"), ("0", "false", "f", "no", "n")


def check_keys(conf: Mapping[str, Any], *more: str) -> None:
    """Raise ConfigurationError for a key that is neither known here nor one of `more`."""
    for key in conf:
        if key not in MEANT + OF_ETCD + IDLE + more:
            known = ", ".join(MEANT + more + OF_ETCD)
            raise ConfigurationError(f"--rdzv-conf: {key!r} is not one of {known}")


def rendezvous(backend: Backend, endpoints: str, run_id: str, conf: Mapping[str, Any]) -> Rendezvous:
    """Where a job meets. `endpoints`: HOST[:PORT], for etcd several with commas between them."""
    texts = [part.strip() for part in endpoints.split(",") if part.strip()] or ["localhost"]
    found = tuple(endpoint(text, DEFAULT_PORT[backend]) for text in texts)
    if backend == "etcd3":
        return Rendezvous(backend=backend, endpoints=found, run_id=run_id, security=security(conf))
    if given := [key for key in OF_ETCD if key in conf]:
        raise ConfigurationError(f"--rdzv-conf: {given[0]!r} belongs to --rdzv-backend=etcd3")
    if len(found) > 1:
        raise ConfigurationError(f"--rdzv-endpoint={endpoints}: one node serves the store; several are for etcd3")
    return Rendezvous(backend=backend, endpoints=found, run_id=run_id, may_host=truth(conf, "is_host"))


def endpoint(text: str, default_port: int) -> Endpoint:
    """HOST, HOST:PORT, [IPv6] or [IPv6]:PORT."""
    host, colon, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not colon:
        host, port = text, str(default_port)
    if not port.isdigit() or int(port) > 65535:
        raise ConfigurationError(f"--rdzv-endpoint={text}: {port!r} is not a port")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ConfigurationError(f"--rdzv-endpoint={text}: an IPv6 address stands in brackets, as in [::1]:{port}")
    return Endpoint(host=host.strip("[]") or "localhost", port=int(port))


def security(conf: Mapping[str, Any]) -> Security:
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


def seconds(conf: Mapping[str, Any], key: str, default: float, *, least: float = 0.0) -> float:
    try:
        value = float(conf.get(key, default))
    except (TypeError, ValueError):
        raise ConfigurationError(f"--rdzv-conf: {key}={conf[key]} is not a number of seconds") from None
    if math.isnan(value) or value < least:
        raise ConfigurationError(f"--rdzv-conf: {key}={conf[key]} must be at least {least:g}")
    return value


def truth(conf: Mapping[str, Any], key: str) -> bool | None:
    """Whether a key says yes; None without it."""
    if key not in conf:
        return None
    text = str(conf[key]).lower()
    if text not in TRUE + FALSE:
        raise ConfigurationError(f"--rdzv-conf: {key}={conf[key]} is neither true nor false")
    return text in TRUE
