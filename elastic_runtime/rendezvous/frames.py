"""What goes over a link: one JSON object a line, each naming its kind. Data only, checked by the types it fills."""

from __future__ import annotations

import ipaddress
import json
import socket
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from elastic_runtime.core.supervision_events import Announced
from elastic_runtime.core.view import Kind
from elastic_runtime.core.world import Assignment, NodeRecord, WorkerPhase, WorkerRecord

LINE_BYTES = 1 << 20


def line(kind: str, /, **fields: Any) -> bytes:
    return json.dumps({"is": kind, **fields}, separators=(",", ":")).encode() + b"\n"


def parse(text: bytes) -> tuple[str, dict[str, Any]]:
    """Kind and fields of a line. Raises ValueError for anything else."""
    try:
        fields = json.loads(text)
    except RecursionError:
        raise ValueError("not a frame") from None
    if not isinstance(fields, dict) or not isinstance(fields.get("is"), str):
        raise ValueError("not a frame")
    return fields.pop("is"), fields


def record_to_json(record: NodeRecord) -> dict[str, Any]:
    return asdict(record)


def record_from_json(fields: Mapping[str, Any]) -> NodeRecord:
    workers = tuple(WorkerRecord(**{**w, "phase": WorkerPhase(w["phase"])}) for w in fields["workers"])
    return NodeRecord(**{**fields, "workers": workers})


def announced(announced: Announced) -> bytes:
    members = [[slot, spawn, asdict(place)] for (slot, spawn), place in announced.members.items()]
    settled = {name: getattr(announced, name) for name in Announced.__dataclass_fields__}
    return line("announced", **{**settled, "members": members})


def announced_from_json(fields: Mapping[str, Any]) -> Announced:
    members = {(slot, spawn): Assignment(**place) for slot, spawn, place in fields["members"]}
    return Announced(**{**fields, "kind": Kind(fields["kind"]), "members": members})


def listening_socket(address: str) -> socket.socket:
    """On loopback if that is what is announced, else on every interface, IPv4 and IPv6."""
    found = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)
    if all(ipaddress.ip_address(where[0]).is_loopback for *_, where in found):
        family, *_, where = found[0]
        return socket.create_server((where[0], 0), family=family)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))
