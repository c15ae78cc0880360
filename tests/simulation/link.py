"""A connection between a node and the coordinator, seen from both ends; `rendezvous/link.py` is the real one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from elastic_runtime.core.world import NodeRecord
from elastic_runtime.rendezvous.link import CONNECT_S, WELCOME_S
from tests.simulation.network import Pipe

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.cluster import Cluster
    from tests.simulation.coordination import Coordination


class Link:
    """`on_frame(kind, content)` at the node for each frame; "lost" is the last one."""

    def __init__(
        self, cluster: Cluster, agent: Agent, server: Coordination, on_frame: Callable[[str, Any], object]
    ) -> None:
        self._cluster = cluster
        self._on_frame = on_frame
        self.agent = agent
        self.server = server
        self.cut_by_server = False
        self.open_at_node = True
        self.opened: Callable[[str], object] | None = None
        self._unheard_since: float | None = None
        self._ends = (agent.host, server.host.host)
        self._up = Pipe(cluster.clock, cluster.network, self._ends, server.host)
        self._down = Pipe(cluster.clock, cluster.network, self._ends, agent)

    # -- the node's end -----------------------------------------------------------------------------------------------

    def open(self, record: NodeRecord) -> None:
        self._up.send(self.server.hello, self, record)

    def connect(self, record: NodeRecord, opened: Callable[[str], object]) -> None:
        """`opened`, once: with "" when welcomed, "refused" if no process listens there, "silent" if none answers."""
        self.opened = opened
        clock, host = self._cluster.clock, self.server.host
        at = max(clock.now + self._cluster.network.delay(), self._cluster.network.clear_at(self._ends))
        if at > clock.now + CONNECT_S or host.vanished:
            clock.after(CONNECT_S, self.agent.deliver, self._open_ends, "silent")
        else:
            clock.at(at, self._knock, record)

    def _knock(self, record: NodeRecord) -> None:
        if not self.server.host.alive or self.server.closed:
            self._down.send(self._open_ends, "refused")
            return
        self.server.knocking[self] = None
        self._cluster.clock.after(WELCOME_S, self.agent.deliver, self._open_ends, "silent")
        self.open(record)

    def _open_ends(self, how: str) -> None:
        opened, self.opened = self.opened, None
        self.server.knocking.pop(self, None)
        if opened is not None:
            if how:
                self.break_off()
            opened(how)

    def up(self, kind: str, content: Any) -> None:
        if self.open_at_node:
            self._up.send(self.server.heard, self, kind, content)

    def beat(self, silent_after_s: float) -> None:
        """A beat; the connection is lost once one was not acknowledged for so long."""
        cluster, host = self._cluster, self.server.host
        self.up("beat", None)
        if not host.vanished and cluster.network.clear_at(self._ends) <= cluster.clock.now:
            self._unheard_since = None
        elif self._unheard_since is None:
            self._unheard_since = cluster.clock.now
            cluster.clock.after(silent_after_s, self.agent.deliver, self._time_out, cluster.clock.now)

    def _time_out(self, since: float) -> None:
        if self.open_at_node and self._unheard_since == since:
            self.break_off()
            self._on_frame("lost", None)

    def close(self) -> None:
        """By the node, with a goodbye."""
        self.up("bye", None)
        self.break_off()

    def break_off(self) -> None:
        self.up("eof", None)
        self.open_at_node = False

    # -- the coordinator's end ----------------------------------------------------------------------------------------

    def down(self, kind: str, content: Any) -> None:
        self._down.send(self._arrives, kind, content)

    def _arrives(self, kind: str, content: Any) -> None:
        if not self.open_at_node:
            return
        if kind == "lost":
            self.open_at_node = False
        if self.opened is not None:  # a welcome, or the end of the connection instead
            self._open_ends("refused" if kind == "lost" else "")
        elif kind != "welcome":
            self._on_frame(kind, content)

    def cut(self) -> None:
        """By the coordinator."""
        self.cut_by_server = True
        self.down("lost", None)
