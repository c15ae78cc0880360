"""The contract every store keeps. It does not know what the documents mean, nor who may write them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

MAX_VALUE_BYTES = 512 * 1024
MAX_KEY_CHARS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What a key holds. `version` counts the swaps that won, from 1; 0 stands for a key that does not exist."""

    value: dict[str, Any]
    version: int
    writer: str


NOTHING = Entry(value={}, version=0, writer="")


class Store(Protocol):
    """One handle on a store. All of its methods may be called from several threads at once.

    Ordering. The swaps won on one key form one sequence, numbered by `version` without gaps. A read that starts after
    a swap was answered sees that swap or a later one. Nothing is promised between two keys.

    Idempotence. `get` and `wait` change nothing and may be repeated. `swap` may be repeated with the same version: at
    most one of the attempts wins.

    Failure. Every method raises `StoreError` when the store does not answer in time, is gone, or when this handle is
    closed; none blocks for longer than its limit. A handle survives an outage: its next call connects again. *A swap
    that raised may have been applied*. Whoever needs to know reads the key again: the swap won if the entry has
    `version + 1` and this handle's `writer` (provided that no other thread swaps that key through the same writer).
    Two handles with the same `writer` are told apart by nobody; give each incarnation of a node its own.

    Values are JSON objects of at most `MAX_VALUE_BYTES` as UTF-8. What is returned has been through JSON (tuples are
    lists, keys are strings) and is the caller's to change. Keys are never deleted. A value that is no JSON object, or
    is too large, raises TypeError or ValueError: a bug, not an outage.
    """

    @property
    def writer(self) -> str:
        """The identity that this handle's swaps carry."""

    def get(self, key: str) -> Entry | None:
        """The entry under `key`, None if it was never created."""

    def swap(self, key: str, value: Mapping[str, Any], version: int) -> tuple[bool, Entry]:
        """Put `value` in the place of the entry with this `version`; version 0 creates the key.

        Returns (True, the new entry), or (False, the entry that stands there instead). Of several writers that swap
        the same version exactly one wins, equal values or not. A version that is ahead of the store (the store began
        anew) loses too, and against a key that does not exist the entry returned is `NOTHING`.
        """

    def wait(self, key: str, newer_than: int, timeout_s: float) -> Entry | None:
        """Block until `key` holds a version above `newer_than` and return the entry; None after `timeout_s` seconds.

        Returns at once if it does already; versions in between may be skipped. It is a wait on the server's side, not
        a polling loop, and holds up no other call of this handle.
        """

    def close(self) -> None:
        """Give the handle back. Its calls raise `StoreError` from now on; threads blocked in one are freed at once.

        A thread that is just then connecting anew after an outage is freed when that ends, within its limit. May be
        repeated. Closing the handle that hosts a store ends the store for everybody.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who holds a seat: what it says of itself, and the number of this holding. No two holdings of a seat share one."""

    value: dict[str, Any]
    term: int


class Seat(Protocol):
    """A place that one process holds at a time, until it gives it up, is overruled, or is silent for too long.

    Only where the store has leases does silence cost the seat. Being the holder excludes nobody from anything: what
    only the holder may do is fenced by a `swap` of its own. All methods raise `StoreError` as those of `Store` do.
    """

    def holder(self) -> Holder | None:
        """Who holds the seat now, None if nobody does."""

    def wait(self, other_than: int, timeout_s: float) -> tuple[bool, Holder | None]:
        """Block until the seat is not held under the term `other_than` (0: until somebody holds it).

        Returns (True, who holds it, None for nobody), or (False, None) after `timeout_s` seconds. Not a polling loop.
        """

    def claim(self, value: Mapping[str, Any], over: int) -> Holder | None:
        """Take the seat if it is held under the term `over` (0: by nobody). None if it is not so any more.

        From then on it is kept against silence until `release` or the end of this process. A claim that raised may
        have succeeded: `holder` tells.
        """

    def release(self) -> None:
        """Give the seat up at once if this handle holds it; otherwise nothing. May be repeated."""


def encode(value: Mapping[str, Any]) -> str:
    """The JSON text of a value. Raises TypeError or ValueError for what is no JSON object or too large for a store."""
    if not isinstance(value, dict):
        raise TypeError(f"a store holds JSON objects (dict), not {type(value).__name__}")
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    size_bytes = len(text.encode())
    if size_bytes > MAX_VALUE_BYTES:
        raise ValueError(f"a value of {size_bytes} bytes is over the store's limit of {MAX_VALUE_BYTES}")
    return text


def check_key(key: str) -> None:
    """Raise ValueError for a key that some store could not hold."""
    if not 0 < len(key) <= MAX_KEY_CHARS:
        raise ValueError(f"a key has 1 to {MAX_KEY_CHARS} characters, not {len(key)}")
