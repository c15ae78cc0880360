"""The inherited socket pair between an agent and one of its workers: whole messages, in order, EOF when one ends."""

from __future__ import annotations

import contextlib
import socket

from elastic_runtime.core.messages import Down, Up, decode, encode

PACKET_BYTES = 1 << 17


class Channel:
    """One end. `send` never blocks for long (packets are small); `receive` blocks unless the socket is non-blocking."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(ours), cls(theirs)

    @classmethod
    def inherited(cls, fd: int) -> Channel:
        sock = socket.socket(fileno=fd)
        sock.set_inheritable(False)  # the worker's own children have no business with it
        return cls(sock)

    def fileno(self) -> int:
        return self._sock.fileno()

    def set_blocking(self, blocking: bool) -> None:
        self._sock.setblocking(blocking)

    def send(self, message: Up | Down) -> bool:
        """False when the other end is gone (its death is reported elsewhere)."""
        try:
            self._sock.sendall(encode(message))
        except (BrokenPipeError, ConnectionResetError, ConnectionRefusedError):
            return False
        return True

    def receive(self) -> Up | Down | None:
        """The next message, or None at EOF. Raises BlockingIOError on a non-blocking socket without one."""
        try:
            packet = self._sock.recv(PACKET_BYTES)
        except ConnectionResetError:
            return None
        return decode(packet) if packet else None

    def shut(self) -> None:
        """Nothing more in either direction: frees a thread blocked in `receive`. What was sent still arrives."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._sock.close()
