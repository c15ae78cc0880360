"""How a Session learns of worlds: from its agent, from torchrun's environment, or alone.

`worlds()` of the three give the Session one shape. Only the agent's ever changes.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Protocol

from elastic_runtime import environment
from elastic_runtime.channel import Channel
from elastic_runtime.core.messages import Closed, Up, World
from elastic_runtime.errors import JobClosed


class Membership(Protocol):
    """What the Session needs. `newest` is the last world heard of; reading it never blocks."""

    elastic: bool
    newest: World | None

    def open(self, on_order: Callable[[World], None]) -> None:
        """Start to listen. `on_order` is called, from another thread, for each world that was not planned."""

    def send(self, message: Up) -> None: ...

    def wait_newer(self, generation: int) -> World:
        """Block until a world newer than `generation` is settled. Raises JobClosed when the job ends instead."""

    def close(self) -> None: ...


class AgentMembership:
    elastic = True

    def __init__(self, channel: Channel) -> None:
        self.newest: World | None = None
        self._channel = channel
        self._closed: Closed | None = None
        self._news = threading.Condition()
        self._done = False

    def open(self, on_order: Callable[[World], None]) -> None:
        self._on_order = on_order
        self._listener = threading.Thread(target=self._listen, name="elastic-orders", daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        while True:
            message = self._channel.receive()
            if message is None:
                if self._done:
                    return
                # The agent is gone: nobody will ever tell this worker anything again.
                print("elastic-runtime: the agent of this worker is gone; ending", file=sys.stderr, flush=True)
                os._exit(1)
            with self._news:
                if isinstance(message, Closed):
                    self._closed = message
                elif isinstance(message, World) and (
                    self.newest is None or message.generation > self.newest.generation
                ):
                    self.newest = message
                self._news.notify_all()
            if isinstance(message, World) and not message.planned:
                self._on_order(message)

    def send(self, message: Up) -> None:
        self._channel.send(message)

    def wait_newer(self, generation: int) -> World:
        with self._news:
            while self.newest is None or self.newest.generation <= generation:
                if self._closed is not None:
                    raise JobClosed(self._closed.reason, self._closed.exit_code)
                self._news.wait()
            return self.newest

    def close(self) -> None:
        self._done = True
        self._channel.shut()
        self._listener.join()


class FixedMembership:
    """A world that never changes: one process alone, or what torchrun put it in."""

    elastic = False

    def __init__(self, static: environment.StaticWorld | None) -> None:
        self.static = static
        self.newest: World | None = World(
            generation=1,
            rank=static.rank if static else 0,
            world_size=static.world_size if static else 1,
            planned=True,
            reason="fixed world" if static else "alone",
            local_rank=static.local_rank if static else 0,
            local_world_size=static.local_world_size if static else 1,
            noticed_at=time.monotonic(),
        )

    def open(self, on_order: Callable[[World], None]) -> None:
        pass

    def send(self, message: Up) -> None:
        pass

    def wait_newer(self, generation: int) -> World:
        assert self.newest is not None and generation < self.newest.generation
        return self.newest

    def close(self) -> None:
        pass


def find_membership() -> Membership:
    fd = environment.take_channel_fd()
    if fd is not None:
        return AgentMembership(Channel.inherited(fd))
    return FixedMembership(environment.static_world())
