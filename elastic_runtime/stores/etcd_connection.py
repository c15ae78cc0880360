"""One connection to one member of etcd, and what the errors of its calls mean.

gRPC alone: no keys, no entries. Another thread can cut a connection; whoever is in a call on it is freed at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from elastic_runtime.errors import StoreError
from elastic_runtime.stores import etcd_grpc
from elastic_runtime.stores.security import Security

Address = tuple[str, int]
T = TypeVar("T")

# After so long without a word on a connection with a watch comes a ping, which the member has to answer within half the
# limit of a call. Shorter: a silent member is noticed sooner. etcd takes pings more often than every 5 s for an attack.
PING_AFTER_S = 6.0

LEAST_LIMIT_S = 0.05  # of one attempt

_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),  # a connection of its own, which ends when it is cut
    ("grpc.enable_http_proxy", 0),  # a store is of the cluster, not of the internet
    ("grpc.keepalive_time_ms", round(PING_AFTER_S * 1000)),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", -1),
)

# Calls that need the majority of the members fail on one that has lost it, instead of hanging there.
_NEEDS_LEADER = ("hasleader", "true")


class Retryable(StoreError):
    """Another attempt may succeed. `elsewhere`: on another member, or on a new connection, only."""

    def __init__(self, text: str, *, elsewhere: bool = True) -> None:
        super().__init__(text)
        self.elsewhere = elsewhere


class Unauthenticated(Retryable):
    """The token is not, or no longer, known. A new one may be."""


class Refused(StoreError):
    """The member understood and refused: somebody has to correct something."""


class Connection:
    """Made at once, opened by its first call. Every method may be called from several threads."""

    def __init__(self, rpc: Any, address: Address, security: Security, *, index: int, ping_limit_s: float) -> None:
        self.rpc = rpc
        self._grpc = grpc = etcd_grpc.load()
        self.address = address_text(address)
        self.index = index
        self._security = security
        self._token: str | None = None
        ping_limit_ms = max(1, round(ping_limit_s * 1000))
        options = [
            *_OPTIONS,
            *((f"grpc.{name}", ping_limit_ms) for name in ("keepalive_timeout_ms", "http2.ping_timeout_ms")),
        ]
        if speaks_tls(security):
            self._channel = grpc.secure_channel(self.address, _credentials(grpc, security), options=options)
        else:
            self._channel = grpc.insecure_channel(self.address, options=options)
        self.kv = rpc.KVStub(self._channel)
        self.lease = rpc.LeaseStub(self._channel)
        self.maintenance = rpc.MaintenanceStub(self._channel)
        self._auth = rpc.AuthStub(self._channel)
        self._watch = rpc.WatchStub(self._channel)

    def call(self, method: Callable[[Connection], Any], request: Any, limit_s: float) -> Any:
        """The response of a unary method. Raises StoreError, of the kinds above where they apply."""
        left_s = self._log_in(limit_s)
        return self._run(lambda: method(self)(request, timeout=left_s, metadata=self._metadata()))

    def keep_alive(self, leases: list[int], limit_s: float) -> dict[int, int]:
        """Renew leases. Returns what is left of each, in seconds; 0 or less for one that has ended."""
        left_s = self._log_in(limit_s)
        requests = [self.rpc.LeaseKeepAliveRequest(ID=lease) for lease in leases]

        def renew() -> dict[int, int]:
            answers = self.lease.LeaseKeepAlive(iter(requests), timeout=left_s, metadata=self._metadata())
            return {answer.ID: answer.TTL for answer in answers}

        return self._run(renew)

    def watch(self, requests: Iterator[Any], limit_s: float) -> WatchStream:
        """The stream of responses to a stream of watch requests. The limit is that of a login, if one is needed."""
        self._log_in(limit_s)
        return self._run(lambda: WatchStream(self, self._watch.Watch(requests, metadata=self._metadata())))

    def understood(self, error: Any) -> StoreError:
        """What an error of gRPC's says."""
        return _understood(error, self._grpc.StatusCode, self.address, self._security)

    @property
    def errors(self) -> type[Exception]:
        """The class of gRPC's errors."""
        found: type[Exception] = self._grpc.RpcError
        return found

    def cut(self) -> None:
        """From any thread, repeatable."""
        self._channel.close()

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        token = self._token
        return (_NEEDS_LEADER, ("token", token)) if token else (_NEEDS_LEADER,)

    def _log_in(self, limit_s: float) -> float:
        """Get a token if one is needed. Returns what is left of the limit."""
        if self._security.user is None or self._token is not None:
            return limit_s
        deadline = time.monotonic() + limit_s
        request = self.rpc.AuthenticateRequest(name=self._security.user, password=self._security.password or "")
        try:
            self._token = self._run(lambda: self._auth.Authenticate(request, timeout=limit_s)).token
        except Refused as error:
            if "authentication is not enabled" not in str(error):
                raise
            self._token = ""  # everybody may do everything there
        return max(LEAST_LIMIT_S, deadline - time.monotonic())

    def _run(self, attempt: Callable[[], T]) -> T:
        try:
            return attempt()
        except self.errors as error:
            understood = self.understood(error)
            if isinstance(understood, Unauthenticated):
                self._token = None
            raise understood from error
        except ValueError as error:
            if "closed channel" not in str(error):
                raise
            raise Retryable(f"the connection to {self.address} was given up") from error


class WatchStream:
    """Responses of etcd to watch requests, until it ends with a StoreError, or without one."""

    def __init__(self, connection: Connection, stream: Any) -> None:
        self._connection, self._stream = connection, stream

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self._stream
        except self._connection.errors as error:
            raise self._connection.understood(error) from error

    def cancel(self) -> None:
        """From any thread, repeatable."""
        self._stream.cancel()


def address_text(address: Address) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def speaks_tls(security: Security) -> bool:
    return security.tls or security.ca_cert is not None


def _credentials(grpc: Any, security: Security) -> Any:
    ca_cert, key, cert = (
        None if path is None else Path(path).read_bytes() for path in (security.ca_cert, security.key, security.cert)
    )
    return grpc.ssl_channel_credentials(root_certificates=ca_cert, private_key=key, certificate_chain=cert)


def _understood(error: Any, status: Any, address: str, security: Security) -> StoreError:
    code, details = error.code(), str(error.details() or "")
    text = f"etcd at {address}: {details.removeprefix('etcdserver: ') or code.name.lower()}"
    if code is status.UNAUTHENTICATED or "revision of auth store is old" in details:
        return Unauthenticated(text, elsewhere=False)
    if "user name is empty" in details:
        if security.user is not None:
            return Unauthenticated(text, elsewhere=False)
        return Refused(f"etcd at {address} wants a user and a password, and none was given")
    if "authentication failed" in details:
        return Refused(f"etcd at {address} does not know the user {security.user!r} with this password")
    if code is status.PERMISSION_DENIED:
        who = f"the user {security.user!r}" if security.user is not None else "a client without a user"
        return Refused(f"etcd at {address} does not let {who} do this: grant a role with readwrite on the job's keys")
    if "database space exceeded" in details:
        return Refused(f"etcd at {address} is full: compact and defragment it, then disarm its alarm (etcdctl alarm)")
    if code is status.RESOURCE_EXHAUSTED:
        return Retryable(text, elsewhere=False)
    if code in (status.UNAVAILABLE, status.DEADLINE_EXCEEDED, status.CANCELLED, status.UNKNOWN, status.INTERNAL):
        return Retryable(text)
    return Refused(text)
