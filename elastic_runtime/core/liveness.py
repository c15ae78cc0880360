"""Who was heard when, on the clock of the one who listens. Clocks of two hosts are never compared."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Liveness:
    silent_after_s: float  # not heard for so long is dead; beats come several times as often
    heard_at: dict[str, float] = field(default_factory=dict)
    last_look: float | None = None

    def heard(self, node: str, now: float) -> None:
        self.heard_at[node] = now

    def forget(self, node: str) -> None:
        self.heard_at.pop(node, None)

    def excuse_own_pause(self, now: float) -> None:
        """While this process did not run it could hear nobody: that silence is its own, not the nodes'."""
        pause = 0.0 if self.last_look is None else now - self.last_look
        if pause > self.silent_after_s / 2:
            self.heard_at = {node: heard + pause for node, heard in self.heard_at.items()}
        self.last_look = now

    def silent(self, now: float) -> list[str]:
        return [node for node, heard in self.heard_at.items() if now >= heard + self.silent_after_s]

    def next_look(self, now: float) -> float | None:
        """When to look again: also often enough to see that this process itself was paused."""
        if not self.heard_at:
            return None
        return min(min(self.heard_at.values()) + self.silent_after_s, now + self.silent_after_s / 6)
