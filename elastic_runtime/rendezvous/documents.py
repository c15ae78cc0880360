"""The handover as it lies in the store: JSON that holds each node's name once.

Workers are written by runs of neighbours on one node: its place in the list of names, then slot and spawn of each. A
world of 1,024 nodes with eight workers each takes about 60 KiB so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from elastic_runtime.core.handover import Handover
from elastic_runtime.core.view import Generation, Kind
from elastic_runtime.core.world import WorkerId

Run = list[int]  # place of the node's name, then slot and spawn of each worker


class _Names:
    """Each node's name once."""

    def __init__(self, nodes: Iterable[str]) -> None:
        self.places: dict[str, int] = {}
        for node in nodes:
            self.place(node)

    def place(self, node: str) -> int:
        return self.places.setdefault(node, len(self.places))

    def runs(self, workers: Iterable[WorkerId]) -> list[Run]:
        return [
            [self.place(node), *(number for worker in run for number in (worker.slot, worker.spawn))]
            for node, run in groupby(workers, key=lambda worker: worker.node)
        ]


def handover_to_json(handover: Handover) -> dict[str, Any]:
    names = _Names(handover.nodes)
    document = {
        "here": len(handover.nodes),
        "generation": _generation_to_json(handover.generation, names),
        "previous": _generation_to_json(handover.previous, names),
        "trained": _generation_to_json(handover.trained, names),
        "seniority": [[number, names.runs(workers)] for number, workers in sorted(_by_number(handover).items())],
        "used_ports": dict(handover.used_ports),
        "target": handover.target,
        "closed": handover.closed,
    }
    return {**document, "names": list(names.places)}


def handover_from_json(document: Mapping[str, Any]) -> Handover:
    names = document["names"]
    closed = document["closed"]
    return Handover(
        generation=_generation_from_json(document["generation"], names),
        previous=_generation_from_json(document["previous"], names),
        trained=_generation_from_json(document["trained"], names),
        seniority={worker: number for number, runs in document["seniority"] for worker in _workers(runs, names)},
        used_ports=document["used_ports"],
        nodes=tuple(names[: document["here"]]),
        target=document["target"],
        closed=None if closed is None else (int(closed[0]), str(closed[1])),
    )


def _by_number(handover: Handover) -> dict[int, list[WorkerId]]:
    found: dict[int, list[WorkerId]] = {}
    for worker, number in handover.seniority.items():
        found.setdefault(number, []).append(worker)
    return found


def _generation_to_json(generation: Generation, names: _Names) -> dict[str, Any]:
    return {
        "number": generation.number,
        "kind": generation.kind,
        "world": names.runs(generation.world),
        "planned": generation.planned,
        "reason": generation.reason,
        "store_host": generation.store_host,
        "store_port": generation.store_port,
        "meeting_port": generation.meeting_port,
    }


def _generation_from_json(fields: Mapping[str, Any], names: list[str]) -> Generation:
    world = tuple(_workers(fields["world"], names))
    return Generation(**{**fields, "kind": Kind(fields["kind"]), "world": world})


def _workers(runs: Iterable[Run], names: list[str]) -> Iterator[WorkerId]:
    for place, *numbers in runs:
        for slot, spawn in zip(numbers[::2], numbers[1::2], strict=True):
            yield WorkerId(names[place], slot, spawn)
