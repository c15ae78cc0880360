"""How a node enters a group: once all of its nodes are there, with a client of the store that its first node serves."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous.api import RendezvousInfo, RendezvousStoreInfo

from elastic_runtime.core.supervision_events import Announced
from elastic_runtime.errors import StoreError
from elastic_runtime.stores.resolver import without_dns
from elastic_runtime.stores.roll_call import RollCall

T = TypeVar("T")

AGENT_STORE_S = 60.0  # how long torch's agent may wait for what another one writes to the group's store
AGAIN_S = 0.2  # between two tries to reach that store


async def enter(
    announced: Announced, node: str, *, is_void: Callable[[], bool], changed: asyncio.Event
) -> RendezvousInfo | None:
    """Wait for the other nodes of a group, of which this node is one. None if it will not begin.

    `is_void()`: there is a newer group, or none for this node any more. `changed` is set whenever that may be so.
    """
    place = next(iter(announced.members.values()))
    # What others know its own store by may lead nowhere from here.
    host = "127.0.0.1" if announced.host_node == node else announced.store_host

    def roll_call() -> RollCall:
        return RollCall(host, announced.store_port, place.node_rank, announced.node_count)

    if not await _begins(roll_call, is_void, changed):
        return None
    store = await in_thread(lambda: _client(host, announced.store_port))
    there = RendezvousStoreInfo(announced.store_host, announced.store_port)
    return RendezvousInfo(store, place.node_rank, announced.node_count, there)


async def _begins(roll_call: Callable[[], RollCall], is_void: Callable[[], bool], changed: asyncio.Event) -> bool:
    is_said = False
    while not is_void():
        mine = roll_call()
        answering, is_said = in_thread(mine.answer), True
        try:
            await _unless_void(answering, is_void, changed)
        finally:
            mine.cut()
        with suppress(StoreError):
            if answering.done():
                return answering.result()
        if not is_void():
            await asyncio.sleep(AGAIN_S)  # its host is there as far as is known
    with suppress(StoreError):  # if its host is gone nobody can begin
        return is_said and await in_thread(roll_call().call_off)
    return False


async def _unless_void(answering: asyncio.Future[bool], is_void: Callable[[], bool], changed: asyncio.Event) -> None:
    while not answering.done() and not is_void():
        changed.clear()
        news = asyncio.ensure_future(changed.wait())
        awaited: set[asyncio.Future[Any]] = {answering, news}
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        news.cancel()


def _client(host: str, port: int) -> TCPStore:
    numeric = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0]
    limit = timedelta(seconds=AGENT_STORE_S)
    with without_dns():
        return TCPStore(str(numeric), port, is_master=False, wait_for_workers=False, timeout=limit)


def in_thread(call: Callable[[], T]) -> asyncio.Future[T]:
    """Have a call that blocks made in a thread that nobody has to wait for, not even the end of the process."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)  # type: ignore[arg-type]
        else:
            future.set_exception(error)
            future.exception()  # seen, whether or not anybody still waits

    def run() -> None:
        result, error = None, None
        try:
            result = call()
        except BaseException as raised:
            error = raised
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="torchrun-blocking", daemon=True).start()
    return future
