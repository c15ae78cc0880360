"""Play a scenario: a short text of what happens to a simulated cluster, and the trace that is expected of it.

    nodes 3, min 2, steps 20        what the job is (see SETTINGS); one line, before anything else
    at 1.5 kill n1/0                what is done to it, at which virtual second
    --
    generation 1 ...                what must be seen, line by line

`python -m tests.scenarios.play FILE` prints what is seen.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from signal import SIGTERM
from typing import Any

from elastic_runtime.core.coordinator_events import Announce, Note, Resized
from elastic_runtime.core.view import Generation, Policy
from elastic_runtime.core.world import WorkerId
from tests.simulation.agent import Agent
from tests.simulation.cluster import Cluster, Setup
from tests.simulation.process import Process
from tests.simulation.script import Job
from tests.simulation.violation import Violation

UNTIL_S = 90.0
SETTINGS = {"nodes": 3, "slots": 1, "min": 1, "max": 8, "steps": 20, "micro-batches": 8, "restarts": 10, "plain": 0}
SETTINGS |= {"elected": 0}  # 1: the store lies apart from all nodes, and the coordinator's seat passes on


@dataclass(frozen=True)
class Scenario:
    settings: dict[str, int]
    actions: list[tuple[float, list[str]]]
    expected: list[str]


def read(path: Path) -> Scenario:
    told, _, expected = path.read_text().partition("--\n")
    lines = [line.split("#")[0].strip() for line in told.splitlines()]
    settings = dict(SETTINGS)
    actions = []
    for line in filter(None, lines):
        if line.startswith("at "):
            _, time, *words = line.split()
            actions.append((float(time), words))
        else:
            settings |= {name: int(value) for name, value in (part.split() for part in line.split(","))}
    assert settings.keys() == SETTINGS.keys(), settings
    return Scenario(settings, actions, expected.splitlines())


def play(scenario: Scenario) -> list[str]:
    """The trace, ended by what a checker found wrong, if one did."""
    cluster = Cluster(_setup(scenario.settings), seed=1)
    for time, words in scenario.actions:
        cluster.clock.at(time, _act, cluster, words)
    cluster.may_end_at = max((time for time, _ in scenario.actions), default=0.0) + 1.0
    wrong = []
    try:
        cluster.run(UNTIL_S)
        cluster.checkers.at_end()
    except Violation as violation:
        wrong = [f"WRONG: {violation}"]
    return [*_seen(cluster), *wrong]


def _setup(settings: dict[str, int]) -> Setup:
    job = Job(
        elastic=not settings["plain"],
        steps=settings["steps"],
        micro_batches=settings["micro-batches"],
        micro_batch_size=2,
        end=None,
        eval_every=0,
        eval_chunks=1,
        build_s=0.5,
        micro_batch_s=0.02,
        commit_s=0.01,
    )
    policy = Policy(min_nodes=settings["min"], max_nodes=settings["max"], join_timeout_s=20.0)
    return Setup(
        job=job,
        policy=policy,
        nodes=settings["nodes"],
        slots=settings["slots"],
        max_restarts=settings["restarts"],
        late_breaks=0.0,
        elected=bool(settings["elected"]),
    )


# -- what is done ---------------------------------------------------------------------------------------------------


def _act(cluster: Cluster, words: list[str]) -> None:
    cluster.note("FAULT", *words)
    what, *arguments = words
    ACTIONS[what](cluster, *arguments)


def _worker(cluster: Cluster, name: str) -> Process:
    node, slot = name.split("/")
    return next(p for p in cluster.living() if p.agent.name == node and p.slot == int(slot))


def _raise(cluster: Cluster, name: str, error: str, step: str = "0") -> None:
    """At once, or as soon as the worker has come to a step."""
    process = _worker(cluster, name)
    if process.session.step >= int(step):
        process.crash(error)
    else:
        cluster.clock.after(0.005, _raise, cluster, name, error, step)


def _break(cluster: Cluster, name: str) -> None:
    process = _worker(cluster, name)
    assert process.group is not None
    process.group.break_for(process)


def _stop_agent(cluster: Cluster, node: str, seconds: str) -> None:
    cluster.stop_agent(cluster.agents[node], float(seconds))


def _drain(cluster: Cluster, node: str) -> None:
    agent = cluster.agents[node]
    agent.deliver(agent.interrupt, SIGTERM)


def _coordinator(cluster: Cluster) -> Agent:
    agent = cluster.coordinator()
    assert agent is not None
    return agent


def _cut(cluster: Cluster, agent: Agent, seconds: float) -> None:
    """From the other nodes; it still reaches the store."""
    cluster.network.cut(agent.host, cluster.clock.now + seconds)


def _resize(cluster: Cluster, nodes: str) -> None:
    _coordinator(cluster).deliver(cluster.coordination.step, Resized(int(nodes)))


ACTIONS: dict[str, Callable[..., object]] = {
    "kill": lambda cluster, name: _worker(cluster, name).die(-9),
    "raise": _raise,
    "break": _break,
    "kill-agent": lambda cluster, node: cluster.agents[node].crash(),
    "lose": lambda cluster, node: cluster.agents[node].vanish(),
    "stop-agent": _stop_agent,
    "drain": _drain,
    "join": lambda cluster: cluster.add_node(0.0),
    "kill-coordinator": lambda cluster: _coordinator(cluster).crash(),
    "stop-coordinator": lambda cluster, seconds: cluster.stop_agent(_coordinator(cluster), float(seconds)),
    "drain-coordinator": lambda cluster: _drain(cluster, _coordinator(cluster).name),
    "store-out": lambda cluster, seconds: cluster.store.go_out(float(seconds), stopped=False),
    "cut-coordinator": lambda cluster, seconds: _cut(cluster, _coordinator(cluster), float(seconds)),
    "kill-all": lambda cluster: [agent.crash() for agent in list(cluster.agents.values())],
    "resize": _resize,
}


# -- what is seen ---------------------------------------------------------------------------------------------------


def _seen(cluster: Cluster) -> list[str]:
    lines = []
    for _, who, what in cluster.trace:
        match (who, *what):
            case ("FAULT", *words):
                lines.append(f"> {' '.join(words)}")
            case (_, _, [*effects]) if who.startswith("coordinator"):
                lines += [line for effect in effects for line in _effect(effect, effects)]
            case (_, "leads", *_):
                lines.append(f"{who.removeprefix('coordinator ')} coordinates")
            case (_, "joins anew", _):
                lines.append(f"{who} was gone and joins anew")
            case (_, "joins", again):
                lines.append(f"{who} joins {again}")
            case (_, "exits", code, _):
                lines.append(f"{who} exits {code}")
            case (_, "agent exits", code):
                lines.append(f"{who} leaves with {code}")
    steps = {p.session.step for p in cluster.processes if p.session and p.session.finished}
    return [*lines, f"finished after {', '.join(map(str, sorted(steps)))} steps"] if steps else lines


def _effect(effect: Any, among: list[Any]) -> list[str]:
    match effect:
        case Announce(generation, _) if Note("settled", generation.reason) in among:
            return [f"generation {_described(generation)}"]
        case Note("evicted" | "closed" | "resumed" | "abandoned" as event, reason):
            return [f"{event}: {reason}"]
    return []


def _described(generation: Generation) -> str:
    kind = generation.kind.value if generation.planned else f"{generation.kind.value}, unplanned"
    return f"{generation.number} ({kind}) {' '.join(map(_short, generation.world)) or 'nobody'}: {generation.reason}"


def _short(worker: WorkerId) -> str:
    return f"{worker.node}/{worker.slot}" + (f".{worker.spawn}" if worker.spawn else "")


if __name__ == "__main__":
    print("\n".join(play(read(Path(sys.argv[1])))))
