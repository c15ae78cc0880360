"""What the store keeps of the membership: enough for a successor of the coordinator to go on from.

One document, replaced at each generation; it grows with the world and never with history. Everything else a successor
learns from the nodes' records when they connect to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from elastic_runtime.core.view import Generation
from elastic_runtime.core.world import NodeRecord, WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """`closed`: exit code and reason once the job has ended. `target`: at most so many nodes take part (a resize)."""

    generation: Generation = Generation()
    previous: Generation = Generation()  # settled before it; the last one that trained, if somebody adopted it
    trained: Generation = Generation()  # the last one that was known to train when this was written
    seniority: Mapping[WorkerId, int] = field(default_factory=dict)
    used_ports: Mapping[str, int] = field(default_factory=dict)
    nodes: tuple[str, ...] = ()  # that were here
    target: int | None = None
    closed: tuple[int, str] | None = None


def last_trained(handover: Handover, nodes: Iterable[NodeRecord]) -> Generation:
    """The last generation before the settled one that trained, now that its members were heard."""
    adopted = {record.worker_id(w): w.adopted for record in nodes for w in record.workers}
    number = handover.previous.number
    entered = any(adopted.get(worker, 0) >= number for worker in handover.previous.world)
    return handover.previous if entered else handover.trained


STILL_COMING_S = 1.0


@dataclass(slots=True)
class Gathering:
    """A new coordinator waits for the nodes that the one before knew: until a time, and as long as they come one upon
    the other, for thousands take longer than one that is dead deserves. Some have a time of their own."""

    handover: Handover | None = None  # None: nobody is waited for
    until: float = 0.0
    awaited: dict[str, float | None] = field(default_factory=dict)  # until its own time, if it has one
    lost: dict[str, str] = field(default_factory=dict)  # who will not come, and why
    unexpected: list[str] = field(default_factory=list)  # told nothing yet: the run may prove to be abandoned

    def expects(self, node: str) -> bool:
        return node in self.awaited

    def arrived(self, node: str, now: float) -> None:
        if node in self.awaited:
            del self.awaited[node]
            self.until = max(self.until, now + STILL_COMING_S)

    def give_up_late(self, now: float) -> None:
        """Those whose time is over are waited for no longer."""
        late = [node for node in self.awaited if now >= self._until(node)]
        for node in late:
            del self.awaited[node]
            self.lost[node] = "did not come to the new coordinator"

    def next_look(self) -> float | None:
        return min(map(self._until, self.awaited), default=None)

    def _until(self, node: str) -> float:
        own = self.awaited[node]
        return self.until if own is None else own
