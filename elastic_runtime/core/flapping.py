"""How long a host whose nodes keep being lost stays out.

Each loss of a member costs everybody a change of the world, so a host that fails again and again may not rejoin as
fast as it fails. The first losses are free: a spot instance that is taken once should be back at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

FREE_LOSSES = 2
WINDOW_S = 600.0
FIRST_WAIT_S = 2.0
LONGEST_WAIT_S = 120.0


@dataclass(slots=True)
class Flapping:
    """Losses by host. A host that was well for `WINDOW_S` starts anew."""

    losses: dict[str, list[float]] = field(default_factory=dict)

    def lost(self, host: str, now: float) -> None:
        if host:
            self.losses[host] = [*self._recent(host, now), now]

    def free_at(self, host: str, now: float) -> float:
        """When a node of this host may take part: the wait doubles with each loss in the window."""
        recent = self._recent(host, now)
        beyond = len(recent) - FREE_LOSSES
        if beyond <= 0:
            return now
        wait_s: float = min(FIRST_WAIT_S * 2.0 ** (beyond - 1), LONGEST_WAIT_S)
        return recent[-1] + wait_s

    def _recent(self, host: str, now: float) -> list[float]:
        return [at for at in self.losses.get(host, ()) if now - at < WINDOW_S]
