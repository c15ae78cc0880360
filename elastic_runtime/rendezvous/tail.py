"""The end of a file of lines, and what is added to it. Reads a block at a time, so that an event loop may call it."""

from __future__ import annotations

import os
from pathlib import Path

BLOCK_BYTES = 256 << 10


class Tail:
    """The complete lines of a file that grows. A line that is longer than a block is lost."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0

    def start_before_end(self, count: int) -> None:
        """Have `read` begin with the last `count` complete lines."""
        blocks: list[bytes] = []
        ends = 0
        try:
            with self._path.open("rb") as file:
                start = file.seek(0, os.SEEK_END)
                while start > 0 and ends <= count:
                    size = min(BLOCK_BYTES, start)
                    start = file.seek(start - size)
                    blocks.append(file.read(size))
                    ends += blocks[-1].count(b"\n")
        except FileNotFoundError:
            return
        lines = b"".join(reversed(blocks)).splitlines(keepends=True)
        if lines and not lines[-1].endswith(b"\n"):
            lines.pop()
        self._offset = start + sum(map(len, lines[: max(0, len(lines) - count)]))

    def read(self) -> list[bytes]:
        """What is new, at most a block of it; empty if nothing is."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                block = file.read(BLOCK_BYTES)
        except FileNotFoundError:
            return []
        whole, end, _ = block.rpartition(b"\n")
        if not end and len(block) == BLOCK_BYTES:
            whole = block
        self._offset += len(whole + end)
        return whole.splitlines()
