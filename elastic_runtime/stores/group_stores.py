"""The stores that groups of processes find under MASTER_PORT: a fresh one for each, on its first rank's node.

torch's names for keys carry no generation, so no two groups may share one.
"""

from __future__ import annotations

from datetime import timedelta

from torch.distributed import TCPStore

from elastic_runtime.stores.resolver import without_dns

KEPT = 3  # of a group that ends, of one that starts, and of the one to come


class GroupStores:
    def __init__(self, *, timeout_s: float) -> None:
        self._limit = timedelta(seconds=timeout_s)
        self._stores: list[TCPStore] = []

    def open(self) -> int:
        """Serve another one; returns its port. Not for an event loop: torch may take its time."""
        with without_dns():
            store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=self._limit)
        self._stores = [*self._stores, store][-KEPT:]
        port: int = store.port
        return port

    def close(self) -> None:
        self._stores.clear()
