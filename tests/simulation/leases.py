"""The leases of one node, kept alive as by a thread of their own while its process runs; see `stores/etcd_lease.py`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from elastic_runtime.stores.etcd_lease import RENEWALS, RETRY_S
from tests.simulation.store import StoreOut

if TYPE_CHECKING:
    from tests.simulation.agent import Agent


class Leases:
    """Of a holding, and of claims that failed and may have succeeded."""

    def __init__(self, agent: Agent) -> None:
        self._agent, self._store, self._clock = agent, agent.cluster.store, agent.cluster.clock
        self._pause_s = agent.cluster.setup.ttl_s / RENEWALS
        self._good: dict[int, None] = {}
        self._keeping = False

    def new(self) -> int:
        lease = self._agent.cluster.next_lease()
        self._good[lease] = None
        if not self._keeping:
            self._keeping = True
            self._clock.after(self._pause_s, self._agent.deliver, self._keep)
        return lease

    def drop(self, lease: int) -> None:
        self._good.pop(lease, None)

    def keep_only(self, lease: int) -> None:
        self._good = {lease: None}

    def revoke_all(self, revoked: Callable[[], object]) -> None:
        leases, self._good = list(self._good), {}

        def answered(_: Any) -> None:
            if leases:
                self._store.revoke(self._agent, leases.pop(), answered)
            else:
                revoked()

        answered(None)

    def _keep(self) -> None:
        self._keeping = bool(self._good)
        for lease in list(self._good):
            self._store.keep(self._agent, lease, partial(self._kept, lease))
        if self._keeping:
            self._clock.after(self._pause_s, self._agent.deliver, self._keep)

    def _kept(self, lease: int, good: bool | StoreOut) -> None:
        if good is False:
            self.drop(lease)  # it has ended, and nothing is made again silently
        elif isinstance(good, StoreOut) and lease in self._good:
            again = partial(self._store.keep, self._agent, lease, partial(self._kept, lease))
            self._clock.after(RETRY_S, self._agent.deliver, again)
