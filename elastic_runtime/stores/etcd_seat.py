"""A seat in etcd: one key, bound to a lease that its holder's handle keeps alive. Who is silent loses it."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Mapping
from operator import attrgetter
from typing import Any, Protocol

from elastic_runtime.errors import StoreError
from elastic_runtime.stores import etcd_documents
from elastic_runtime.stores.base import Holder, encode
from elastic_runtime.stores.etcd_lease import LEAST_TTL_S, LeaseKeeper
from elastic_runtime.stores.etcd_members import Members

_TXN = attrgetter("kv.Txn")


class Records(Protocol):
    """How a seat reads its key; etcd's records go in and out."""

    def read(self, key: bytes) -> tuple[Any, int]: ...

    def wait_until(self, key: bytes, timeout_s: float, wanted: Any) -> tuple[bool, Any]: ...


class EtcdSeat:
    """See `base.Seat`. Made by `EtcdStore.seat`.

    A term is the revision at which the holder wrote the key, so it grows from one holding to the next. A holder that
    was silent for longer than its lease, such as one that was stopped, is not put back: `holder` shows who is.
    """

    def __init__(
        self, records: Records, members: Members, keeper: LeaseKeeper, *, key: bytes, ttl_s: float, writer: str
    ) -> None:
        if ttl_s < LEAST_TTL_S:
            raise ValueError(f"a seat's time of silence is at least {LEAST_TTL_S} s, not {ttl_s:g}")
        self._records, self._members, self._keeper = records, members, keeper
        self._rpc = members.rpc
        self._key, self._ttl_s, self._writer = key, int(ttl_s), writer
        self._lock = threading.Lock()  # one claim or release at a time
        self._leases: list[int] = []  # of the holding, and of claims that raised and may have succeeded

    def holder(self) -> Holder | None:
        kv, _ = self._records.read(self._key)
        return _holder(kv)

    def wait(self, other_than: int, timeout_s: float) -> tuple[bool, Holder | None]:
        came, kv = self._records.wait_until(self._key, timeout_s, lambda kv: _term(kv) != other_than)
        return (True, _holder(kv)) if came else (False, None)

    def claim(self, value: Mapping[str, Any], over: int) -> Holder | None:
        text = encode(value)
        nonce = etcd_documents.new_nonce()
        with self._lock:
            lease = self._keeper.grant(self._ttl_s)
            self._leases.append(lease)
            document = etcd_documents.written(text, writer=self._writer, nonce=nonce)
            answer = self._members.call(_TXN, self._claiming(document, lease, over))
            if answer.response.succeeded:
                holder: Holder | None = Holder(value=json.loads(text), term=int(answer.response.header.revision))
            else:
                kvs = answer.response.responses[0].response_range.kvs
                unheard = answer.retried and kvs and etcd_documents.read(kvs[0]).nonce == nonce
                holder = _holder(kvs[0]) if unheard else None
            for each in [lease] if holder is None else [each for each in self._leases if each != lease]:
                self._leases.remove(each)
                with contextlib.suppress(StoreError):  # then it runs out
                    self._keeper.revoke(each)
            return holder

    def release(self) -> None:
        with self._lock:
            leases, self._leases = self._leases, []
            for lease in leases:
                self._keeper.revoke(lease)  # deletes the key if it is bound to this lease still

    def _claiming(self, document: bytes, lease: int, over: int) -> Any:
        rpc = self._rpc
        # The revision of the last change, not of the creation: a put over another's holding does not create the key.
        as_it_was = rpc.Compare(key=self._key, target=rpc.Compare.MOD, result=rpc.Compare.EQUAL, mod_revision=over)
        put = rpc.RequestOp(request_put=rpc.PutRequest(key=self._key, value=document, lease=lease))
        look = rpc.RequestOp(request_range=rpc.RangeRequest(key=self._key))
        return rpc.TxnRequest(compare=[as_it_was], success=[put], failure=[look])


def _term(kv: Any) -> int:
    return 0 if kv is None else int(kv.mod_revision)


def _holder(kv: Any) -> Holder | None:
    return None if kv is None else Holder(value=etcd_documents.read(kv).value, term=_term(kv))
