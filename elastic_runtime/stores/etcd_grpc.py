"""Imports gRPC so that it lets the process fork, and is quiet.

As it comes, its C library acts on every fork that is not at once an exec: it writes a line each time, and some of the
children abort. It also writes what is everyday to a store, such as a connection refused, to stderr. Both can be told it
by environment variables only, which it reads once, while it is imported. So they stand in the environment of C for that
moment, not in `os.environ`, and a program started before or after does not inherit them.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_SETTINGS = {b"GRPC_ENABLE_FORK_SUPPORT": b"0", b"GRPC_VERBOSITY": b"NONE"}

_loading = threading.Lock()


def load() -> Any:
    """The module `grpc`. What the user set of the variables above holds; so does an import before this one."""
    with _loading:
        if "grpc" in sys.modules:
            return importlib.import_module("grpc")
        with _settings():
            return importlib.import_module("grpc")


@contextmanager
def _settings() -> Iterator[None]:
    library = ctypes.CDLL(None)
    library.getenv.restype = ctypes.c_char_p
    ours = [name for name in _SETTINGS if library.getenv(name) is None]
    for name in ours:
        library.setenv(name, _SETTINGS[name], 1)
    try:
        yield
    finally:
        for name in ours:
            library.unsetenv(name)
