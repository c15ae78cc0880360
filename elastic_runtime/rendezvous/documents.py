"""The handover as it lies in the store: JSON, with workers as places in one list of node names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elastic_runtime.core.handover import Handover
from elastic_runtime.core.view import Generation, Kind
from elastic_runtime.core.world import WorkerId

Triple = list[int]  # place of the node's name, slot, spawn


class _Names:
    """Each node's name once."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}

    def worker(self, worker: WorkerId) -> Triple:
        return [self.places.setdefault(worker.node, len(self.places)), worker.slot, worker.spawn]


def handover_to_json(handover: Handover) -> dict[str, Any]:
    names = _Names()
    for node in handover.nodes:
        names.places.setdefault(node, len(names.places))
    document = {
        "here": len(handover.nodes),
        "generation": _generation_to_json(handover.generation, names),
        "previous": _generation_to_json(handover.previous, names),
        "trained": _generation_to_json(handover.trained, names),
        "seniority": [[*names.worker(worker), number] for worker, number in handover.seniority.items()],
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
        seniority={_worker(triple, names): number for *triple, number in document["seniority"]},
        used_ports=document["used_ports"],
        nodes=tuple(names[: document["here"]]),
        target=document["target"],
        closed=None if closed is None else (int(closed[0]), str(closed[1])),
    )


def _generation_to_json(generation: Generation, names: _Names) -> dict[str, Any]:
    return {
        "number": generation.number,
        "kind": generation.kind,
        "world": [names.worker(worker) for worker in generation.world],
        "planned": generation.planned,
        "reason": generation.reason,
        "store_host": generation.store_host,
        "store_port": generation.store_port,
        "meeting_port": generation.meeting_port,
    }


def _generation_from_json(fields: Mapping[str, Any], names: list[str]) -> Generation:
    world = tuple(_worker(triple, names) for triple in fields["world"])
    return Generation(**{**fields, "kind": Kind(fields["kind"]), "world": world})


def _worker(triple: Triple, names: list[str]) -> WorkerId:
    place, slot, spawn = triple
    return WorkerId(names[place], slot, spawn)
