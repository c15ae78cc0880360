"""Find the job: host its store or connect to it, and learn where its coordinator listens."""

from __future__ import annotations

import secrets
import socket
from dataclasses import dataclass

from elastic_runtime.errors import ConfigurationError, StoreError
from elastic_runtime.stores.base import Store
from elastic_runtime.stores.tcp import connect, host

HEADER = "elastic/header"
HEADER_WAIT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where the store is. Port 0 (only for a host): any free one."""

    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    store: Store
    endpoint: Endpoint
    hosts_store: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinates:
    """Where the coordinator listens, and the secret that links must show."""

    address: str
    port: int
    token: str


def find_store(endpoint: Endpoint, run_id: str, *, may_host: bool | None, timeout_s: float) -> Found:
    """Host the store if the endpoint is this machine and its port is free, else connect, waiting for a host to start.

    Raises ConfigurationError if the port is held by something that is not this job's store, StoreError if nobody
    serves it within `timeout_s`.
    """
    if may_host or (may_host is None and is_local(endpoint.host)):
        try:
            store = host(endpoint.host, endpoint.port, timeout_s=timeout_s)
            return Found(store=store, endpoint=Endpoint(host=endpoint.host, port=store.port), hosts_store=True)
        except ConfigurationError:
            if may_host:
                raise
    store = connect(endpoint.host, endpoint.port, timeout_s=timeout_s)
    where = f"{endpoint.host}:{endpoint.port}"
    entry = store.wait(HEADER, 0, HEADER_WAIT_S)
    if entry is None:
        raise ConfigurationError(f"{where} is a store, but not one of an elastic job: choose another --rdzv-endpoint")
    if entry.value["run_id"] != run_id:
        raise ConfigurationError(
            f"{where} serves the job {entry.value['run_id']!r}, not {run_id!r}: "
            "choose another --rdzv-endpoint or --rdzv-id"
        )
    return Found(store=store, endpoint=endpoint, hosts_store=False)


def read_coordinates(store: Store) -> Coordinates:
    entry = store.wait(HEADER, 0, HEADER_WAIT_S)
    if entry is None:
        raise StoreError("the store has no header of this job")
    value = entry.value
    return Coordinates(address=value["address"], port=value["port"], token=value["token"])


def new_token() -> str:
    return secrets.token_hex(16)


def is_local(name: str) -> bool:
    """Whether `name` is an address of this machine: one that a socket can be bound to."""
    try:
        found = socket.getaddrinfo(name or "localhost", 0, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigurationError(f"the host name {name!r} of --rdzv-endpoint does not resolve: {error}") from None
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.bind((address[0], 0))
                return True
            except OSError:
                continue
    return False
