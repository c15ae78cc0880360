"""A script without a Session that starts processes.

parent.py stubborn         one in its process group, one in a session of its own; it ignores SIGINT and SIGTERM
parent.py orphan           one that loses its parent and ends: does anybody take leave of it?
parent.py wait FILE        none; rank 0 ends at once, the others when the file is there
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def stubborn() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    subprocess.Popen(["sleep", "600"])
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    Path(os.environ["ELASTIC_TEST_DIRECTORY"], "started").touch()
    time.sleep(600)


def orphan() -> None:
    reader, writer = os.pipe()
    if os.fork() == 0:
        orphaned = os.fork()
        if orphaned:
            os.write(writer, str(orphaned).encode())
        os._exit(0)
    pid = int(os.read(reader, 20))
    os.wait()
    deadline = time.monotonic() + 20.0
    while Path(f"/proc/{pid}").exists():
        if time.monotonic() > deadline:
            sys.exit(f"{pid} is still there: {Path(f'/proc/{pid}/stat').read_text()}")
        time.sleep(0.01)
    print(f"orphan of {os.getppid()} is gone")


def wait() -> None:
    while os.environ["RANK"] != "0" and not Path(sys.argv[2]).exists():
        time.sleep(0.01)


{"stubborn": stubborn, "orphan": orphan, "wait": wait}[sys.argv[1]]()
