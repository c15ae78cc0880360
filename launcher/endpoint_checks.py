"""The way from this machine to a job's store, and on to its coordinator. Run like `checks`, each in its own process."""

from __future__ import annotations

import http.client
import json
import socket
import time
from importlib import import_module
from typing import Any

from launcher.checks import Finding, fail, is_loopback, ok, warn

CONNECT_WITHIN_S = 3.0


def reach(backend: str, host: str, port: str) -> Finding:
    """Whether anybody listens there."""
    try:
        address = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0][4][0]
    except OSError as error:
        return fail(f"{host} does not resolve: {error.strerror or error}", "correct the name, or use an address")
    began = time.monotonic()
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_WITHIN_S).close()
    except ConnectionRefusedError:
        found = f"{address} answers, but nobody listens on port {port}"
        if backend == "c10d" and _is_mine(host):
            return warn(found, "the first elasticrun that is started here with this endpoint will")
        return fail(found, "start what serves the store first: etcd, or the job's agent on that machine")
    except OSError as error:
        remedy = f"open port {port} in the firewalls between, or correct the address"
        return fail(f"{address} port {port}: {error.strerror or error}", remedy)
    return ok(f"{address} port {port} accepts connections, in {_milliseconds(time.monotonic() - began)}")


def own_address(host: str, port: str) -> Finding:
    """What a node here announces unless told by --local-addr: where the route to the endpoint starts."""
    if _is_mine(host):
        if _resolves_to_loopback(host):
            return warn(f"{host}: other machines cannot reach it", "fine for one machine; else name another endpoint")
        return ok(f"{host}, the endpoint itself: it is this machine")
    try:
        family, *_, address = socket.getaddrinfo(host, int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:  # nothing is sent: only the route is looked up
            probe.connect(address)
            mine = str(probe.getsockname()[0])
    except OSError as error:
        return fail(f"there is no route to {host}: {error.strerror or error}", "correct the endpoint or the network")
    return ok(f"{mine}, where the route to {host} starts; --local-addr names another one")


def store(backend: str, run_id: str, *places: str) -> Finding:
    """Whether it answers as a store, how fast, and whether the job's coordinator can be reached from here."""
    endpoints = [(host, int(port)) for host, port in zip(places[::2], places[1::2], strict=True)]
    if not any(_listens(*endpoint) for endpoint in endpoints):
        return warn("not asked: nobody listens there", "")
    try:
        answers, holder = _etcd(run_id, endpoints) if backend == "etcd3" else _tcp(*endpoints[0])
    except ImportError as error:
        return warn(f"cannot be asked: {error}", "pip install elastic-runtime with what it needs for etcd")
    except _Problem as problem:
        return fail(*problem.args)
    if holder is None:
        if backend == "c10d":
            return warn(f"{answers}, but no elastic job uses it", "torchrun's store, or an agent that is starting")
        return ok(f"{answers}; nobody coordinates job {run_id!r} there" if run_id else answers)
    whose = f"{answers}; job {holder['run_id']!r} is coordinated by {holder['node']}"
    if run_id and run_id != holder["run_id"]:
        return warn(f"{whose}: not {run_id!r}", "use that --run-id, or another endpoint")
    try:
        socket.create_connection((holder["address"], holder["port"]), timeout=CONNECT_WITHIN_S).close()
    except OSError as error:
        return fail(
            f"{whose}, but {holder['address']} port {holder['port']} cannot be reached: {error.strerror or error}",
            "agents use ports that the system chooses: let the machines of a job reach each other on all of them; or "
            "that agent announces a wrong address, which its --local-addr corrects",
        )
    return ok(f"{whose}, which can be reached")


class _Problem(Exception):
    """What was found, and what to do."""


def _tcp(host: str, port: int) -> tuple[str, dict[str, Any] | None]:
    from elastic_runtime.errors import ElasticError
    from elastic_runtime.rendezvous.find import SEAT
    from elastic_runtime.stores.tcp import connect, quiet_torch_log

    quiet_torch_log()
    try:
        handle = connect(host, port, timeout_s=CONNECT_WITHIN_S)
    except ElasticError as error:
        remedy = "that is etcd: --rdzv-backend=etcd3" if _etcd_version(host, port) else "name the job's --rdzv-endpoint"
        raise _Problem(str(error), remedy) from None
    try:
        return _timed(handle, SEAT, "a store")
    except ElasticError as error:
        raise _Problem(str(error), "name the job's --rdzv-endpoint") from None


def _etcd(run_id: str, endpoints: list[tuple[str, int]]) -> tuple[str, dict[str, Any] | None]:
    versions = [_etcd_version(host, port) for host, port in endpoints]
    if not any(versions):
        raise _Problem("does not answer as etcd", "is it etcd's client port (2379), and without TLS?")
    from elastic_runtime.errors import ElasticError
    from elastic_runtime.rendezvous.find import SEAT

    etcd = import_module("elastic_runtime.stores.etcd")
    try:
        handle = etcd.connect(endpoints, prefix=f"elasticrun/{run_id}/", timeout_s=CONNECT_WITHIN_S)
        return _timed(handle, SEAT, f"etcd {next(filter(None, versions))}", handle.seat(SEAT, 10.0))
    except ElasticError as error:
        raise _Problem(str(error), "ask it by etcdctl endpoint health") from None


def _timed(handle: Any, key: str, what: str, seat: Any = None) -> tuple[str, dict[str, Any] | None]:
    """How fast it answers, and who coordinates the job that uses it."""
    from elastic_runtime.stores.seat import KeySeat

    try:
        handle.get(key)  # the first one may have to connect
        began = time.monotonic()
        handle.get(key)
        took_s = time.monotonic() - began
        holder = (seat or KeySeat(handle, key)).holder()
    finally:
        handle.close()
    return f"answers as {what}, in {_milliseconds(took_s)}", None if holder is None else holder.value


def _etcd_version(host: str, port: int) -> str:
    """What etcd says over HTTP, empty if it is none."""
    connection = http.client.HTTPConnection(host, port, timeout=CONNECT_WITHIN_S)
    try:
        connection.request("GET", "/version")
        return str(json.loads(connection.getresponse().read(4096))["etcdserver"])
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return ""
    finally:
        connection.close()


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=CONNECT_WITHIN_S).close()
        return True
    except OSError:
        return False


def _is_mine(host: str) -> bool:
    """Whether it is an address of this machine: one that a socket can be bound to."""
    for family, kind, protocol, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.bind(address)
                return True
            except OSError:
                continue
    return False


def _resolves_to_loopback(host: str) -> bool:
    found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    return all(is_loopback(str(address[0])) for *_, address in found)


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"
