"""How many of a node's workers may be replaced, and when a failure is not worth another try."""

from __future__ import annotations

from dataclasses import dataclass, field

PER_SLOT = 3
WINDOW_S = 600.0


@dataclass(slots=True)
class Restarts:
    """`limit` restarts in all. None: 3 per slot in any 10 minutes for an elastic job, none for another."""

    slots: int
    limit: int | None
    spent: int = 0
    _times: list[float] = field(default_factory=list)
    _failures: set[tuple[str, int]] = field(default_factory=set)

    def budget(self, *, elastic: bool) -> int:
        if self.limit is not None:
            return self.limit
        return PER_SLOT * self.slots if elastic else 0

    def spend(self, now: float, *, elastic: bool) -> bool:
        """Take one restart. False: there is none left, and none was taken."""
        self._times = [t for t in self._times if t > now - WINDOW_S]
        used = len(self._times) if self.limit is None else self.spent
        if used >= self.budget(elastic=elastic):
            return False
        self._times.append(now)
        self.spent += 1
        return True

    def is_the_same_again(self, error: str, step: int) -> bool:
        """Whether a worker of this node failed with this very error at this step before: a third try would too."""
        again = (error, step) in self._failures
        self._failures.add((error, step))
        return again
