"""The way from this machine to a job's store, and on to its coordinator. Run like `checks`, each in its own process."""

from __future__ import annotations

import http.client
import json
import socket
import time
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


def store(backend: str, run_id: str, conf: str, *places: str) -> Finding:
    """Whether it answers as a store, how fast, and whether the job's coordinator can be reached from here."""
    endpoints = [(host, int(port)) for host, port in zip(places[::2], places[1::2], strict=True)]
    if not any(_listens(*endpoint) for endpoint in endpoints):
        return warn("not asked: nobody listens there", "")
    from elastic_runtime.errors import ConfigurationError, StoreError
    from launcher.jobs import Wanted, open_seat

    # Any name will do to see whether etcd answers.
    name = run_id or ("none" if backend == "etcd3" else None)
    try:
        handle, seat = open_seat(Wanted(run_id=name, endpoints=endpoints, backend=backend, conf=conf))
        try:
            seat.holder()  # the first request may have to connect
            began = time.monotonic()
            holder = seat.holder()
            took_s = time.monotonic() - began
        finally:
            handle.close()
    except (ConfigurationError, StoreError) as error:
        is_etcd = backend != "etcd3" and any(_is_etcd(*endpoint) for endpoint in endpoints)
        return fail(str(error), "this is etcd: --rdzv-backend=etcd3" if is_etcd else "name the job's --rdzv-endpoint")
    answers = f"answers as {'a store' if backend == 'c10d' else 'etcd'}, in {_milliseconds(took_s)}"
    if holder is None:
        if backend == "c10d":
            return warn(f"{answers}, but no elastic job uses it", "torchrun's store, or an agent that is starting")
        return ok(f"{answers}; nobody coordinates job {run_id!r} there" if run_id else answers)
    return _coordinator(answers, run_id, holder.value)


def _coordinator(answers: str, run_id: str, at: dict[str, Any]) -> Finding:
    whose = f"{answers}; job {at['run_id']!r} is coordinated by {at['node']}"
    if run_id and run_id != at["run_id"]:
        return warn(f"{whose}: not {run_id!r}", "use that --run-id, or another endpoint")
    try:
        socket.create_connection((at["address"], at["port"]), timeout=CONNECT_WITHIN_S).close()
    except OSError as error:
        return fail(
            f"{whose}, but {at['address']} port {at['port']} cannot be reached: {error.strerror or error}",
            "agents use ports that the system chooses: let the machines of a job reach each other on all of them; or "
            "that agent announces a wrong address, which its --local-addr corrects",
        )
    return ok(f"{whose}, which can be reached")


def _is_etcd(host: str, port: int) -> bool:
    """Whether it says so, over HTTP."""
    connection = http.client.HTTPConnection(host, port, timeout=CONNECT_WITHIN_S)
    try:
        connection.request("GET", "/version")
        return "etcdserver" in json.loads(connection.getresponse().read(4096))
    except (OSError, http.client.HTTPException, ValueError, TypeError):
        return False
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
