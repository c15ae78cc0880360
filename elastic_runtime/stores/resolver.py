"""Keeps torch's sockets from asking the network for names.

torch looks up the name of both ends of every connection it makes (for its log), one after the other and in the calling
thread. Where DNS answers late or not at all, each connection then takes seconds. Linux with glibc; elsewhere nothing
is changed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

_RETRY = 1  # the second int of glibc's `struct __res_state`: how often the servers are asked


@contextmanager
def without_dns() -> Iterator[None]:
    """In this thread, look names up in files only: no DNS server is asked. Addresses go in numeric."""
    try:
        library = ctypes.CDLL(None)
        locate = library.__res_state
        locate.restype = ctypes.POINTER(ctypes.c_int)
        library.__res_init()  # fills the state, which is this thread's own
    except (OSError, AttributeError):
        yield
        return
    state = locate()
    usual = state[_RETRY]
    state[_RETRY] = 0
    try:
        yield
    finally:
        state[_RETRY] = usual
