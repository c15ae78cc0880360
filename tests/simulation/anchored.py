"""Membership where one agent hosts the store and coordinates for ever: one link, and without it the job is over."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from elastic_runtime.core.node import Mode
from elastic_runtime.core.world import NodeRecord
from tests.simulation.link import Link

if TYPE_CHECKING:
    from tests.simulation.agent import Agent


class Anchored:
    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.link: Link | None = None

    def open(self, record: NodeRecord) -> None:
        cluster = self._agent.cluster
        self.link = Link(cluster, self._agent, cluster.coordination, self._on_frame)
        self.link.open(record)

    def _on_frame(self, kind: str, content: Any) -> None:
        if kind != "lost":
            self._agent.on_frame(kind, content)
        elif self._agent.machine.mode is not Mode.STOPPING:
            self._agent.on_over("the store's host is gone")

    @property
    def joined(self) -> bool:
        return self.link is not None

    def publish(self, record: NodeRecord) -> None:
        assert self.link is not None
        self.link.up("record", record)

    def end_job(self, exit_code: int, reason: str) -> None:
        assert self.link is not None
        self.link.up("end", (exit_code, reason))

    def beat(self) -> None:
        assert self.link is not None
        self.link.up("beat", None)

    def break_off(self) -> None:
        if self.link is not None:
            self.link.break_off()

    def close(self, closed: Callable[[], object]) -> None:
        assert self.link is not None
        self.link.close()
        closed()
