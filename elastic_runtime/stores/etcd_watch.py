"""All watches of one handle, on one stream and in one thread.

A watch knows the revision it has seen, so that after an outage, on whichever member, it misses nothing; where etcd has
compacted that revision away, or began anew, the key is read again. Values are not understood here.
"""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from elastic_runtime.errors import StoreError
from elastic_runtime.stores.etcd_connection import Connection, Retryable, WatchStream
from elastic_runtime.stores.etcd_members import Members

REOPEN_PAUSE_S = 0.5

RANGE = attrgetter("kv.Range")


@dataclass(eq=False, slots=True, kw_only=True)
class Watch:
    """What to see: every change of `key` from revision `start` on. The rest is the watcher's.

    With `start` 0: from the moment on at which `on_created()` is called, once. To read the key then is faster than to
    start at an earlier revision, which etcd looks after ten times a second only.
    `on_change(kv)`: etcd's record, None for a deletion. `on_outage(error)`: the watch could not be had for as long as a
    call may take, or is refused, or the handle is closed; unless that, it goes on trying. All are called from the
    watcher's thread, except that `close` and `add` report a closed handle from theirs.
    """

    key: bytes
    start: int
    on_change: Callable[[Any], None]
    on_outage: Callable[[StoreError], None] | None = None
    on_created: Callable[[], None] | None = None
    seen: int = 0  # the revision of the entry seen last; 0: there was none
    number: int | None = None  # on the present stream
    refusals: int = 0
    stopped: bool = False


class Watcher:
    """The thread starts with the first watch and ends with `close`."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._rpc = members.rpc
        self._changed = threading.Condition()
        self._watches: list[Watch] = []  # guarded by the condition, as is all that follows
        self._by_number: dict[int, Watch] = {}
        self._asked: deque[Watch] = deque()  # in the order in which the stream is going to answer
        self._requests: queue.SimpleQueue[Any] | None = None  # of the present stream
        self._stream: WatchStream | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, watch: Watch) -> None:
        with self._changed:
            closed = self._closed
            if not closed:
                self._watches.append(watch)
                self._ask(watch)
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="etcd-watch", daemon=True)
                    self._thread.start()
                self._changed.notify_all()
        if closed:
            _tell([watch], _closed())

    def remove(self, watch: Watch) -> None:
        """From now on none of its callbacks is called; one that is under way goes on. May be repeated."""
        with self._changed:
            watch.stopped = True
            with contextlib.suppress(ValueError):
                self._watches.remove(watch)
            if watch.number is not None and self._by_number.pop(watch.number, None) is watch:
                self._cancel(watch.number)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            stream, watches = self._stream, list(self._watches)
            self._changed.notify_all()
        if stream is not None:
            stream.cancel()
        _tell(watches, _closed())

    # -- requests, with the condition held ----------------------------------------------------------------------------

    def _ask(self, watch: Watch) -> None:
        if self._requests is not None:
            create = self._rpc.WatchCreateRequest(key=watch.key, start_revision=watch.start)
            self._asked.append(watch)
            self._requests.put(self._rpc.WatchRequest(create_request=create))

    def _cancel(self, number: int) -> None:
        if self._requests is not None:
            cancel = self._rpc.WatchCancelRequest(watch_id=number)
            self._requests.put(self._rpc.WatchRequest(cancel_request=cancel))

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._watches)
                if self._closed:
                    return
                first = self._watches[0].key
            try:
                # Whoever answers this is alive and has the majority, which a stream that merely opens does not say.
                answer = self._members.call(RANGE, self._rpc.RangeRequest(key=first, keys_only=True))
                self._check_history(answer.response.header.revision)
                worked = self._serve(answer.connection)
            except StoreError as error:
                worked = False
                with self._changed:
                    watches = [] if self._closed else list(self._watches)
                _tell(watches, error)
            if not worked:
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, REOPEN_PAUSE_S)

    def _serve(self, connection: Connection) -> bool:
        """Have all watches on one stream until it ends. Returns whether it ever answered."""
        requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        try:
            stream = connection.watch(iter(requests.get, None), self._members.call_limit_s)
        except Retryable:
            self._members.leave(connection)  # if another thread has not done so
            return False
        worked = False
        try:
            with self._changed:
                if self._closed:
                    return True
                self._requests, self._stream = requests, stream
                for watch in self._watches:
                    self._ask(watch)
            for response in stream:
                worked = self._take(response, connection) or worked
        except Retryable:
            self._members.leave(connection)  # and go on at once where another answers
        finally:
            stream.cancel()
            requests.put(None)  # ends gRPC's thread that reads them
            with self._changed:
                self._requests = self._stream = None
                self._by_number.clear()
                self._asked.clear()
                for watch in self._watches:
                    watch.number = None
        return worked

    def _take(self, response: Any, connection: Connection) -> bool:
        """Act on a response. False if it is a refusal."""
        with self._changed:
            watch = self._asked.popleft() if response.created else self._by_number.get(response.watch_id)
            if watch is None:
                return True  # on its way when the watch was cancelled
            if response.canceled:
                self._by_number.pop(response.watch_id, None)
                watch.number = None
            elif response.created and watch.stopped:
                self._cancel(response.watch_id)
            elif response.created:
                self._by_number[response.watch_id] = watch
                watch.number, watch.refusals = response.watch_id, 0
        if response.compact_revision:
            self._read_again(watch)
            with self._changed:
                if not watch.stopped:
                    self._ask(watch)
        elif response.canceled:
            self._refused(watch, response.cancel_reason, connection)
            return False
        elif response.created and watch.start == 0:
            watch.start = response.header.revision + 1
            if watch.on_created is not None:
                watch.on_created()
        for event in response.events:
            watch.start = event.kv.mod_revision + 1
            self._show(watch, None if event.type == event.DELETE else event.kv)
        return True

    def _refused(self, watch: Watch, reason: str, connection: Connection) -> None:
        watch.refusals += 1
        if watch.refusals > 1:  # the first may be of a stream whose token had expired
            _tell([watch], StoreError(f"etcd at {connection.address} refuses to watch: {reason}"))
        self._members.leave(connection)  # which ends the stream, and with it the use of its token

    def _check_history(self, revision: int) -> None:
        """Look anew at what was seen later than the present revision: the store began anew."""
        with self._changed:
            ahead = [watch for watch in self._watches if watch.start > revision + 1]
        for watch in ahead:
            self._read_again(watch)

    def _read_again(self, watch: Watch) -> None:
        response = self._members.call(RANGE, self._rpc.RangeRequest(key=watch.key)).response
        watch.start = response.header.revision + 1
        kv = response.kvs[0] if response.kvs else None
        if (kv.mod_revision if kv else 0) != watch.seen:
            self._show(watch, kv)

    def _show(self, watch: Watch, kv: Any) -> None:
        watch.seen = kv.mod_revision if kv is not None else 0
        if watch.stopped:
            return
        try:
            watch.on_change(kv)
        except Exception:
            # A bug of whoever watches: reported as one in a thread of theirs would be, and the others go on.
            self.remove(watch)
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))


def _tell(watches: list[Watch], error: StoreError) -> None:
    for watch in watches:
        if watch.on_outage is not None and not watch.stopped:
            watch.on_outage(error)


def _closed() -> StoreError:
    return StoreError("this handle on the store is closed")
