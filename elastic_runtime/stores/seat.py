"""A seat on any store: one key, taken by compare-and-set. Nobody loses it by silence, since there are no leases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elastic_runtime.stores.base import Holder, Store


class KeySeat:
    """See `base.Seat`. A term is the key's version. It is never empty again once it was claimed."""

    def __init__(self, store: Store, key: str) -> None:
        self._store, self._key = store, key

    def holder(self) -> Holder | None:
        entry = self._store.get(self._key)
        return None if entry is None else Holder(value=entry.value, term=entry.version)

    def wait(self, other_than: int, timeout_s: float) -> tuple[bool, Holder | None]:
        entry = self._store.wait(self._key, other_than, timeout_s)
        return (False, None) if entry is None else (True, Holder(value=entry.value, term=entry.version))

    def claim(self, value: Mapping[str, Any], over: int) -> Holder | None:
        won, entry = self._store.swap(self._key, value, over)
        return Holder(value=entry.value, term=entry.version) if won else None

    def release(self) -> None:
        pass  # it ends with its store
