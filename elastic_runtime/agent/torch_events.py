"""What torchrun tells torch's own event log and metrics, for those who collect them: the same names and fields.

Our own account of a job is its journal.
"""

from __future__ import annotations

import json
import socket
import time
import traceback

from torch.distributed.elastic.events import Event, EventSource, record
from torch.distributed.elastic.metrics import put_metric

from elastic_runtime.agent.failures import Death
from elastic_runtime.core.supervision_events import Announced, Start
from elastic_runtime.core.view import Kind

NOBODY = "null"


class TorchEvents:
    def __init__(
        self, destination: str, *, run_id: str, role: str, entrypoint: str, backend: str, max_restarts: int
    ) -> None:
        self._destination = destination
        self._run_id, self._role, self._entrypoint, self._backend = run_id, role, entrypoint, backend
        self._max_restarts, self._restarts = max_restarts, 0
        self._host = "" if destination == NOBODY else socket.getfqdn()  # which may take its time
        self._began = self._waiting_since = time.monotonic()
        self._node_rank, self._node_count, self._world_size = 0, 0, 0

    def settled(self, announced: Announced) -> None:
        self._node_count, self._world_size = announced.node_count, announced.world_size
        for place in announced.members.values():
            self._node_rank = place.node_rank
        if announced.kind is Kind.START:
            took_s = time.monotonic() - self._waiting_since
            self._record("RENDEZVOUS", EventSource.AGENT, duration_ms=took_s * 1000)
            self._record("ASSIGN_WORKER_RANKS", EventSource.AGENT, duration_ms=0.0)  # they came with the world

    def started(self, start: Start, rank: int | None, pid: int) -> None:
        self._restarts = start.restarts
        self._worker("START", start.slot, rank, pid)
        self._measure("remaining_restarts", max(0, self._max_restarts - self._restarts))
        self._measure("healthy", 1)

    def ended(self, death: Death) -> None:
        self._waiting_since = time.monotonic()
        state = "FAILED" if death.is_failure else "TERMINATED" if death.exit_code else "SUCCEEDED"
        raw_error = None
        if death.is_failure:
            raw_error = death.recorded() or json.dumps({"message": "<NONE>"})
        self._worker(state, death.slot, death.rank, death.pid, exit_code=death.exit_code, raw_error=raw_error)
        self._measure("remaining_restarts", max(0, self._max_restarts - self._restarts))
        self._measure("failed" if death.is_failure else "succeeded", 1)

    def finished(self, exit_code: int) -> None:
        """The agent ended in its own time; whether its workers failed is their events' to say."""
        by_signal = exit_code > 128
        raw_error = f"ended by signal {exit_code - 128}" if by_signal else None
        self._record("FAILED" if by_signal else "SUCCEEDED", EventSource.AGENT, raw_error=raw_error)
        failed, again = exit_code != 0, self._restarts > 0
        self._measure("run_total", 1)
        for name, holds in (
            ("run_success_with_retries", not failed and again),
            ("run_success_no_retries", not failed and not again),
            ("run_failed_with_retries", failed and again),
            ("run_failed_no_retries", failed and not again),
        ):
            self._measure(name, int(holds))
        left = (max(0, self._max_restarts - self._restarts) + 1) / (self._max_restarts + 1)
        self._measure("flakiness", 100 if failed else int(100 - 100 * left))

    def broken(self) -> None:
        """The agent ends by the exception that is being handled."""
        self._record("FAILED", EventSource.AGENT, raw_error=traceback.format_exc())

    def _measure(self, name: str, value: int) -> None:
        put_metric(f"workers.{self._role}.{name}", value)

    def _worker(
        self,
        state: str,
        slot: int,
        rank: int | None,
        pid: int,
        *,
        exit_code: int | None = None,
        raw_error: str | None = None,
    ) -> None:
        # torchrun has each of these in a list of one.
        own: dict[str, list[int | None]] = {
            "local_rank": [slot],
            "role_rank": [rank],
            "role_world_size": [self._world_size],
            "exit_code": [exit_code if raw_error else None],
            "worker_pid": [pid if raw_error else None],
        }
        self._record(state, EventSource.WORKER, own=own, rank=rank, worker_id=str(pid), raw_error=raw_error)

    def _record(
        self,
        state: str,
        source: EventSource,
        *,
        own: dict[str, list[int | None]] | None = None,
        rank: int | None = None,
        worker_id: str | None = None,
        raw_error: str | None = None,
        duration_ms: float | None = None,
    ) -> None:
        if self._destination == NOBODY:
            return
        details = {"group_world_size": self._node_count, "entry_point": self._entrypoint, **(own or {})}
        event = Event(
            name=f"torchelastic.worker.status.{state}",
            source=source,
            metadata={
                "run_id": self._run_id,
                "global_rank": rank,
                "group_rank": self._node_rank,
                "worker_id": worker_id,
                "role": self._role,
                "hostname": self._host,
                "state": state,
                "total_run_time": int(time.monotonic() - self._began),
                "rdzv_backend": self._backend,
                "raw_error": raw_error,
                "metadata": json.dumps(details),
                "agent_restarts": self._restarts,
                "duration_ms": duration_ms,
            },
        )
        record(event, self._destination)
