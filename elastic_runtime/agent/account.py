"""What workers tell their agent, as the journal keeps it and as a person is told of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from elastic_runtime.core.messages import Adopted, Ready, Resumed, Up
from elastic_runtime.journal import Journal

REASONS_KEPT = 16  # generations


class Account:
    """A person is told of a change once for a node, and of a loss of all state."""

    def __init__(self, journal: Journal, say: Callable[[str], None]) -> None:
        self._journal, self._say = journal, say
        self._reasons: dict[int, str] = {}  # generation -> why it was settled
        self._trained_in = 0  # the newest generation that a worker of this node adopted
        self._told_of = 0  # the newest generation that a person was told of
        self._told_unused = False

    def settled(self, generation: int, reason: str) -> None:
        self._reasons[generation] = reason
        self._reasons.pop(generation - REASONS_KEPT, None)

    def heard(self, message: Up, generation: int, slot: int, pid: int) -> None:
        """`generation` is the one announced, for messages that name none."""
        fields = asdict(message)
        generation = fields.pop("generation", generation)
        why = self._reasons.get(generation, "") if isinstance(message, Resumed) else ""
        event = "change" if isinstance(message, Resumed) else type(message).__name__.lower()
        reason = fields.pop("reason", why)
        self._journal.write(event, generation=generation, reason=reason, slot=slot, pid=pid, **fields)
        if isinstance(message, Ready) and message.unused and not self._told_unused:
            self._told_unused = True
            self._say(f"not used, because the script itself gives the value: {', '.join(message.unused)}")
        if isinstance(message, Adopted):
            if message.from_nothing and 0 < self._trained_in < generation:
                self._say("no worker is left that held the state: training starts again from the beginning")
            self._trained_in = max(self._trained_in, generation)
        if isinstance(message, Resumed) and generation > self._told_of:
            self._told_of = generation
            self._say(
                f"{message.old_world_size} → {message.world_size} workers at step {message.step}, "
                f"pause {message.pause_s * 1000:.0f} ms: {why}"
            )
