"""Passes on what workers write to their log files, whole lines at a time: to the console, and to filtered files.

One thread serves all files, and it alone ever waits for a console that takes nothing. It keeps no file open and holds
an unfinished line back until it is finished, so that the lines of many workers stay lines.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

LOOK_EVERY_S = 0.1
CHUNK_BYTES = 1 << 20
LONGEST_LINE_BYTES = 8 << 20  # a longer one is passed on in pieces


@dataclass(slots=True)
class Sink:
    """Where lines go. `needles`: only lines that contain one of them; None: all."""

    fd: int
    needles: tuple[bytes, ...] | None = None
    owned: bool = False  # to be closed with the stream
    broken: bool = False  # nobody reads it any more

    def take(self, prefix: bytes, lines: Sequence[bytes]) -> None:
        wanted = lines if self.needles is None else [line for line in lines if any(n in line for n in self.needles)]
        if wanted and not self.broken:
            self._write(b"".join(prefix + line for line in wanted))

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self.fd, rest) :]
            except BlockingIOError:  # whoever shares the console with us made it non-blocking
                select.select([], [self.fd], [])
            except OSError:
                self.broken = True
                return

    def close(self) -> None:
        if self.owned:
            os.close(self.fd)


@dataclass(slots=True)
class Stream:
    """One worker's log file. `ended`: its writer is gone, so what is in it by now is all."""

    path: str
    prefix: bytes
    sinks: tuple[Sink, ...]
    ended: bool = False
    offset: int = 0
    _held: bytearray = field(default_factory=bytearray)
    _half_newline: bool = False  # a carriage return that may belong to a line feed which is still to come

    def advance(self) -> bool:
        """Pass on what is new, up to a chunk of it. False: nothing was."""
        try:
            if os.stat(self.path).st_size <= self.offset:
                return False
            with open(self.path, "rb", buffering=0) as file:
                file.seek(self.offset)
                data = file.read(CHUNK_BYTES)
        except OSError:
            return False
        self.offset += len(data)
        self._take(data)
        return bool(data)

    def _take(self, data: bytes) -> None:
        """A lone carriage return ends a line too, as in progress bars."""
        if self._half_newline:
            data = b"\r" + data
        self._half_newline = data.endswith(b"\r")
        if self._half_newline:
            data = data[:-1]
        head, newline, rest = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").rpartition(b"\n")
        if newline:
            self._emit(bytes(self._held) + head + newline)
            self._held.clear()
        self._held += rest
        if len(self._held) > LONGEST_LINE_BYTES:
            self._finish_line()

    def _emit(self, text: bytes) -> None:
        lines = text.splitlines(keepends=True)
        for sink in self.sinks:
            sink.take(self.prefix, lines)

    def _finish_line(self) -> None:
        if self._held or self._half_newline:
            self._emit(bytes(self._held) + b"\n")
        self._held.clear()
        self._half_newline = False

    def close(self) -> None:
        while self.advance():
            pass
        self._finish_line()
        for sink in self.sinks:
            sink.close()


class Tail:
    def __init__(self) -> None:
        self._streams: list[Stream] = []
        self._new: list[Stream] = []
        self._lock = threading.Lock()
        self._look = threading.Event()
        self._closing = False
        self._thread: threading.Thread | None = None

    def follow(self, stream: Stream) -> None:
        with self._lock:
            self._new.append(stream)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tail", daemon=True)
            self._thread.start()

    def end(self, stream: Stream) -> None:
        stream.ended = True
        self._look.set()

    def close(self) -> None:
        """Return once all that was written is passed on, which takes as long as the console does."""
        self._closing = True
        self._look.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            closing = self._closing  # before the last look
            with self._lock:
                self._streams += self._new
                self._new = []
            for stream in list(self._streams):
                ended = stream.ended or closing
                more = stream.advance()
                if ended:
                    stream.close()
                    self._streams.remove(stream)
                elif more:
                    self._look.set()  # there may be more than a chunk
            if closing and not self._new:
                return
            self._look.wait(LOOK_EVERY_S)
            self._look.clear()
