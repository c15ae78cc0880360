"""Who may take part in a job at all."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from elastic_runtime.core.coordinator_events import Evict
from elastic_runtime.core.world import NodeRecord, WorkerId, WorkerPhase


def turn_away(
    record: NodeRecord, nodes: Mapping[str, NodeRecord], world: Collection[WorkerId], *, expected: bool
) -> Evict | None:
    """Why this node may not take part, None if it may.

    `nodes` are here, `world` are the members that train, `expected` says whether this node belongs to the job already.
    """
    if other := next((n.front for n in nodes.values() if n.front != record.front), None):
        reason = f"it was started by {record.front} and the job by {other}: choose another --rdzv-id"
        return Evict(record.node, reason, exit_code=2)
    if not expected and (record.group > 0 or any(worker.adopted for worker in record.workers)):
        return Evict(record.node, "its workers were of a world, and the job went on without them", rejoin=True)
    ours = {w.constants for n in nodes.values() for w in n.workers if n.worker_id(w) in world and w.constants}
    theirs = {w.constants for w in record.workers if w.phase is WorkerPhase.READY}
    if ours and not theirs <= ours:
        reason = "its Session's arguments, torch or CPU differ from the running job's"
        return Evict(record.node, reason, exit_code=2)
    return None
