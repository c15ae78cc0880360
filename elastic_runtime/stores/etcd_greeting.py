"""The first words with etcd, and why it does not answer.

What a person has to correct is told from what waiting mends. gRPC says little about it, so the endpoint is asked again
with plain sockets: does anybody listen, is it TLS, whose certificate is it, is it etcd at all?
"""

from __future__ import annotations

import json
import socket
import ssl
import time
from operator import attrgetter
from typing import Any

from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from elastic_runtime.errors import ConfigurationError, StoreError
from elastic_runtime.stores.etcd_connection import (
    LEAST_LIMIT_S,
    Address,
    Refused,
    address_text,
    speaks_tls,
)
from elastic_runtime.stores.etcd_members import Members
from elastic_runtime.stores.security import Security

LEAST_VERSION = (3, 4)
PROBE_S = 1.0  # for one answer to a plain socket
LEAST_PROBE_S = 0.2
ANSWER_BYTES = 4096

_STATUS = attrgetter("maintenance.Status")
_TXN = attrgetter("kv.Txn")


class NotEtcd(StoreError):
    """An endpoint cannot be used as given. `certain`: and waiting will not help."""

    def __init__(self, text: str, *, certain: bool) -> None:
        super().__init__(text)
        self.certain = certain


def greet(members: Members, *, prefix: str, timeout_s: float) -> None:
    """Wait until a member answers, knows the user and is new enough. Raises as `etcd.connect` does."""
    deadline = time.monotonic() + timeout_s
    _check_files(members.security)
    late = Retrying(
        retry=retry_if_exception_type(StoreError),
        wait=wait_random_exponential(multiplier=0.05, max=1.0),
        stop=stop_after_delay(timeout_s),
        reraise=True,
    )
    try:
        late(_greet_once, members, prefix, deadline)
    except NotEtcd as error:
        raise ConfigurationError(str(error)) from error


def _check_files(security: Security) -> None:
    try:
        context = ssl.create_default_context(cafile=security.ca_cert)
        _load_own_certificate(context, security)
    except OSError as error:  # ssl's own errors are of this class
        paths = ", ".join(path for path in (security.ca_cert, security.cert, security.key) if path is not None)
        raise ConfigurationError(f"no TLS is possible with {paths}: {error.strerror or error}") from error


def _greet_once(members: Members, prefix: str, deadline: float) -> None:
    limit_s = max(LEAST_LIMIT_S, min(members.call_limit_s, deadline - time.monotonic()))
    if speaks_tls(members.security):
        _look_for_faults(members, deadline)  # before gRPC does, whose library writes lines about them to stderr
    try:
        # Status is answered by a member that has lost the majority, too: it is etcd then, and an outage.
        answer = members.call(_STATUS, members.rpc.StatusRequest(), limit_s=limit_s, rounds=1)
    except Refused as error:
        raise ConfigurationError(str(error)) from error
    except StoreError as error:
        if fault := _look_for_faults(members, deadline):
            raise fault from error
        where = ", ".join(map(address_text, members.endpoints))
        raise StoreError(f"no member of etcd can be reached at {where}: {error}") from error
    check_version(answer.response.version, answer.connection.address)
    try:
        members.call(_TXN, _dry_run(members, f"{prefix}greeting".encode()), limit_s=limit_s)
    except Refused as error:
        raise ConfigurationError(str(error)) from error
    except StoreError as error:
        raise StoreError(f"etcd answers, but has no majority of its members to work with: {error}") from error


def _look_for_faults(members: Members, deadline: float) -> NotEtcd | None:
    """One of the endpoints' faults if there are any. Raises ConfigurationError if all have some for certain."""
    faults = [fault for each in members.endpoints if (fault := fault_of(each, members.security, deadline))]
    if len(faults) == len(members.endpoints) and all(fault.certain for fault in faults):
        raise ConfigurationError("; ".join(map(str, faults)))
    return faults[0] if faults else None


def _dry_run(members: Members, key: bytes) -> Any:
    """A transaction that does nothing, and is refused unless this user may read and write under the prefix."""
    rpc = members.rpc
    never = rpc.Compare(key=key, target=rpc.Compare.VERSION, result=rpc.Compare.EQUAL, version=-1)
    put = rpc.RequestOp(request_put=rpc.PutRequest(key=key))
    look = rpc.RequestOp(request_range=rpc.RangeRequest(key=key))
    success = [put] if members.security.user is not None else []  # without users a read says as much, and is cheaper
    return rpc.TxnRequest(compare=[never], success=success, failure=[look])


def check_version(text: str, address: str) -> None:
    try:
        version = tuple(int(part) for part in text.split(".")[:2])
    except ValueError:
        return  # built from something between two versions
    if version < LEAST_VERSION:
        least = ".".join(map(str, LEAST_VERSION))
        raise ConfigurationError(
            f"etcd at {address} is version {text}, and {least} is the least that will do: update it"
        )


# -- what is wrong with an endpoint that gRPC cannot use --------------------------------------------------------------


def fault_of(address: Address, security: Security, deadline: float) -> NotEtcd | None:
    """Why a person has to look at this endpoint; None if it is out, or is an etcd that cannot answer just now."""
    where = address_text(address)
    try:
        socket.create_connection(address, timeout=_probe_s(deadline)).close()
    except OSError:
        return None
    try:
        theirs = _speaks_tls_itself(address, security, deadline)
        if theirs and not speaks_tls(security):
            return NotEtcd(f"{where} speaks TLS: give the certificate of its authority (cacert)", certain=True)
        answer = _ask_version(address, security if theirs else None, deadline)
    except TimeoutError:
        text = f"{where} accepts connections but does not answer: it hangs, or the port is held by something else"
        return NotEtcd(text, certain=False)
    except ssl.SSLCertVerificationError as error:
        text = f"{where} has a certificate that is not trusted ({error.verify_message})"
        return NotEtcd(f"{text}: name the authority that signed it (cacert) and a host name it is for", certain=True)
    except ssl.SSLError as error:
        reason = (error.reason or "hangs up").lower().replace("_", " ")
        return NotEtcd(f"{where} ends TLS ({reason}): give a client certificate it accepts (cert, key)", certain=True)
    except OSError:
        answer = b""
    return _fault_of_answer(where, answer, ours=speaks_tls(security), theirs=theirs)


def _fault_of_answer(where: str, answer: bytes, *, ours: bool, theirs: bool) -> NotEtcd | None:
    try:
        version = json.loads(answer.partition(b"\r\n\r\n")[2])["etcdserver"]
    except (ValueError, KeyError, TypeError):
        text = f"{where} does not answer as etcd does: the port is held by something else, name another one"
        return NotEtcd(text, certain=bool(answer))
    try:
        check_version(version, where)
    except ConfigurationError as error:
        return NotEtcd(str(error), certain=True)
    if ours and not theirs:
        return NotEtcd(f"{where} is an etcd without TLS: leave the certificates out (protocol=http)", certain=True)
    return None


def _speaks_tls_itself(address: Address, security: Security, deadline: float) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    _load_own_certificate(context, security)
    try:
        with socket.create_connection(address, timeout=_probe_s(deadline)) as plain:
            with context.wrap_socket(plain, server_hostname=address[0]):
                return True
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")  # which is said in TLS
    except TimeoutError:
        raise
    except OSError:
        return False


def _ask_version(address: Address, security: Security | None, deadline: float) -> bytes:
    """The answer to an HTTP request for etcd's version, over verified TLS if there is to be any."""
    with socket.create_connection(address, timeout=_probe_s(deadline)) as plain:
        if security is None:
            return _answer(plain, address)
        context = ssl.create_default_context(cafile=security.ca_cert)
        _load_own_certificate(context, security)
        with context.wrap_socket(plain, server_hostname=address[0]) as encrypted:
            return _answer(encrypted, address)


def _answer(connection: socket.socket, address: Address) -> bytes:
    connection.sendall(f"GET /version HTTP/1.0\r\nHost: {address_text(address)}\r\n\r\n".encode())
    answer = b""
    while len(answer) < ANSWER_BYTES and (piece := connection.recv(ANSWER_BYTES)):
        answer += piece
    return answer


def _load_own_certificate(context: ssl.SSLContext, security: Security) -> None:
    if security.cert is not None:
        context.load_cert_chain(security.cert, security.key)


def _probe_s(deadline: float) -> float:
    return max(LEAST_PROBE_S, min(PROBE_S, deadline - time.monotonic()))
