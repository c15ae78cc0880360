"""Find a running job, for the commands that talk to one: by the agents of this machine, or by its store."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from elastic_runtime.agent.doorplate import local_jobs
from elastic_runtime.errors import ConfigurationError, StoreError
from elastic_runtime.rendezvous.control import Control
from elastic_runtime.rendezvous.find import SEAT, Endpoint, Rendezvous, find_store
from elastic_runtime.stores.base import Seat, Store
from elastic_runtime.stores.seat import KeySeat

ANSWER_WITHIN_S = 5.0  # of a store, and of a coordinator
LEASE_S = 10.0  # never taken: the seat is only looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Without endpoints: a job of this machine. Without a run id: the one that is there."""

    run_id: str | None
    endpoints: Sequence[tuple[str, int]]
    backend: str
    conf: str = ""  # --rdzv-conf: how an etcd is spoken to


def open_job(wanted: Wanted) -> Control:
    """A connection to the job's coordinator, which has answered.

    Raises ConfigurationError if what is wanted is not clear, StoreError if it cannot be reached.
    """
    return _from_store(wanted) if wanted.endpoints else _from_this_machine(wanted.run_id)


def _from_this_machine(run_id: str | None) -> Control:
    agents = local_jobs()
    known = sorted({str(agent.get("run_id")) for agent in agents})
    if not agents:
        raise StoreError(
            "no agent of yours runs on this machine: name the job's --endpoint HOST:PORT, which is the --rdzv-endpoint "
            "that it was started with"
        )
    if run_id is None and len(known) > 1:
        raise ConfigurationError("several jobs run on this machine, name one by --run-id:\n" + _listed(agents))
    if run_id is not None and run_id not in known:
        raise StoreError(
            f"no agent of yours on this machine takes part in job {run_id!r}, but in {', '.join(known)}: "
            "name the job's --endpoint HOST:PORT"
        )
    return _reach([agent for agent in agents if agent.get("run_id") == (run_id or known[0])])


def _reach(agents: Sequence[dict[str, Any]]) -> Control:
    """The one coordinator that these agents of a job know; one that just moved is known by some of them only."""
    places = {(str(a["address"]), int(a["port"]), str(a["token"]), str(a["run_id"])) for a in agents if a.get("port")}
    if not places:
        raise StoreError(f"{agents[0].get('node')} is still looking for its job's coordinator: try again")
    reached = []
    for place in sorted(places):
        try:
            reached.append(_answering(*place))
        except StoreError as failure:
            error = failure
    if not reached:
        raise error
    if len(reached) > 1:
        for control in reached:
            control.close()
        raise ConfigurationError("two jobs go by this name, tell them apart by --endpoint:\n" + _listed(agents))
    return reached[0]


def _answering(address: str, port: int, token: str, run_id: str) -> Control:
    control = Control.connect(address, port, token, run_id, ANSWER_WITHIN_S)
    try:
        control.status()
    except (StoreError, ConfigurationError):
        control.close()
        raise
    return control


def _listed(agents: Sequence[dict[str, Any]]) -> str:
    return "\n".join(
        f"  {a.get('run_id')}: agent {a.get('node')} (process {a['pid']}), coordinator at "
        f"{a.get('address') or '?'}:{a.get('port') or '?'}, journal in {a.get('run_dir')}"
        for a in sorted(agents, key=lambda a: (str(a.get("run_id")), a["pid"]))
    )


def _from_store(wanted: Wanted) -> Control:
    where = ",".join(f"{host}:{port}" for host, port in wanted.endpoints)
    store, seat = open_seat(wanted)
    try:
        holder = seat.holder()
    finally:
        store.close()
    if holder is None:
        whose = f"job {wanted.run_id!r}" if wanted.run_id else "an elastic job"
        raise StoreError(f"{where} is a store, but nobody coordinates {whose} there")
    at = holder.value
    if wanted.run_id not in (None, at["run_id"]):
        raise ConfigurationError(f"{where} serves the job {at['run_id']!r}, not {wanted.run_id!r}")
    return _answering(at["address"], at["port"], at["token"], at["run_id"])


def open_seat(wanted: Wanted) -> tuple[Store, Seat]:
    """The store, which is the caller's to close, and the seat of the job's coordinator. Raises as `open_job` does."""
    if wanted.backend == "c10d":
        if len(wanted.endpoints) != 1:
            raise ConfigurationError("a c10d store has one endpoint: several are of --rdzv-backend=etcd3")
        host, port = wanted.endpoints[0]
        _check_listening(host, port)
        from elastic_runtime.stores.tcp import connect, quiet_torch_log  # torch, which takes its time

        quiet_torch_log()
        store = connect(host, port, timeout_s=ANSWER_WITHIN_S)
        return store, KeySeat(store, SEAT)
    if wanted.run_id is None:
        raise ConfigurationError("an etcd may serve many jobs: name one by --run-id")
    from elastic_runtime.rendezvous import conf

    endpoints = tuple(Endpoint(host=host, port=port) for host, port in wanted.endpoints)
    given = _pairs(wanted.conf)
    conf.check_keys(given)
    rendezvous = Rendezvous(backend="etcd3", endpoints=endpoints, run_id=wanted.run_id, security=conf.security(given))
    try:
        found = find_store(rendezvous, timeout_s=ANSWER_WITHIN_S, silent_after_s=LEASE_S)
    except ImportError as error:
        raise ConfigurationError(f"this installation cannot speak with etcd: {error}") from None
    return found.store, found.seat


def _pairs(text: str) -> dict[str, str]:
    found = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise ConfigurationError(f"--rdzv-conf: {part!r} is not key=value")
        found[key.strip()] = value.strip()
    return found


def _check_listening(host: str, port: int) -> None:
    """A store's client waits for its host to start, which whoever asks about a running job does not."""
    try:
        socket.create_connection((host, port), timeout=ANSWER_WITHIN_S).close()
    except OSError as error:
        raise StoreError(f"nobody serves a job's store at {host}:{port}: {error.strerror or error}") from None
