"""The state of a worker, handed over bit for bit."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from elastic_runtime.errors import ConfigurationError
from elastic_runtime.session.carried import Carried, copy_range, payload_bytes


class Averaged(nn.Module):
    """Tied weights, a buffer outside of state_dict(), BatchNorm's counters, and state that is no tensor."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.norm, self.second = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.register_buffer("mask", torch.rand(4), persistent=False)
        self.seen = seed

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.norm(self.first(x))) * self.mask

    def get_extra_state(self) -> dict[str, int]:
        return {"seen": self.seen}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.seen = state["seen"]


class Ema:
    def __init__(self) -> None:
        self.values: dict[str, Any] = {"mean": torch.zeros(2), "count": 0}

    def state_dict(self) -> dict[str, Any]:
        return self.values

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values = state


class Worker:
    def __init__(self, seed: int) -> None:
        self.model = Averaged(seed)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.ema = Ema()
        self.carried = Carried(
            model=self.model,
            optimizer=self.optimizer,
            lr_scheduler=self.schedule,
            grad_scaler=torch.amp.GradScaler("cpu"),
            state={"ema": self.ema},
        )

    def train(self, steps: int) -> None:
        for step in range(steps):
            self.optimizer.zero_grad()
            self.model(torch.randn(8, 4, generator=torch.Generator().manual_seed(step))).square().mean().backward()
            self.optimizer.step()
            self.schedule.step()
            self.ema.values["mean"] += 1
            self.ema.values["count"] += 1
            self.model.seen += 1


def hand_over(source: Worker, target: Worker) -> dict[str, Any]:
    spec, tensors = source.carried.export({"step": 3})
    return target.carried.load(spec, copy_range(tensors, 0, payload_bytes(tensors)))


def test_a_joiner_goes_on_with_the_bits_of_its_peer() -> None:
    peer, joiner = Worker(1), Worker(2)
    peer.train(3)
    storage = joiner.model.first.weight.data_ptr()
    assert joiner.carried.fingerprint({}) != peer.carried.fingerprint({})
    assert hand_over(peer, joiner) == {"step": 3}
    assert joiner.model.first.weight.data_ptr() == storage
    assert joiner.carried.fingerprint({}) == peer.carried.fingerprint({})
    peer.train(3)
    assert joiner.carried.fingerprint({}) != peer.carried.fingerprint({})
    joiner.train(3)
    assert joiner.carried.fingerprint({}) == peer.carried.fingerprint({})
    assert joiner.schedule.get_last_lr() == pytest.approx([1e-4])
    assert joiner.model.seen == 7


def test_what_was_loaded_does_not_share_memory_with_the_peer_or_the_payload() -> None:
    peer, joiner = Worker(1), Worker(2)
    peer.train(2)
    spec, tensors = peer.carried.export({})
    payload = copy_range(tensors, 0, payload_bytes(tensors))
    joiner.carried.load(spec, payload)
    before = joiner.carried.fingerprint({})
    payload.zero_()
    peer.train(1)
    assert joiner.carried.fingerprint({}) == before


def test_optimizer_state_wider_than_its_parameter_keeps_its_bits() -> None:
    def worker() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Linear(3, 3).bfloat16()
        return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    (model, optimizer), (other_model, other) = worker(), worker()
    wide = torch.rand(3, 3)
    optimizer.state[model.weight]["momentum_buffer"] = wide
    spec, tensors = Carried(model=model, optimizer=optimizer).export({})
    Carried(model=other_model, optimizer=other).load(spec, copy_range(tensors, 0, payload_bytes(tensors)))
    assert torch.equal(other.state[other_model.weight]["momentum_buffer"], wide)


def test_the_fingerprint_follows_the_state_and_not_the_order_of_keys() -> None:
    worker = Worker(1)
    worker.train(1)
    first = worker.carried.fingerprint({"a": 1, "b": [torch.ones(2), 2]})
    worker.ema.values = dict(reversed(worker.ema.values.items()))
    assert worker.carried.fingerprint({"b": [torch.ones(2), 2], "a": 1}) == first
    changes = [
        {"a": 1, "b": [torch.ones(2), 3]},
        {"a": 1.0, "b": [torch.ones(2), 2]},
        {"a": 1, "b": [torch.ones(1), 2]},
    ]
    assert len({first, *(worker.carried.fingerprint(extra) for extra in changes)}) == 4
    worker.model.mask[0] += 1
    assert worker.carried.fingerprint({"a": 1, "b": [torch.ones(2), 2]}) != first


class Renamed(Averaged):
    def __init__(self) -> None:
        super().__init__(1)
        self.third = nn.Linear(1, 1)


class Wider(Averaged):
    def __init__(self) -> None:
        super().__init__(1)
        self.mask = torch.ones(5)


@pytest.mark.parametrize(
    ("model", "message"), [(Renamed, "this worker has 'third.bias'"), (Wider, r"'mask' is torch.float32 \(5,\)")]
)
def test_a_peer_with_another_model_is_refused_before_anything_changes(model: Any, message: str) -> None:
    peer, joiner = Worker(1), Worker(2)
    joiner.model = model()
    joiner.optimizer = torch.optim.AdamW(joiner.model.parameters())
    carried = Carried(
        model=joiner.model, optimizer=joiner.optimizer, lr_scheduler=joiner.schedule, state={"ema": joiner.ema}
    )
    peer.carried = Carried(
        model=peer.model, optimizer=peer.optimizer, lr_scheduler=peer.schedule, state={"ema": peer.ema}
    )
    before = copy.deepcopy(joiner.model.state_dict())
    joiner.carried = carried
    with pytest.raises(ConfigurationError, match=message):
        hand_over(peer, joiner)
    assert all(
        torch.equal(a, b)
        for a, b in zip(before.values(), joiner.model.state_dict().values(), strict=True)
        if isinstance(a, Tensor)
    )


def test_other_objects_and_other_optimizers_are_refused() -> None:
    peer, joiner = Worker(1), Worker(2)
    joiner.carried = Carried(model=joiner.model, optimizer=joiner.optimizer, lr_scheduler=joiner.schedule)
    with pytest.raises(ConfigurationError, match="a peer has 'grad_scaler'"):
        hand_over(peer, joiner)
    bias = Worker(2)
    bias.optimizer = torch.optim.AdamW([bias.model.first.bias])
    bias.carried = Carried(model=bias.model, optimizer=bias.optimizer)
    peer.carried = Carried(model=peer.model, optimizer=peer.optimizer)
    with pytest.raises(ConfigurationError, match="the optimizer differs"):
        hand_over(peer, bias)
    with pytest.raises(ConfigurationError, match=r"state\['x'\] is a int"):
        Carried(model=peer.model, optimizer=peer.optimizer, state={"x": 3})


def test_the_description_is_plain_json() -> None:
    spec, _ = Worker(1).carried.export({"step": 0})
    assert set(json.loads(spec)) == {"tensors", "tree"}
