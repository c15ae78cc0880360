"""One connection to a torch TCPStore on which nothing blocks for ever and which another thread can cut.

torch's client honours a time limit in `wait` alone, and not even there once the host is silent: every other call, and
the constructor, block until the peer answers or its kernel closes the connection. Here the client's socket is found in
this process's table of open files and duplicated; options set on the duplicate (receive and send timeouts) hold for
the original, and shutting the duplicate down frees a thread that is blocked inside torch within milliseconds.

It knows nothing of entries and versions; keys and values are bytes and text. Linux only (`/proc`).
"""

from __future__ import annotations

import ctypes
import os
import queue
import socket
import struct
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import torch
from torch.distributed import DistError, DistStoreError, TCPStore

from elastic_runtime.errors import StoreError
from elastic_runtime.stores.resolver import without_dns

T = TypeVar("T")

# `compare_set` on a missing key answers with the expected value and writes nothing unless that value is empty. With a
# value that nobody stores it is the only read that does not block on a missing key, in one round trip.
_NEVER_STORED = "?"

# Finding a client's socket compares the sockets before and after it is built, so one at a time.
_dialling = threading.Lock()


class Unanswered(StoreError):
    """Something accepts connections at the address and does not answer as a store does."""


class Connection:
    """A connected client. One thread at a time, except for `cut`. After an error it is out of step: throw it away."""

    def __init__(self, client: TCPStore, sockets: list[socket.socket], address: str) -> None:
        self._client = client
        self._sockets = sockets
        self._address = address

    def read(self, key: str) -> bytes | None:
        """The value under `key`, None if there is none."""
        text = self.compare_set(key, _NEVER_STORED, _NEVER_STORED)
        return None if text == _NEVER_STORED.encode() else text

    def compare_set(self, key: str, expected: str, new: str) -> bytes:
        """What stands under `key` afterwards; `expected` empty creates it. See `read` for a missing key."""
        return self._call(lambda: self._client.compare_set(key, expected, new))

    def set(self, key: str, value: str) -> None:
        self._call(lambda: self._client.set(key, value))

    def delete(self, key: str) -> None:
        self._call(lambda: self._client.delete_key(key))

    def wait_for(self, key: str, timeout_s: float) -> None:
        """Block on the server until `key` exists or the time is up; which of the two is not said."""
        limit = timedelta(milliseconds=max(1, round(timeout_s * 1000)))  # torch counts in whole ones; 0 would spin

        def wait() -> None:
            try:
                self._client.wait([key], limit)
            except DistStoreError:
                return  # torch's word for a wait that ran out; the connection is in step

        self._call(wait)

    def cut(self) -> None:
        """Free whoever is blocked in a call, with an error. From any thread, repeatable."""
        _cut(self._sockets)

    def _call(self, request: Callable[[], T]) -> T:
        try:
            return request()
        except DistError as error:
            raise StoreError(f"the store at {self._address} does not answer: {_first_line(error)}") from error


def dial(host: str, port: int, *, limit_s: float) -> Connection:
    """Connect. `limit_s` bounds each stage here and every later call.

    Raises `Unanswered` if something accepts and stays silent, else `StoreError`.
    """
    address = f"{host}:{port}"
    try:
        # Found out by ourselves: torch's constructor retries a refusal to its own timeout and prints a trace for each.
        with socket.create_connection((host, port), timeout=limit_s) as probe:
            numeric = str(probe.getpeername()[0])
    except OSError as error:
        raise StoreError(f"no store can be reached at {address}: {error}") from error
    with _dialling:
        before = set(_open_sockets())
        outcome = _construct(numeric, port, limit_s=limit_s)
        sockets = [
            mine
            for name, descriptor in _open_sockets().items()
            if name not in before and (mine := _duplicate_if_to(port, descriptor))
        ]
    if not isinstance(outcome, TCPStore):
        _cut(sockets)  # ends the thread that is still inside the constructor
        if outcome is None:
            raise Unanswered(f"{address} accepts connections but did not answer as a store within {limit_s:g} s")
        raise StoreError(f"{address} accepts connections but closes them: {_first_line(outcome)}") from outcome
    if not sockets:
        raise StoreError(f"the connection to {address} was lost as soon as it was made")
    for mine in sockets:
        _bound(mine, limit_s)
    return Connection(outcome, sockets, address)


def quiet_torch_log() -> None:
    """Have torch's C++ code in this process write only fatal errors.

    A wait that runs out, a connection that is cut and a host that leaves are everyday matters to a store's user, and
    torch writes a warning with a stack trace for each. For processes that run no user code: the level is one for the
    whole process and is inherited by a fork. A process that asked torch for more than its default keeps what it asked
    for, and a torch built otherwise keeps talking.
    """
    default, fatal = 1, 3
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
        level = ctypes.c_int.in_dll(library, "FLAGS_caffe2_log_level")
    except (OSError, ValueError):
        return
    if level.value == default:
        level.value = fatal


def _construct(host: str, port: int, *, limit_s: float) -> TCPStore | Exception | None:
    """A client, or what its constructor raised, or None if it is still in there after `limit_s`."""
    outcome: queue.SimpleQueue[TCPStore | Exception] = queue.SimpleQueue()
    patience = timedelta(seconds=limit_s / 2)  # with a peer that hangs up; with one that is silent it does not count

    def build() -> None:
        try:
            with without_dns():
                outcome.put(TCPStore(host, port, is_master=False, timeout=patience))
        except DistError as error:
            outcome.put(error)

    threading.Thread(target=build, name="store-dial", daemon=True).start()
    try:
        return outcome.get(timeout=limit_s)
    except queue.Empty:
        return None


def _open_sockets() -> dict[str, int]:
    """This process's sockets by the kernel's name for them, which, unlike a descriptor, is not used again soon."""
    sockets = {}
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            name = os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:
            continue  # closed meanwhile
        if name.startswith("socket:"):
            sockets[name] = int(descriptor)
    return sockets


def _duplicate_if_to(port: int, descriptor: int) -> socket.socket | None:
    try:
        duplicate = socket.socket(fileno=os.dup(descriptor))
    except OSError:
        return None
    try:
        if duplicate.type == socket.SOCK_STREAM and duplicate.getpeername()[1] == port:
            return duplicate
    except (OSError, IndexError):
        pass  # not connected, or not of the internet
    duplicate.close()
    return None


def _bound(mine: socket.socket, limit_s: float) -> None:
    seconds, fraction = divmod(limit_s, 1.0)
    limit = struct.pack("@ll", int(seconds), int(fraction * 1e6))
    mine.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    mine.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


def _cut(sockets: list[socket.socket]) -> None:
    for mine in sockets:
        try:
            mine.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the other end, or another thread, was faster
        mine.close()


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
