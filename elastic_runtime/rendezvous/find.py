"""Find the job: host its store or connect to it, and open the seat of its coordinator."""

from __future__ import annotations

import secrets
import socket
from dataclasses import dataclass
from typing import Literal

from elastic_runtime.errors import ConfigurationError, StoreError
from elastic_runtime.stores.base import Seat, Store
from elastic_runtime.stores.seat import KeySeat
from elastic_runtime.stores.security import Security

SEAT = "elastic/coordinator"
GENERATION = "elastic/generation"
HEADER_WAIT_S = 10.0
LEAST_TTL_S = 2.0  # etcd grants no shorter lease

Backend = Literal["tcp", "etcd3"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a store is. Port 0 (only for a host): any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """Where a job meets. `may_host` (backend tcp): None: host the store if the endpoint is this machine."""

    backend: Backend
    endpoints: tuple[Endpoint, ...]
    run_id: str
    may_host: bool | None = None
    security: Security = Security()

    @property
    def where(self) -> str:
        return ",".join(map(str, self.endpoints))


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """`passes_on`: whether the seat can go to another node; where one agent hosts the store it cannot."""

    store: Store
    seat: Seat
    endpoints: tuple[Endpoint, ...]
    hosts_store: bool
    passes_on: bool

    @property
    def where(self) -> str:
        return ",".join(map(str, self.endpoints))


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinates:
    """Where the coordinator listens, on which node, and the secret that links must show."""

    node: str
    address: str
    port: int
    token: str


def find_store(rendezvous: Rendezvous, *, timeout_s: float, silent_after_s: float) -> Found:
    """Host the store or connect to it, waiting for a host to start.

    Raises ConfigurationError if the endpoint is held by something that is not this job's store, StoreError if nobody
    serves it within `timeout_s`.
    """
    if rendezvous.backend == "etcd3":
        return _elected(rendezvous, timeout_s=timeout_s, ttl_s=max(LEAST_TTL_S, silent_after_s - 1.0))
    from elastic_runtime.stores.tcp import connect, host  # torch, which not everybody who imports this needs

    (endpoint,) = rendezvous.endpoints
    if rendezvous.may_host or (rendezvous.may_host is None and is_local(endpoint.host)):
        try:
            store = host(endpoint.host, endpoint.port, timeout_s=timeout_s)
        except ConfigurationError:
            if rendezvous.may_host:
                raise
        else:
            here = Endpoint(host=endpoint.host, port=store.port)
            seat = KeySeat(store, SEAT)
            return Found(store=store, seat=seat, endpoints=(here,), hosts_store=True, passes_on=False)
    store = connect(endpoint.host, endpoint.port, timeout_s=timeout_s)
    entry = store.wait(SEAT, 0, HEADER_WAIT_S)
    if entry is None:
        raise ConfigurationError(
            f"{endpoint} is a store, but not one of an elastic job: choose another --rdzv-endpoint"
        )
    if entry.value["run_id"] != rendezvous.run_id:
        raise ConfigurationError(
            f"{endpoint} serves the job {entry.value['run_id']!r}, not {rendezvous.run_id!r}: "
            "choose another --rdzv-endpoint or --rdzv-id"
        )
    seat = KeySeat(store, SEAT)
    return Found(store=store, seat=seat, endpoints=(endpoint,), hosts_store=False, passes_on=False)


def _elected(rendezvous: Rendezvous, *, timeout_s: float, ttl_s: float) -> Found:
    from elastic_runtime.stores.etcd import connect  # only those who use etcd import its client

    store = connect(
        [(e.host, e.port) for e in rendezvous.endpoints],
        prefix=f"elasticrun/{rendezvous.run_id}/",
        timeout_s=timeout_s,
        security=rendezvous.security,
    )
    return Found(
        store=store,
        seat=store.seat(SEAT, ttl_s),
        endpoints=rendezvous.endpoints,
        hosts_store=False,
        passes_on=True,
    )


def own_address(found: Found) -> str:
    """The address that peers reach this node at: the endpoint's own if it hosts the store, else the one that the route
    to the store starts from. Raises StoreError if there is none."""
    if found.hosts_store:
        return found.endpoints[0].host
    error: OSError | None = None
    for endpoint in found.endpoints:
        try:
            with socket.create_connection((endpoint.host, endpoint.port), timeout=5.0) as probe:
                return str(probe.getsockname()[0])
        except OSError as refusal:
            error = refusal
    raise StoreError(f"the store at {found.where} cannot be reached: {error}")


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
