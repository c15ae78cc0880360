"""The handover in the store, as one coordinator reads and replaces it. Its methods block.

Compare-and-set is the fence: whoever has written last has the only version that the next write can replace.
"""

from __future__ import annotations

from elastic_runtime.core.handover import Handover
from elastic_runtime.errors import StoreError
from elastic_runtime.rendezvous.documents import handover_from_json, handover_to_json
from elastic_runtime.rendezvous.find import GENERATION
from elastic_runtime.stores.base import NOTHING, Store

FENCE_TRIES = 10


class KeptHandover:
    """Every method raises StoreError if the store does not answer: then it may or may not have written."""

    def __init__(self, store: Store, token: str) -> None:
        self._store, self._token = store, token
        self._version = 0

    def fence(self) -> Handover:
        """Read what the coordinator before has left, and write it again: from now on its writes lose."""
        for _ in range(FENCE_TRIES):
            entry = self._store.get(GENERATION) or NOTHING
            left = handover_from_json(entry.value) if entry.version else Handover()
            won, after = self._store.swap(GENERATION, self._document(left), entry.version)
            if won:
                self._version = after.version
                return left
        raise StoreError("others keep writing the generations of this job")

    def replace(self, handover: Handover) -> bool:
        """Write. False: another coordinator has fenced this one off."""
        won, entry = self._store.swap(GENERATION, self._document(handover), self._version)
        if not won and entry.writer == self._store.writer:  # on top of an own write whose answer was lost
            won, entry = self._store.swap(GENERATION, self._document(handover), entry.version)
        if won:
            self._version = entry.version
        return won

    def _document(self, handover: Handover) -> dict[str, object]:
        return {"token": self._token, **handover_to_json(handover)}
