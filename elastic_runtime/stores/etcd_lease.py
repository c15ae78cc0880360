"""Keeps the leases of one handle alive, in one thread: without it a lease ends, and what is bound to it goes."""

from __future__ import annotations

import threading
import time
from operator import attrgetter

from elastic_runtime.errors import StoreError
from elastic_runtime.stores.etcd_connection import Refused
from elastic_runtime.stores.etcd_members import Members

LEAST_TTL_S = 2  # etcd grants no shorter one with its usual settings
RENEWALS = 3  # in the time that a lease lasts
RETRY_S = 0.2

_GRANT = attrgetter("lease.LeaseGrant")
_REVOKE = attrgetter("lease.LeaseRevoke")


class LeaseKeeper:
    """The thread starts with the first lease and ends with `close`, which ends no lease: they run out."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._changed = threading.Condition()
        self._ttl_s: dict[int, int] = {}  # by lease; guarded by the condition, as is all that follows
        self._renewed_at = 0.0
        self._thread: threading.Thread | None = None
        self._closed = False

    def grant(self, ttl_s: int) -> int:
        """A new lease, kept alive from now on. etcd may grant a longer time than `ttl_s`."""
        response = self._members.call(_GRANT, self._members.rpc.LeaseGrantRequest(TTL=ttl_s)).response
        with self._changed:
            if not self._ttl_s:
                self._renewed_at = time.monotonic()
            self._ttl_s[response.ID] = response.TTL
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="etcd-lease", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return int(response.ID)

    def revoke(self, lease: int) -> None:
        """End a lease at once, with the keys bound to it; one that has ended is none to complain of.

        Raises StoreError if etcd does not answer; the lease runs out then.
        """
        with self._changed:
            self._ttl_s.pop(lease, None)
        try:
            self._members.call(_REVOKE, self._members.rpc.LeaseRevokeRequest(ID=lease))
        except Refused as error:
            if "lease not found" not in str(error):
                raise

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._closed and (due_s := self._until_due_s()) != 0.0:
                    self._changed.wait(due_s)
                if self._closed:
                    return
                leases = list(self._ttl_s)
                left_s = min(self._ttl_s.values()) * (RENEWALS - 1) / RENEWALS
            began = time.monotonic()
            try:
                renewed = self._renew(leases, min(left_s, self._members.call_limit_s))
            except StoreError:
                with self._changed:  # it may still be alive when the store is back, so this never gives up
                    self._changed.wait_for(lambda: self._closed, RETRY_S)
                continue
            with self._changed:
                self._renewed_at = began
                for lease in leases:
                    if renewed.get(lease, 0) <= 0:  # it has ended, and nothing is made again silently
                        self._ttl_s.pop(lease, None)

    def _renew(self, leases: list[int], limit_s: float) -> dict[int, int]:
        answer = self._members.attempt(lambda at, share_s: at.keep_alive(leases, share_s), limit_s=limit_s)
        left_s: dict[int, int] = answer.response
        return left_s

    def _until_due_s(self) -> float | None:
        """None: there is nothing to renew."""
        if not self._ttl_s:
            return None
        return max(0.0, self._renewed_at + min(self._ttl_s.values()) / RENEWALS - time.monotonic())
