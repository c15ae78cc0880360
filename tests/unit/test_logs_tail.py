"""Lines of log files reach the console whole, in order, and all of them."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from elastic_runtime.agent.logs_tail import LONGEST_LINE_BYTES, Sink, Stream, Tail


class Console:
    """A pipe that is read in a thread, or not read at all until `text`."""

    def __init__(self, *, read: bool = True) -> None:
        self._reader, self.fd = os.pipe()
        self._text = bytearray()
        self._thread = threading.Thread(target=self._read)
        if read:
            self._thread.start()

    def _read(self) -> None:
        while data := os.read(self._reader, 1 << 16):
            self._text += data

    def text(self) -> bytes:
        """All of it, once nobody writes any more."""
        if self._thread.ident is None:
            self._thread.start()
        os.close(self.fd)
        self._thread.join()
        os.close(self._reader)
        return bytes(self._text)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "stdout.log"


def tailed(log: Path, *pieces: bytes, needles: tuple[bytes, ...] | None = None) -> bytes:
    """What is passed on of a log that grows by these pieces, each seen by itself."""
    console = Console()
    stream = Stream(path=str(log), prefix=b"[w0]:", sinks=(Sink(console.fd, needles=needles),))
    with log.open("ab", buffering=0) as file:
        for piece in pieces:
            file.write(piece)
            stream.advance()
    stream.close()
    return console.text()


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([], b""),
        ([b"a\nb\n"], b"[w0]:a\n[w0]:b\n"),
        ([b"a", b"b", b"\nc\n"], b"[w0]:ab\n[w0]:c\n"),
        ([b"a\n\nb\n"], b"[w0]:a\n[w0]:\n[w0]:b\n"),
        ([b"no newline"], b"[w0]:no newline\n"),
        ([b"1%\r2%\r", b"3%\n"], b"[w0]:1%\n[w0]:2%\n[w0]:3%\n"),
        ([b"dos\r", b"\nline\r\n"], b"[w0]:dos\n[w0]:line\n"),
        ([b"end\r"], b"[w0]:end\n"),
        ([b"\xff\x00\n"], b"[w0]:\xff\x00\n"),
    ],
)
def test_lines(log: Path, pieces: list[bytes], expected: bytes) -> None:
    assert tailed(log, *pieces) == expected


def test_only_lines_with_one_of_the_needles(log: Path) -> None:
    assert tailed(log, b"keep 1\nx\n2 also\n", needles=(b"keep", b"also")) == b"[w0]:keep 1\n[w0]:2 also\n"


def test_a_megabyte_without_a_newline_is_one_line(log: Path) -> None:
    line = b"x" * 1_000_000
    assert tailed(log, *[line[i : i + 4096] for i in range(0, len(line), 4096)], b"\n") == b"[w0]:" + line + b"\n"


def test_a_line_without_an_end_is_not_held_for_ever(log: Path) -> None:
    piece = b"x" * (1 << 20)
    lines = tailed(log, *[piece] * (LONGEST_LINE_BYTES // len(piece) + 2)).splitlines()
    assert len(lines) == 2
    assert b"".join(line.removeprefix(b"[w0]:") for line in lines) == piece * (LONGEST_LINE_BYTES // len(piece) + 2)


def test_a_console_that_nobody_reads_any_more_is_let_be(log: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    log.write_bytes(b"a\nb\n")
    kept = Console()
    stream = Stream(path=str(log), prefix=b"", sinks=(Sink(writer), Sink(kept.fd)))
    stream.close()
    os.close(writer)
    assert kept.text() == b"a\nb\n"


def test_a_console_that_is_not_to_be_waited_for_is_waited_for(log: Path) -> None:
    console = Console(read=False)
    os.set_blocking(console.fd, False)
    log.write_bytes(b"line\n" * 100_000)
    tail = Tail()
    tail.follow(Stream(path=str(log), prefix=b"", sinks=(Sink(console.fd),)))
    ended = threading.Thread(target=tail.close)
    ended.start()
    assert ended.is_alive()
    console._thread.start()
    ended.join()
    assert console.text() == b"line\n" * 100_000


def test_nothing_of_many_workers_is_lost_at_the_end(tmp_path: Path) -> None:
    """400 files, one thread and no file held open: an agent of 200 workers needs its descriptors for other things."""
    console, tail = Console(), Tail()
    streams = []
    for number in range(400):
        path = tmp_path / f"{number}.log"
        path.write_bytes(b"begin\n")
        streams.append(Stream(path=str(path), prefix=b"[%d]:" % number, sinks=(Sink(console.fd),)))
        tail.follow(streams[-1])
    for stream in streams:
        with open(stream.path, "ab") as file:
            file.write(b"middle\nend")
        tail.end(stream)
    open_files = len(os.listdir("/proc/self/fd"))
    tail.close()
    assert open_files < 200
    lines = console.text().splitlines()
    for number in range(400):
        mine = [line.partition(b":")[2] for line in lines if line.startswith(b"[%d]:" % number)]
        assert mine == [b"begin", b"middle", b"end"]
