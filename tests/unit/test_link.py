"""A node's link, and what comes of one that the other side resets."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading

import pytest

from elastic_runtime.core.world import NodeRecord
from elastic_runtime.errors import StoreError
from elastic_runtime.rendezvous.find import Coordinates
from elastic_runtime.rendezvous.link import Link, Refused

ADDRESS, TIMES = "127.0.0.1", 200
RECORD = NodeRecord(node="a", address=ADDRESS, slots=1, store_port=1)


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def test_a_connection_that_is_reset_at_once_is_refused() -> None:
    """As by a coordinator that is killed while nodes link to it."""
    with socket.create_server((ADDRESS, 0)) as listening:
        there = Coordinates(node="b", address=ADDRESS, port=listening.getsockname()[1], token="")

        def serve() -> None:
            for _ in range(TIMES):
                reset(listening.accept()[0])

        async def main() -> None:
            for _ in range(TIMES):
                with pytest.raises((Refused, StoreError)):
                    await Link(lambda kind, fields: None).open(there, "job", RECORD, silent_after_s=3.0)

        server = threading.Thread(target=serve)
        server.start()
        asyncio.run(main())
        server.join()
