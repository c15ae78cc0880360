"""A Session in a world of one: the contract of the loop, the order of a commit, the learning-rate rules."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from elastic_runtime import ConfigurationError, LoopContractError, Session


def data(samples: int = 40) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(samples, 6, generator=generator)
    return TensorDataset(inputs, inputs.sum(1, keepdim=True))


def open_session(model: nn.Module | None = None, *, lr: float = 0.1, **options) -> Session:
    torch.manual_seed(0)
    model = model or nn.Linear(6, 1)
    optimizer = options.pop("optimizer", None) or torch.optim.SGD(model.parameters(), lr=lr)
    sizes = {"global_batch_size": 8, "micro_batch_size": 4, **options}
    session = Session(model=model, optimizer=optimizer, **sizes)
    session.test_model = model  # type: ignore[attr-defined]
    return session


def loss(session: Session, batch) -> torch.Tensor:
    inputs, targets = batch
    return ((session.test_model(inputs) - targets) ** 2).mean()  # type: ignore[attr-defined]


def train(session: Session, steps: int, **options) -> list[float]:
    losses = []
    for step in session.steps(data(), max_steps=steps, **options):
        for batch in step:
            step.backward(loss(session, batch))
        losses.append(step.loss)
    return losses


@pytest.mark.parametrize("reduction", ["fast", "exact"])
def test_gradient_of_a_step_is_that_of_the_global_batch(reduction):
    session = open_session(reduction=reduction)
    model = session.test_model
    before = copy.deepcopy(model)
    with session:
        step = next(session.steps(data(), max_steps=1))
        read = []
        for batch in step:
            read.append(batch)
            step.backward(loss(session, batch))
        indices = step.sample_indices
    inputs, targets = data()[indices]
    assert torch.equal(torch.cat([b[0] for b in read]), inputs)
    ((before(inputs) - targets) ** 2).mean().backward()
    for ours, theirs in zip(model.parameters(), before.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs - 0.1 * theirs.grad)


@pytest.mark.parametrize(
    ("rule", "base", "factor"),
    [("none", 4, 1.0), ("linear", 4, 0.25), ("sqrt", 4, 0.5), (lambda kappa: 3 * kappa, 2, 1.5)],
)
def test_learning_rate_follows_the_rule_and_the_scheduler_never_sees_it(rule, base, factor):
    """base_world_size workers give the base batch: alone, kappa is 1/base."""
    model = nn.Linear(6, 1)
    family = torch.optim.AdamW if rule == "sqrt" else torch.optim.SGD
    optimizer = family(model.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)
    session = open_session(
        model,
        optimizer=optimizer,
        lr_scheduler=scheduler,
        global_batch_size=16,
        batch_rule="fixed_per_worker",
        base_world_size=base,
        lr_rule=rule,
    )
    used: list[float] = []
    optimizer.register_step_post_hook(lambda *_: used.append(optimizer.param_groups[0]["lr"]))
    with session:
        train(session, 3)
        assert [g["lr"] for g in optimizer.param_groups] == pytest.approx([0.5 * 0.9**3], rel=1e-12)
    assert used == pytest.approx([0.5 * factor, 0.45 * factor, 0.405 * factor], rel=1e-12)


def test_fixed_per_worker_reads_its_own_share_of_the_base_batch():
    with open_session(global_batch_size=16, batch_rule="fixed_per_worker", base_world_size=2) as session:
        step = next(session.steps(data(), max_steps=1))
        for batch in step:
            step.backward(loss(session, batch))
        assert len(step.sample_indices) == 8


def test_epochs_end_with_a_smaller_step_and_every_sample_once():
    with open_session(global_batch_size=16) as session:
        seen, sizes, ends = [], [], []
        for step in session.steps(data(40), epochs=2):
            for batch in step:
                step.backward(loss(session, batch))
            seen += step.sample_indices
            sizes.append(len(step.sample_indices))
            ends.append(step.ends_epoch)
    assert sorted(seen) == sorted(list(range(40)) * 2)
    assert sizes == [16, 16, 16, 16, 16]
    assert ends == [False, False, True, False, True]
    with open_session(global_batch_size=16) as session:
        sizes = []
        for step in session.steps(data(39), epochs=1):
            for batch in step:
                step.backward(loss(session, batch))
            sizes.append(len(step.sample_indices))
    assert sizes == [16, 16, 7]


def test_order_of_a_commit():
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    order = []
    session = open_session(model, optimizer=optimizer, max_grad_norm=1e-3)
    session.before_update(lambda: order.append(("before", float(nn.utils.get_total_norm([model.weight.grad])))))
    optimizer.register_step_pre_hook(
        lambda *_: order.append(("step", float(nn.utils.get_total_norm([p.grad for p in model.parameters()]))))
    )
    with session:
        train(session, 1)
    assert [name for name, _ in order] == ["before", "step"]
    assert order[0][1] > 1e-2 and order[1][1] == pytest.approx(1e-3, rel=1e-3)


def test_skip_weighs_nothing():
    with open_session() as session:
        step = next(session.steps(data(), max_steps=1))
        value = None
        for number, batch in enumerate(step):
            if number == 0:
                step.skip()
            else:
                value = loss(session, batch)
                step.backward(value)
        assert step.loss == pytest.approx(value.item(), rel=1e-6)


def violations():
    def plain_backward(session, step):
        for batch in step:
            loss(session, batch).backward()

    def nothing(session, step):
        for _ in step:
            pass

    def twice(session, step):
        for batch in step:
            step.backward(loss(session, batch))
            step.backward(loss(session, batch))

    def listed(session, step):
        list(step)

    def own_optimizer(session, step):
        for batch in step:
            step.backward(loss(session, batch))
            session.update._optimizer.step()

    def left_early(session, step):
        for batch in step:
            step.backward(loss(session, batch))
            break

    def never_entered(session, step):
        pass

    return [plain_backward, nothing, twice, listed, own_optimizer, left_early, never_entered]


@pytest.mark.parametrize("body", violations(), ids=lambda f: f.__name__)
def test_a_loop_that_breaks_the_contract_is_told_the_remedy(body):
    words = {"own_optimizer": "delete", "left_early": "to its end", "never_entered": "to its end"}
    with pytest.raises(LoopContractError, match=words.get(body.__name__, "step.backward")):
        with open_session() as session:
            for step in session.steps(data(), max_steps=2):
                body(session, step)


def test_one_steps_and_one_session_at_a_time():
    with open_session() as session:
        train(session, 1)
        with pytest.raises(LoopContractError, match="one steps"):
            session.steps(data(), max_steps=2)
        with pytest.raises(LoopContractError, match="one Session at a time"), open_session():
            pass
    assert train_again() == 1


def train_again() -> int:
    with open_session() as session:
        return len(train(session, 1))


def test_rank_belongs_inside_with():
    session = open_session()
    with pytest.raises(LoopContractError, match="inside"):
        _ = session.rank
    with session:
        assert (session.rank, session.world_size, session.local_rank) == (0, 1, 0)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"global_batch_size": 10}, "8 and 12"),
        ({"micro_batch_size": 0}, "positive"),
        ({"batch_rule": "fixed_globall"}, "did you mean 'fixed_global'"),
        ({"reduction": "exakt"}, "did you mean 'exact'"),
        ({"lr_rule": "linaer"}, "linear"),
        ({"max_grad_norm": -1.0}, "max_grad_norm"),
        ({"threads": 0}, "threads"),
        ({"state": {"x": object()}}, "state_dict"),
    ],
)
def test_a_wrong_argument_says_what_to_change(options, says):
    with pytest.raises(ConfigurationError, match=says):
        open_session(**options)


def test_a_model_or_optimizer_that_cannot_work_is_refused():
    with pytest.raises(ConfigurationError, match="BatchNorm1d"):
        open_session(nn.Sequential(nn.Linear(6, 2), nn.BatchNorm1d(2), nn.Linear(2, 1)))
    frozen = nn.Linear(6, 1).requires_grad_(False)
    with pytest.raises(ConfigurationError, match="no parameter"):
        open_session(frozen, optimizer=torch.optim.SGD(nn.Linear(6, 1).parameters(), lr=0.1))
    model = nn.Linear(6, 1)
    with pytest.raises(ConfigurationError, match="LBFGS"):
        open_session(model, optimizer=torch.optim.LBFGS(model.parameters()))
    with pytest.raises(ConfigurationError, match="the model does not have"):
        open_session(model, optimizer=torch.optim.SGD(nn.Linear(6, 1).parameters(), lr=0.1))


def test_fingerprint_is_that_of_the_state_and_moves_with_it():
    prints = []
    for _ in range(2):
        with open_session(reduction="exact") as session:
            before = session.fingerprint()
            train(session, 3)
            prints.append((before, session.fingerprint()))
    assert prints[0] == prints[1] and prints[0][0] != prints[0][1]


def test_evaluation_sums_over_the_dataset_and_leaves_no_trace():
    def run(evaluations: int) -> tuple[str, float | None]:
        model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        total = None
        with open_session(model, reduction="exact") as session:
            for step in session.steps(data(), max_steps=3):
                for batch in step:
                    step.backward(loss(session, batch))
                for _ in range(evaluations):
                    total = session.evaluate(data(), lambda batch: batch[1].sum())
            return session.fingerprint(), total

    plain, _ = run(0)
    with_evaluations, total = run(2)
    assert plain == with_evaluations
    assert total == pytest.approx(data()[:][1].sum().item(), rel=1e-6)


def test_grad_scaler_and_plateau_scheduler_are_carried_through_a_commit():
    torch.manual_seed(0)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    scaled = open_session(model, optimizer=optimizer, grad_scaler=scaler, lr_scheduler=scheduler)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with scaled:
            losses = train(scaled, 3)
    with open_session() as plain:
        assert train(plain, 3) == pytest.approx(losses, rel=1e-5)


def test_on_finish_runs_once_after_the_last_commit():
    finished = []
    with open_session() as session:
        session.on_finish(lambda: finished.append(session.fingerprint()))
        train(session, 2)
        assert finished == []
    assert len(finished) == 1
