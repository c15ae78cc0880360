"""What a configuration says of Sessions, as a Session takes it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from elastic_runtime import ConfigurationError, Session
from elastic_runtime.environment import SESSION, SessionDefaults
from elastic_runtime.session.arguments import DEFAULTS, Arguments, At

SIZES = {"global_batch_size": 24, "micro_batch_size": 4}


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch):
    def put(at=None, **values) -> None:
        sources = {key: f"job.toml:{line}" for line, key in enumerate(values, 1)}
        monkeypatch.setenv(SESSION, SessionDefaults(values=values, at=at or {}, sources=sources).to_text())

    return put


def session(**given) -> Session:
    model = nn.Linear(2, 1)
    return Session(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0), **given)


def arguments(at: dict[int, At], **more) -> Arguments:
    return Arguments(**{**DEFAULTS, **SIZES, **more}, at=at)


# -- from the environment ---------------------------------------------------------------------------------------------


def test_the_configuration_fills_in_what_the_script_leaves_out(configured) -> None:
    configured(**SIZES, seed=5, lr_rule="linear", max_grad_norm=1.0)
    found = session(seed=6, max_grad_norm=None).arguments
    assert (found.global_batch_size, found.micro_batch_size, found.lr_rule) == (24, 4, "linear")
    assert (found.seed, found.max_grad_norm) == (6, None), "the script has the last word, None is one too"


def test_without_a_configuration_the_script_gives_the_sizes(configured) -> None:
    with pytest.raises(ConfigurationError, match="Session needs global_batch_size=: in the script, or under"):
        session(micro_batch_size=4)
    assert session(**SIZES).arguments == arguments({})


def test_world_sizes_are_taken_over(configured) -> None:
    configured(**SIZES, at={2: {"micro_batch_size": 2, "lr_scale": 0.5}})
    assert session().arguments.at == {2: At(micro_batch_size=2, lr_scale=0.5)}
    assert session(micro_batch_size=4).arguments.at == {2: At(lr_scale=0.5)}


def test_exact_mode_computes_with_one_thread_unless_told(configured) -> None:
    configured(**SIZES, reduction="exact")
    assert session().arguments.threads == 1
    assert session(threads=2).arguments.threads == 2
    assert session(reduction="fast").arguments.threads is None


def test_a_refusal_names_the_places_in_the_file(configured) -> None:
    configured(global_batch_size=10, lr_rule="sqrt")
    with pytest.raises(ConfigurationError, match=r"not a multiple of .* \(global_batch_size: job.toml:1\)$"):
        session(micro_batch_size=4)
    with pytest.raises(ConfigurationError, match=r"\(lr_rule: job.toml:2\)$"):
        session(micro_batch_size=5)
    with pytest.raises(ConfigurationError, match=r"or a callable[^(]*$|use lr_rule='linear'$"):
        session(micro_batch_size=5, lr_rule="sqrt")


@pytest.mark.parametrize("text", ["x", "[]", '{"values": 3}', '{"values": {}, "at": {"x": {}}, "sources": {}}'])
def test_a_variable_that_the_launcher_did_not_write(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(SESSION, text)
    with pytest.raises(ConfigurationError, match="ELASTIC_SESSION is not what elasticrun writes there"):
        session(**SIZES)


def test_a_key_of_a_newer_launcher(configured) -> None:
    configured(**SIZES, at={2: {"momentum": 0.5}})
    with pytest.raises(ConfigurationError, match=r"at\.2\.momentum is not known to this version"):
        session()


# -- by world size ----------------------------------------------------------------------------------------------------


def test_micro_batches_may_be_smaller_in_some_worlds() -> None:
    found = arguments({8: At(micro_batch_size=2)})
    found.check_values()
    assert [found.micro_batches(size) * found.micro_size(size) for size in (1, 6, 8)] == [24, 24, 24]
    assert (found.micro_batches(6), found.micro_batches(8)) == (6, 12)
    assert found.max_workers == 8 and found.lr_scale(8) == 1.0


def test_the_learning_rate_follows_a_batch_of_its_own() -> None:
    found = arguments({2: At(global_batch_size=48)}, lr_rule="sqrt")
    assert (found.micro_batches(2), found.lr_scale(2), found.lr_scale(1)) == (12, math.sqrt(2), 1.0)
    assert arguments({2: At(global_batch_size=48, lr_scale=3.0)}, lr_rule="sqrt").lr_scale(2) == 3.0


def test_the_gradient_is_clipped_to_the_world_s_norm() -> None:
    found = arguments({2: At(max_grad_norm=0.5)}, max_grad_norm=1.0)
    assert (found.grad_norm(1), found.grad_norm(2)) == (1.0, 0.5)


def test_each_worker_s_batch_may_be_computed_in_other_pieces() -> None:
    found = arguments({3: At(micro_batch_size=2)}, batch_rule="fixed_per_worker", base_world_size=2)
    assert [found.micro_batches(size) * found.micro_size(size) for size in (1, 2, 3)] == [12, 24, 36]
    assert (found.micro_batches(3), found.kappa(3)) == (18, 1.5)


def test_clipping_and_scaling_reach_the_optimizer(configured) -> None:
    """In a world of one: a gradient of norm 1 after clipping, and a learning rate of a quarter."""
    configured(**SIZES, at={1: {"max_grad_norm": 1.0, "lr_scale": 0.25, "micro_batch_size": 8}})
    model = nn.Linear(1, 1, bias=False)
    before = model.weight.item()
    read = []
    data = [(torch.tensor([100.0]),)] * 48
    with Session(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0)) as opened:
        for step in opened.steps(data, max_steps=1):
            for (inputs,) in step:
                read.append(len(inputs))
                step.backward(model(inputs).mean())
    assert read == [8, 8, 8]
    assert model.weight.item() == pytest.approx(before - 0.25)
