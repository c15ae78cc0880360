"""What the processes of `rendezvous.py` share: nodes that run no workers, what is counted, and how commands come in."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import resource
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from elastic_runtime.core.supervision_events import Announced
from elastic_runtime.core.view import Kind
from elastic_runtime.core.world import NodeRecord, WorkerPhase, WorkerRecord
from elastic_runtime.rendezvous import frames
from elastic_runtime.stores import etcd_connection, etcd_protobuf, etcd_watch, tcp_client

ADDRESS = "127.0.0.1"
BYTES_RECEIVED_AT, BYTES_SENT_AT = 128, 200  # in the kernel's struct tcp_info, since Linux 4.19
BEAT_BYTES = len(frames.line("beat"))

counted: Counter[str] = Counter()


class Node:
    """It says of its one worker what an agent would say. `publish` is called when that has changed."""

    def __init__(self, number: int) -> None:
        self.name = f"node-{number:04}.cluster.example-{10000 + number}-{number:04x}"
        self.number = number
        self.open = False  # whether its worker has opened a Session
        self.group = self.adopted = 0
        self.stores = 0  # that groups of processes were to use
        self.is_out = False
        self.announced: Announced | None = None
        self.publish: Callable[[NodeRecord], None] = lambda record: None
        self._published: NodeRecord | None = None

    def record(self) -> NodeRecord:
        worker = WorkerRecord(
            slot=0, spawn=0, phase=WorkerPhase.READY, adopted=self.adopted, constants=f"{0:064x}", max_workers=1 << 20
        )
        self._published = NodeRecord(
            node=self.name,
            address=ADDRESS,
            slots=1,
            store_port=20000 + self.number + 2000 * self.stores,
            meeting_port=30000 + self.number,
            workers=(worker,) if self.open and self.announced is not None else (),
            group=self.group,
            host=f"node-{self.number:04}.cluster.example",
        )
        return self._published

    def heard(self, announced: Announced) -> None:
        self.announced = announced
        if announced.kind is Kind.START:
            self.group = announced.generation
            self.stores += announced.host_node == self.name
        elif announced.members:
            self.adopted = announced.generation
        self.say()

    def say(self) -> None:
        before = self._published
        if (record := self.record()) != before:
            self.publish(record)


class Fleet:
    """The nodes of one process, and when all of them have heard of a world."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._wanted: Callable[[Announced], bool] = lambda announced: False
        self._left: set[str] = set()
        self._reached: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def heard(self, node: Node, kind: str, fields: dict[str, Any]) -> None:
        counted[f"down {kind}"] += 1
        if kind == "announced":
            node.heard(frames.announced_from_json(fields))
            self._look(node)
        elif kind != "welcome":
            print(f"{node.name} was {kind}: {fields}", file=sys.stderr, flush=True)
            node.is_out = True
            self._look(node)

    async def until(self, kind: str, size: int, after: int) -> float:
        """When the last node here heard of a generation later than `after`, of this kind and with so many nodes (0: any
        number). Those that were evicted are not waited for."""
        self._wanted = lambda a: a.kind == kind and size in (0, a.node_count) and a.generation > after
        self._left = {node.name for node in self.nodes}
        self._reached = asyncio.get_running_loop().create_future()
        for node in self.nodes:
            self._look(node)
        return await self._reached

    def _look(self, node: Node) -> None:
        if node.is_out or (node.announced is not None and self._wanted(node.announced)):
            self._left.discard(node.name)
            if not self._left and not self._reached.done():
                self._reached.set_result(time.monotonic())


def raise_file_limit() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def count_requests() -> None:
    """Count what goes to the store, and the frames that go up: every one of them passes here."""
    etcd_protobuf.load()  # an import that is made late, and no part of what is measured
    for name in ("compare_set", "set", "delete", "wait_for"):
        _count(tcp_client.Connection, name, lambda *_: "tcp call")
    _count(etcd_connection.Connection, "call", lambda *_: "etcd call")
    _count(etcd_connection.Connection, "keep_alive", lambda *_: "etcd renewal")
    _count(etcd_watch.Watcher, "add", lambda *_: "etcd watch")
    _count(frames, "line", lambda kind: f"up {kind}" if kind in ("hello", "record", "beat") else "")


def _count(owner: Any, name: str, label: Callable[..., str]) -> None:
    function = getattr(owner, name)

    @functools.wraps(function)
    def counting(*arguments: Any, **keywords: Any) -> Any:
        if what := label(*arguments[:1]):
            counted[what] += 1
        return function(*arguments, **keywords)

    setattr(owner, name, counting)


def counts(link_port: int, store_port: int) -> dict[str, int]:
    """So far, in this process: what was counted, and the payload that its connections have carried, both ways."""
    ports = {link_port: "link bytes", store_port: "store bytes"}
    found = {**counted, "link bytes": -BEAT_BYTES * counted["up beat"], "store bytes": 0}
    seen = set()
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            name = os.readlink(f"/proc/self/fd/{descriptor}")
            if not name.startswith("socket:") or name in seen:
                continue
            with socket.socket(fileno=os.dup(int(descriptor))) as sock:
                if (to := ports.get(sock.getpeername()[1])) is not None:
                    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                    found[to] += sum(struct.unpack_from("=Q", info, at)[0] for at in (BYTES_RECEIVED_AT, BYTES_SENT_AT))
            seen.add(name)
        except (OSError, IndexError, TypeError):
            continue  # closed meanwhile, or not connected, or not of the internet
    return found


async def obey(carry_out: Callable[[dict[str, Any]], Awaitable[Any]]) -> None:
    """Answer commands, a JSON line each, until there are no more; then end this process as it is."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    print(json.dumps("ready"), flush=True)
    while text := await reader.readline():
        print(json.dumps(await carry_out(json.loads(text))), flush=True)
    os._exit(0)
