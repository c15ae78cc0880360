"""The default process group of one generation: formed, left, and broken off from another thread.

gloo cannot be interrupted: its own abort returns at once while the blocked call stays blocked. What works is to shut
down the connected sockets under it. So the sockets that forming opens are noted, as duplicates, and `break_off`
shuts them down: whatever this process is blocked in then raises. A listening socket must never be shut down
(gloo's own thread throws and the process ends).
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from datetime import timedelta

import torch
import torch.distributed as dist

from elastic_runtime.core.messages import World
from elastic_runtime.errors import BrokenCollective
from elastic_runtime.session.meeting_store import MeetingStore

CREATION_LIMIT_S = 3.0
COLLECTIVE_LIMIT = timedelta(minutes=30)
DESTRUCTION_LIMIT_S = 1.0  # takes milliseconds; a process must not end in the middle of it


class Group:
    """At most one process group at a time, numbered by its generation."""

    def __init__(self) -> None:
        self.generation = 0
        self._lock = threading.Lock()
        self._ordered_off = 0  # generations below this one are to be left
        self._sockets: list[socket.socket] = []
        self._store: MeetingStore | None = None

    def is_ordered_off(self, generation: int) -> bool:
        """Whether a later generation was settled that does not wait for the step in flight."""
        return generation < self._ordered_off

    def break_off(self, newer: int) -> None:
        """From the listening thread: leave every generation before `newer`, whatever this process is blocked in."""
        with self._lock:
            self._ordered_off = max(self._ordered_off, newer)
            if self.generation < newer:
                self._shut()

    def form(self, world: World) -> None:
        """Meet the other members of a generation, however long they take, and connect to all of them.

        Raises BrokenCollective if a member dies meanwhile, a later generation is ordered, or connecting takes longer
        than CREATION_LIMIT_S after everybody has arrived.
        """
        self.generation = world.generation
        try:
            self._check(world.generation)
            store = MeetingStore(world.store_host, world.meeting_port, generation=world.generation, token=world.token)
            with self._lock:
                self._store = store
            self._check(world.generation)
            store.arrive(world.world_size)
            before = _open_sockets()
            # torch numbers groups and puts the number before their keys. One that failed to form would leave this
            # member a number ahead of the others, for ever.
            dist.distributed_c10d._world.group_count = 0
            dist.init_process_group(
                "gloo",
                store=store,
                rank=world.rank,
                world_size=world.world_size,
                timeout=timedelta(seconds=CREATION_LIMIT_S),
            )
            self._note_sockets(before)
            backend = dist.group.WORLD._get_backend(torch.device("cpu"))  # type: ignore[union-attr]
            backend.set_timeout(COLLECTIVE_LIMIT)
        except (RuntimeError, OSError) as error:
            self.leave()
            raise BrokenCollective(f"generation {world.generation} could not form: {_first_line(error)}") from error

    def leave(self) -> None:
        """Drop the group. Peers that are still in one of its collectives get an error."""
        with self._lock:
            self._shut()
            for sock in self._sockets:
                sock.close()
            self._sockets = []
            store, self._store = self._store, None
        if dist.is_initialized():
            group = [dist.group.WORLD]
            dist.destroy_process_group()
            # The destructor waits for gloo's threads, and one whose write failed under it may never return: gloo then
            # waits for a send that it has forgotten. So nobody who has anything else to do lets go of it last.
            last = threading.Thread(target=group.clear, name="elastic-leave", daemon=True)
            last.start()
            last.join(DESTRUCTION_LIMIT_S)
        if store is not None:
            store.close()

    def _check(self, generation: int) -> None:
        if self.is_ordered_off(generation):
            raise OSError("a later generation was settled")

    def _note_sockets(self, before: set[tuple[int, str]]) -> None:
        with self._lock:
            for fd, _ in _open_sockets() - before:
                with contextlib.suppress(OSError):
                    sock = socket.socket(fileno=os.dup(fd))
                    if sock.family in (socket.AF_INET, socket.AF_INET6) and not _is_listening(sock):
                        self._sockets.append(sock)
                    else:
                        sock.close()
            if self.is_ordered_off(self.generation):
                self._shut()

    def _shut(self) -> None:
        if self._store is not None:
            self._store.cut()
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


def _open_sockets() -> set[tuple[int, str]]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith("socket:"):
                found.add((int(name), target))
    return found


def _is_listening(sock: socket.socket) -> bool:
    return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__
