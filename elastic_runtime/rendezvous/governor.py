"""The answers to a person's questions and orders, where the coordinator is; `control` carries them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from elastic_runtime.core.coordinator import Coordinator
from elastic_runtime.core.coordinator_events import Event, Resized
from elastic_runtime.core.explain import explain
from elastic_runtime.errors import ConfigurationError
from elastic_runtime.rendezvous.find import Coordinates


class JobGovernor:
    """See `control.Governor`. `ask_to_leave(node)` passes the order on, `step(event)` is the machine's way in."""

    def __init__(
        self,
        *,
        machine: Coordinator,
        run_id: str,
        coordinates: Coordinates,
        why: str,
        journal: Path,
        ask_to_leave: Callable[[str], None],
        step: Callable[[Event], None],
    ) -> None:
        self._machine, self._run_id, self._coordinates, self._why = machine, run_id, coordinates, why
        self._ask_to_leave, self._step = ask_to_leave, step
        self._since = time.monotonic()
        self.journal = journal

    def status(self) -> dict[str, Any]:
        machine, now = self._machine, time.monotonic()
        view = machine.view(now)
        there = self._coordinates
        return {
            "run_id": self._run_id,
            "generation": machine.generation.number,
            "kind": machine.generation.kind,
            "state": _state(machine),
            "reason": machine.generation.reason,
            "waiting": machine.last_reason,
            "world_size": len(machine.generation.world),
            "coordinator": {
                "node": there.node,
                "address": there.address,
                "port": there.port,
                "since_s": round(now - self._since, 3),
                "why": self._why,
            },
            "min_nodes": view.policy.min_nodes,
            "max_nodes": view.policy.max_nodes,
            "target": view.target,
            "nodes": [
                {
                    "node": status.node,
                    "address": view.nodes[status.node].address,
                    "slots": view.nodes[status.node].slots,
                    "state": status.state,
                    "why": status.why,
                    "ranks": list(status.ranks),
                    "heard_s": round(now - machine.liveness.heard_at.get(status.node, now), 3),
                    "joined_s": round(now - machine.joined_at.get(status.node, now), 3),
                }
                for status in explain(view, now)
            ],
        }

    def drain(self, node: str) -> str:
        nodes = list(self._machine.nodes)
        found = [name for name in nodes if name == node] or [name for name in nodes if name.startswith(node)]
        if len(found) != 1:
            what = "no node's name begins with" if not found else "several nodes' names begin with"
            raise ConfigurationError(f"{what} {node!r}; there are {', '.join(nodes) or 'none'}")
        self._ask_to_leave(found[0])
        return f"{found[0]} was asked to leave: its workers finish their step, the others go on"

    def resize(self, nodes: int) -> str:
        policy, here = self._machine.policy, len(self._machine.nodes)
        if not policy.min_nodes <= nodes <= policy.max_nodes:
            raise ConfigurationError(
                f"the job was started with --nnodes={policy.min_nodes}:{policy.max_nodes}; {nodes} is outside of that"
            )
        self._step(Resized(nodes))
        beyond = max(0, here - nodes)
        more = f"; {beyond} of the {here} here stand by until it grows again" if beyond else ""
        return f"at most {nodes} node(s) take part from now on{more}"


def _state(machine: Coordinator) -> str:
    if machine.ended:
        return "closed"
    if machine.gathering.handover is not None:
        return "gathering"
    return "settled" if machine.writing is None else "settling"
