"""A network between a client and a server that can be taken away: by refusing, or by saying nothing more."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType

from tests.etcd.server import Address


class Proxy:
    """Listens on `endpoint` and carries bytes to and from `target`."""

    def __init__(self, target: Address) -> None:
        self._target = target
        self._server = socket.create_server(("127.0.0.1", 0))
        self.endpoint: Address = self._server.getsockname()[:2]
        self._passing = threading.Event()
        self._passing.set()
        self._refusing = False
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """End all connections, and each new one at once."""
        self._refusing = True
        with self._lock:
            for each in self._sockets:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def silence(self) -> None:
        """Carry nothing any more, and keep all connections open; new ones are accepted."""
        self._passing.clear()

    def lead_to(self, target: Address) -> None:
        """Carry new connections there."""
        self._target = target

    def mend(self) -> None:
        self._refusing = False
        self._passing.set()

    def close(self) -> None:
        self.cut()
        self._passing.set()
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            if self._refusing:
                client.close()
                continue
            threading.Thread(target=self._carry_both_ways, args=(client,), daemon=True).start()

    def _carry_both_ways(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._target) as server:
            with self._lock:
                self._sockets |= {client, server}
            back = threading.Thread(target=self._carry, args=(server, client), daemon=True)
            back.start()
            self._carry(client, server)
            back.join()
            with self._lock:
                self._sockets -= {client, server}

    def _carry(self, source: socket.socket, to: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(1 << 16):
                self._passing.wait()
                to.sendall(piece)
        for each in (source, to):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
