"""Who may take part in a job at all."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from elastic_runtime.core.coordinator_events import Evict
from elastic_runtime.core.view import Generation
from elastic_runtime.core.world import NodeRecord, WorkerPhase


def turn_away(
    record: NodeRecord,
    nodes: Mapping[str, NodeRecord],
    worlds: Collection[Generation],
    *,
    expected: bool,
    stale: bool = False,
) -> Evict | None:
    """Why this node may not take part, None if it may.

    `nodes` are here, `worlds` train, `expected` says whether this node belongs to the job already, `stale` whether
    others may have used its store without its knowledge. One of those that are here speaks for all: none of them was
    turned away.
    """
    if (other := next((n.front for n in nodes.values()), record.front)) != record.front:
        reason = f"it was started by {record.front} and the job by {other}: choose another --rdzv-id"
        return Evict(record.node, reason, exit_code=2)
    if not expected and (record.group > 0 or any(worker.member_of for worker in record.workers)):
        return Evict(record.node, "its workers were of a world, and the job went on without them", rejoin=True)
    if stale:
        return Evict(record.node, "its store was to serve a group that it never heard of", rejoin=True)
    theirs = {w.constants for w in record.workers if w.phase is WorkerPhase.READY}
    if theirs and worlds and (ours := _constants(nodes, worlds)) and theirs != {ours}:
        reason = "its Session's arguments, torch or CPU differ from the running job's"
        return Evict(record.node, reason, exit_code=2)
    return None


def _constants(nodes: Mapping[str, NodeRecord], worlds: Collection[Generation]) -> str:
    """Those of a worker that trains; empty if none is known."""
    training = (
        worker.constants
        for node in nodes.values()
        for worker in node.workers
        if worker.constants and any(node.worker_id(worker) in world for world in worlds)
    )
    return next(training, "")
