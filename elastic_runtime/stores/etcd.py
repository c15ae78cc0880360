"""The store in etcd, for jobs whose coordinator may move: what it holds outlives every node of the job.

Versions are etcd's own. A swap is one transaction, a read is linearizable, a wait is a watch. The client that the
package `etcd3` contains knows one endpoint, no fail-over and no expiry of tokens, so only its messages and stubs are
used. It is imported when a store is opened.
"""

from __future__ import annotations

import json
import queue
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NoReturn

from elastic_runtime.errors import ConfigurationError, StoreError
from elastic_runtime.stores import etcd_documents
from elastic_runtime.stores.base import Entry, check_key, encode
from elastic_runtime.stores.etcd_connection import Address
from elastic_runtime.stores.etcd_greeting import greet
from elastic_runtime.stores.etcd_lease import LeaseKeeper
from elastic_runtime.stores.etcd_members import Members
from elastic_runtime.stores.etcd_protobuf import load
from elastic_runtime.stores.etcd_seat import EtcdSeat
from elastic_runtime.stores.etcd_watch import RANGE, Watch, Watcher
from elastic_runtime.stores.security import Security

__all__ = ["EtcdSeat", "EtcdStore", "Security", "connect"]

_TXN = attrgetter("kv.Txn")


class EtcdStore:
    """A handle on etcd; made by `connect`. See `base.Store` for the contract.

    A process that forks without an exec must not use its parent's handle; children that are executed are fine.
    """

    def __init__(self, members: Members, *, prefix: str, writer: str) -> None:
        self._members = members
        self._rpc = members.rpc
        self._prefix = prefix
        self._writer = writer
        self._watcher = Watcher(members)
        self._keeper = LeaseKeeper(members)

    @property
    def writer(self) -> str:
        return self._writer

    def get(self, key: str) -> Entry | None:
        kv, _ = self.read(self._key(key))
        return None if kv is None else etcd_documents.entry(kv)

    def swap(self, key: str, value: Mapping[str, Any], version: int) -> tuple[bool, Entry]:
        place, text, nonce, rpc = self._key(key), encode(value), etcd_documents.new_nonce(), self._rpc
        as_it_was = rpc.Compare(key=place, target=rpc.Compare.VERSION, result=rpc.Compare.EQUAL, version=version)
        document = etcd_documents.written(text, writer=self._writer, nonce=nonce)
        put = rpc.RequestOp(request_put=rpc.PutRequest(key=place, value=document))
        look = rpc.RequestOp(request_range=rpc.RangeRequest(key=place))
        answer = self._members.call(_TXN, rpc.TxnRequest(compare=[as_it_was], success=[put], failure=[look]))
        if answer.response.succeeded:
            return True, Entry(value=json.loads(text), version=version + 1, writer=self._writer)
        kvs = answer.response.responses[0].response_range.kvs
        standing = kvs[0] if kvs else None
        if answer.retried and standing is not None and standing.version > version:
            successor = self._past(standing, version + 1)
            if etcd_documents.read(successor).nonce == nonce:
                return True, etcd_documents.entry(successor)  # an attempt that was not answered has won
        return False, etcd_documents.entry(standing)

    def wait(self, key: str, newer_than: int, timeout_s: float) -> Entry | None:
        came, kv = self.wait_until(
            self._key(key), timeout_s, lambda kv: kv is not None and bool(kv.version > newer_than)
        )
        return etcd_documents.entry(kv) if came else None

    def watch(self, key: str, callback: Callable[[Entry | None], None]) -> Callable[[], None]:
        """Call back with the entry under `key` if there is one, then with each later one; None for a deletion.

        All callbacks of a handle come from one thread, which they must not hold up. After an outage those that were
        missed follow, or, where etcd has compacted them away, the last of them. Returns what stops it, at once; a
        callback that is under way goes on. Raises StoreError if the store does not answer now.
        """
        kv, revision = self.read(place := self._key(key))

        def show(kv: Any) -> None:
            callback(None if kv is None else etcd_documents.entry(kv))

        # From the change that made the present entry on, so that this one comes by the same way as its successors.
        start = revision + 1 if kv is None else kv.mod_revision
        watch = Watch(key=place, start=start, on_change=show)
        self._watcher.add(watch)
        return lambda: self._watcher.remove(watch)

    def seat(self, key: str, ttl_s: float) -> EtcdSeat:
        """The seat under `key`, which whoever holds it loses after `ttl_s` seconds of silence.

        `ttl_s` counts in whole seconds, rounded down; raises ValueError below 2, the least that etcd grants. etcd looks
        for leases that ran out twice a second, and gives all of them their full time again when its leader changes.
        Closing the store gives no seat up: it is lost by silence then.
        """
        return EtcdSeat(self, self._members, self._keeper, key=self._key(key), ttl_s=ttl_s, writer=self._writer)

    def close(self) -> None:
        self._members.close()
        self._keeper.close()
        self._watcher.close()

    # -- for seats, too: keys and records as they are in etcd ----------------------------------------------------------

    def read(self, key: bytes, *, at: int = 0) -> tuple[Any, int]:
        """The record under a full key, None if there is none, and the store's revision. `at`: as it was then."""
        response = self._members.call(RANGE, self._rpc.RangeRequest(key=key, revision=at)).response
        return (response.kvs[0] if response.kvs else None), response.header.revision

    def wait_until(self, key: bytes, timeout_s: float, wanted: Callable[[Any], bool]) -> tuple[bool, Any]:
        """Block until the record under a full key (None: none) is `wanted`. (False, None) after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        kv, _ = self.read(key)
        if wanted(kv) or timeout_s <= 0:
            return (True, kv) if wanted(kv) else (False, None)
        news: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()  # each returns a record, or raises
        watch = Watch(
            key=key,
            start=0,
            on_created=lambda: news.put(lambda: self.read(key)[0]),
            on_change=lambda kv: news.put(lambda: kv),
            on_outage=lambda error: news.put(lambda: _raise(error)),
        )
        self._watcher.add(watch)
        try:
            while True:
                left_s = max(0.0, min(deadline - time.monotonic(), threading.TIMEOUT_MAX))
                kv = news.get(timeout=left_s)()
                if wanted(kv):
                    return True, kv
        except queue.Empty:
            return False, None
        finally:
            self._watcher.remove(watch)

    def _past(self, standing: Any, version: int) -> Any:
        """The record that once had this version, of which `standing` is a successor. StoreError if it is compacted."""
        first, last, kv = standing.create_revision, standing.mod_revision, standing
        while kv.version != version:  # versions grow with revisions, so halve what is left of these
            at = (first + last) // 2
            kv, _ = self.read(standing.key, at=at)
            if kv.version < version:
                first = at + 1
            else:
                last = kv.mod_revision - 1
        return kv

    def _key(self, key: str) -> bytes:
        check_key(key)
        return (self._prefix + key).encode()


def connect(
    endpoints: Sequence[Address],
    *,
    prefix: str,
    timeout_s: float,
    writer: str | None = None,
    call_limit_s: float = 5.0,
    security: Security = Security(),  # noqa: B008 (frozen)
) -> EtcdStore:
    """Connect to the etcd whose members answer at `endpoints`, (host, port) each, any one of which will do.

    All keys lie under `prefix`. `timeout_s`: how late etcd may be; `call_limit_s`: after how much silence a call fails,
    shared among the members. Raises StoreError if no member answers in time, and ConfigurationError, with a remedy, for
    what no waiting mends: something else at the port, TLS on one side only, a certificate, a user, a version below 3.4.
    """
    if not endpoints:
        raise ConfigurationError("no endpoint of etcd is given")
    members = Members(load(), endpoints, security, call_limit_s=call_limit_s)
    try:
        greet(members, prefix=prefix, timeout_s=timeout_s)
    except BaseException:
        members.close()
        raise
    return EtcdStore(members, prefix=prefix, writer=writer or uuid.uuid4().hex)


def _raise(error: StoreError) -> NoReturn:
    raise StoreError(str(error)) from error  # one of its own for each thread
