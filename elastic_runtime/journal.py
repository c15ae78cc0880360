"""`journal.jsonl`: what happened to a job, one JSON object a line."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any


class Journal:
    """Append-only. A line is one write: several processes may share a file, and it survives a SIGKILL of the writer."""

    def __init__(self, path: Path, node: str) -> None:
        self.path = path
        self._node = node
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, event: str, *, generation: int, reason: str = "", **fields: Any) -> None:
        entry = {
            "time": round(time.time(), 6),
            "event": event,
            "generation": generation,
            "node": self._node,
            "reason": reason,
            **fields,
        }
        os.write(self._fd, (json.dumps(entry) + "\n").encode())

    def close(self) -> None:
        os.close(self._fd)
