"""The membership as a rendezvous of stock torchrun, which finds it by the entry points `elastic` and `etcd3`.

    torchrun --rdzv-backend=etcd3 --rdzv-endpoint=h1:2379,h2:2379 --rdzv-id=job1 --nnodes=1:4 train.py
    torchrun --rdzv-backend=elastic --rdzv-endpoint=HOST:29400 --rdzv-id=job1 --nnodes=1:4 train.py

torch calls from its main thread; the node itself (`torch_node`) lives on an event loop in a thread of its own, which
begins with the first rendezvous.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousHandler,
    RendezvousHandlerCreator,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousTimeoutError,
)

from elastic_runtime.core.view import Policy
from elastic_runtime.errors import ConfigurationError, StoreError
from elastic_runtime.rendezvous import conf
from elastic_runtime.rendezvous.find import Backend
from elastic_runtime.rendezvous.torch_node import NodeSettings, TorchNode
from elastic_runtime.stores.tcp_client import quiet_torch_log

T = TypeVar("T")

LAST_CALL_S = 3.0  # longer than for Sessions, whose later joins cost no restart
JOIN_TIMEOUT_S = 600.0
DEAD_AFTER_S = 3.0
LEAVE_S = 15.0  # for the goodbye, after which the process ends without it


def elastic() -> RendezvousHandlerCreator:
    return create_elastic


def etcd3() -> RendezvousHandlerCreator:
    return create_etcd3


def create_elastic(parameters: RendezvousParameters) -> RendezvousHandler:
    """The store is served by one of the agents, as torchrun's c10d has it."""
    return _create("tcp", parameters)


def create_etcd3(parameters: RendezvousParameters) -> RendezvousHandler:
    """The store is an etcd v3 cluster."""
    return _create("etcd3", parameters)


def _create(backend: Backend, parameters: RendezvousParameters) -> RendezvousHandler:
    """Raises ConfigurationError for what cannot work; nothing is started and nobody is asked before the first use."""
    given = parameters.config
    conf.check_keys(given, "dead_after")
    last_call_s = conf.seconds(given, "last_call_timeout", LAST_CALL_S)
    policy = Policy(
        min_nodes=parameters.min_nodes,
        max_nodes=parameters.max_nodes,
        last_call_s=last_call_s,
        start_grace_s=last_call_s,  # after a start newcomers wait so long for each other: they cost everybody a restart
        join_timeout_s=conf.seconds(given, "join_timeout", JOIN_TIMEOUT_S, least=1.0),
    )
    rendezvous = conf.rendezvous(backend, parameters.endpoint, parameters.run_id, given)
    silent_after_s = conf.seconds(given, "dead_after", DEAD_AFTER_S, least=0.1)
    if not parameters.run_id:
        raise ConfigurationError("--rdzv-id is empty: it names the job")
    if backend == "etcd3":
        import elastic_runtime.stores.etcd  # noqa: F401  its absence is told before anything is started
    settings = NodeSettings(
        rendezvous=rendezvous,
        policy=policy,
        local_addr=parameters.local_addr,
        silent_after_s=silent_after_s,
    )
    return ElasticRendezvousHandler(parameters.backend, settings)


class ElasticRendezvousHandler(RendezvousHandler):
    """See torch's class for what is asked of each method. All of them are for one thread."""

    def __init__(self, backend: str, settings: NodeSettings) -> None:
        self._backend, self._settings = backend, settings
        self._process = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event
        self._node: TorchNode | None = None
        self._run_dir: Path | None = None
        self._is_shut = False

    @property
    def use_agent_store(self) -> bool:
        """The workers of a group meet at a store that the first node's handler serves, a fresh one for each group."""
        return True

    def get_backend(self) -> str:
        return self._backend

    def get_run_id(self) -> str:
        return self._settings.rendezvous.run_id

    def next_rendezvous(self) -> RendezvousInfo:
        if self._is_shut:
            raise RendezvousClosedError("this rendezvous was shut down")
        limit_s = self._settings.policy.join_timeout_s
        try:
            return self._ask(self._next(limit_s))
        except TimeoutError:
            raise RendezvousTimeoutError(f"no group with this node was formed within {limit_s:g} s") from None
        except StoreError as error:
            raise RendezvousConnectionError(str(error)) from error

    def is_closed(self) -> bool:
        return self._node is not None and self._node.closed is not None

    def set_closed(self) -> None:
        if self._node is not None and not self._is_shut:
            self._ask(self._node.end_job(0, f"{self._node.node} has closed it"), LEAVE_S)

    def num_nodes_waiting(self) -> int:
        """1 if there is a reason to restart, whatever it is: that is all that torch's agent does about it."""
        return int(self._node is not None and not self._is_shut and self._node.waits)

    def shutdown(self) -> bool:
        """End the job for everybody, if this node is in its group and its workers are done or failed for the last time.

        One that found no place, or whose agent dies of an error of its own, only leaves. torch calls this while such an
        error passes by, and says nothing of it.
        """
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

        error = sys.exception()
        return self._leave(ends_job=error is None or isinstance(error, ChildFailedError))

    # -- the other thread ---------------------------------------------------------------------------------------------

    def _ask(self, coroutine: Coroutine[Any, Any, T], limit_s: float | None = None) -> T:
        """Have it run on the loop. Signals are still seen here: what they raise cancels it."""
        answer = asyncio.run_coroutine_threadsafe(coroutine, self._loop or self._start())
        try:
            return answer.result(limit_s)
        except BaseException:
            answer.cancel()
            raise

    def _start(self) -> asyncio.AbstractEventLoop:
        quiet_torch_log()  # this process is torch's agent: it starts the user's code in others
        ready: Future[asyncio.AbstractEventLoop] = Future()

        async def serve() -> None:
            self._stop = asyncio.Event()
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(self._on_bug)
            ready.set_result(loop)
            await self._stop.wait()

        threading.Thread(target=lambda: asyncio.run(serve()), name="torchrun-membership", daemon=True).start()
        self._loop = ready.result()
        # Before the interpreter waits for threads, of which some are blocked in the store until this node leaves; what
        # `atexit` itself offers comes after that.
        getattr(threading, "_register_atexit", atexit.register)(self._on_exit)
        return self._loop

    def _on_bug(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        loop.default_exception_handler(context)
        if self._node is not None:
            self._node.fail(context.get("exception") or RuntimeError(context["message"]))

    def _on_exit(self) -> None:
        """torch's agent ends without `shutdown` after a signal, so that the others go on."""
        if os.getpid() == self._process:  # not in a worker that was forked
            with suppress(Exception):
                self._leave(ends_job=False)

    # -- on the loop --------------------------------------------------------------------------------------------------

    async def _next(self, limit_s: float) -> RendezvousInfo:
        async with asyncio.timeout(limit_s):
            while True:
                if self._node is None:
                    self._run_dir = self._run_dir or Path(tempfile.mkdtemp(prefix="torchrun_"))
                    self._node = TorchNode(self._settings, self._run_dir / "journal.jsonl")
                    await self._node.join()
                try:
                    return await self._node.next_group()
                except RendezvousError:
                    if self._node.over is None or not self._node.over.rejoins:
                        raise
                await self._node.leave()
                self._node = None  # the job went on without it: it comes back as another one

    def _leave(self, *, ends_job: bool) -> bool:
        if self._is_shut or self._loop is None:
            return True
        self._is_shut = True
        try:
            self._ask(self._go(ends_job=ends_job), LEAVE_S)
        except TimeoutError:
            return False
        finally:
            self._loop.call_soon_threadsafe(self._stop.set)
        return True

    async def _go(self, *, ends_job: bool) -> None:
        node = self._node
        if node is None:
            return
        if ends_job and node.is_member:
            await node.end_job(0, f"{node.node} has ended its part")
        await node.leave()
        if self._run_dir is not None and (node.over is None or not node.over.stops):
            shutil.rmtree(self._run_dir, ignore_errors=True)
