"""Who may take part in a job at all."""

from __future__ import annotations

from collections.abc import Collection

from elastic_runtime.core.world import NodeRecord, WorkerId, WorkerPhase

FOREIGN = "its Session's arguments, torch or CPU differ from the running job's"


def other_front(record: NodeRecord, nodes: Collection[NodeRecord]) -> str:
    """Why this node's launcher does not fit those that are here; empty if it does."""
    theirs = next((node.front for node in nodes if node.front != record.front), None)
    if theirs is None:
        return ""
    return f"it was started by {record.front} and the job by {theirs}: choose another --rdzv-id"


def took_part(record: NodeRecord) -> bool:
    """Whether its workers were of a world. If nobody expects it, that world went on without it."""
    return record.group > 0 or any(worker.adopted for worker in record.workers)


def is_foreign(record: NodeRecord, nodes: Collection[NodeRecord], world: Collection[WorkerId]) -> bool:
    """Whether a newcomer's workers were given other constants than those of the live world."""
    ours = {w.constants for n in nodes for w in n.workers if n.worker_id(w) in world and w.constants}
    theirs = {w.constants for w in record.workers if w.phase is WorkerPhase.READY}
    return bool(ours) and not theirs <= ours
