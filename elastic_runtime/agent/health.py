"""Answers over HTTP whether this agent is well: 200 while its loop turns, 503 once it has stood still for a minute.

In a thread of its own, since a loop that hangs answers nobody.
"""

from __future__ import annotations

import asyncio
import http.server
import sys
import threading
import time

BEAT_EVERY_S = 1.0
UNWELL_AFTER_S = 60.0


class Health:
    """Use as a context manager on the event loop that is asked about. `port` None: nobody asks."""

    def __init__(self, port: int | None, *, unwell_after_s: float = UNWELL_AFTER_S) -> None:
        self.port, self._unwell_after_s = port, unwell_after_s
        self._beat_at = time.monotonic()
        self._server: http.server.HTTPServer | None = None
        self._next: asyncio.TimerHandle | None = None

    def __enter__(self) -> Health:
        if self.port is None:
            return self
        try:
            self._server = self._listen(self.port)
        except OSError as error:  # a job is worth more than the answer
            print(f"elasticrun: port {self.port} cannot be asked for health: {error.strerror}", file=sys.stderr)
            return self
        self.port = self._server.server_port
        self._beat(asyncio.get_running_loop())
        threading.Thread(target=self._server.serve_forever, name="health", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._next is not None:
            self._next.cancel()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self._beat_at = time.monotonic()
        self._next = loop.call_later(BEAT_EVERY_S, self._beat, loop)

    def _listen(self, port: int) -> http.server.HTTPServer:
        health = self

        class Answer(http.server.BaseHTTPRequestHandler):
            timeout = 5  # of one who connects and asks nothing

            def do_GET(self) -> None:
                silent_s = time.monotonic() - health._beat_at
                well = silent_s < health._unwell_after_s
                text = b"ok\n" if well else f"the agent has stood still for {silent_s:.0f} s\n".encode()
                self.send_response(200 if well else 503)
                self.send_header("Content-Type", "text/plain")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: object) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("", port), Answer)
        server.daemon_threads = True
        return server
