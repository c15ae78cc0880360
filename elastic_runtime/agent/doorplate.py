"""Where a person's commands find the agents of this machine: a named UNIX socket for each, in a directory that nobody
else can enter. Whoever connects, and is the same user, reads one JSON line and is done.

It knows nothing of what the line says; it is what leads on to the coordinator, the job's token among it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import socket
import stat
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from elastic_runtime.environment import doorplate_directories
from elastic_runtime.errors import ConfigurationError

ANSWER_WITHIN_S = 2.0  # an agent that is stopped or very busy is left out of a list
LINE_BYTES = 64 << 10
SUFFIX = ".sock"


class Doorplate:
    """The socket of this process. If there can be none the job goes on all the same, and `tell` is given a line.

    `close` may be called at any time.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._socket: socket.socket | None = None

    async def open(self, describe: Callable[[], dict[str, Any]]) -> None:
        """Answer with what `describe` returns at the time, from this loop."""
        reasons = []
        for directory in doorplate_directories():
            self._path = directory / f"{os.getpid()}{SUFFIX}"
            try:
                with _entered(directory, make=True) as inside:
                    self._socket = _listen(inside, self._path.name)
            except (OSError, ConfigurationError) as error:
                reasons.append(str(error))
                continue
            self._describe, self._loop = describe, asyncio.get_running_loop()
            self._loop.add_reader(self._socket.fileno(), self._answer)
            return
        self._tell(f"elasticctl will not find this job without --endpoint: {'; '.join(reasons)}")

    def close(self) -> None:
        if self._socket is None:
            return
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        self._socket = None
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _answer(self) -> None:
        assert self._socket is not None
        with contextlib.suppress(OSError):  # whoever called has gone already
            visitor, _ = self._socket.accept()
            with visitor:
                visitor.setblocking(False)
                if _peer(visitor) in (os.geteuid(), 0):
                    visitor.send(json.dumps(self._describe()).encode() + b"\n")  # fits the socket's buffer


def local_jobs() -> list[dict[str, Any]]:
    """What the agents of this user on this machine say of themselves, each with its `pid`.

    Raises ConfigurationError if there are none but there may be some where others could have put theirs.
    """
    found = []
    doubt = None
    for directory in doorplate_directories():
        try:
            with _entered(directory, make=False) as inside:
                names = sorted(name for name in os.listdir(inside) if name.endswith(SUFFIX))
                for name in names:
                    described = _ask(inside, name)
                    if described is not None:
                        found.append({**described, "pid": int(name.removesuffix(SUFFIX))})
        except ConfigurationError as error:
            doubt = error
        except OSError:
            continue  # no agent of this user was ever here
    if doubt and not found:
        raise doubt
    return found


@contextlib.contextmanager
def _entered(directory: Path, *, make: bool) -> Iterator[int]:
    """A descriptor of the directory, known to be this user's alone: what was checked is what is used."""
    if make:
        with contextlib.suppress(FileExistsError):
            directory.mkdir(mode=0o700)
    try:
        inside = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP, errno.EACCES):
            raise
        raise ConfigurationError(f"{directory} is not a directory of yours: have it removed") from None
    try:
        facts = os.fstat(inside)
        mode = stat.S_IMODE(facts.st_mode)
        if facts.st_uid != os.geteuid():
            raise ConfigurationError(f"{directory} belongs to user {facts.st_uid}: it must be yours, have it removed")
        if mode != 0o700:
            raise ConfigurationError(f"{directory} has mode {mode:o}, others might enter: chmod 700 {directory}")
        yield inside
    finally:
        os.close(inside)


def _reach(inside: int, name: str) -> str:
    """A path for a socket's address that fits its 107 bytes wherever the directory is."""
    return f"/proc/self/fd/{inside}/{name}"


def _listen(inside: int, name: str) -> socket.socket:
    """It gets its name when it listens, so that one that refuses connections is known to be nobody's."""
    early = f".{name}"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(early, dir_fd=inside)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(_reach(inside, early))
        sock.listen()
        sock.setblocking(False)
        os.rename(early, name, src_dir_fd=inside, dst_dir_fd=inside)
    except OSError:
        sock.close()
        raise
    return sock


def _ask(inside: int, name: str) -> dict[str, Any] | None:
    """What the agent behind this socket says; None if there is none, it is silent or it is no agent."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(ANSWER_WITHIN_S)
        try:
            sock.connect(_reach(inside, name))
            if _peer(sock) not in (os.geteuid(), 0):
                return None
            with sock.makefile("rb") as stream:
                described = json.loads(stream.readline(LINE_BYTES))
        except ConnectionRefusedError:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=inside)  # left by a process that was killed
            return None
        except (OSError, ValueError):
            return None
    return described if isinstance(described, dict) and name.removesuffix(SUFFIX).isdigit() else None


def _peer(sock: socket.socket) -> int:
    """The user at the other end."""
    _, user, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(user)
