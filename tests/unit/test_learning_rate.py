"""The factor on the learning rate, and the optimizers a rule was derived for."""

from __future__ import annotations

import pytest
import torch

from elastic_runtime.core.learning_rate import check_rule, lr_scale, optimizer_family
from elastic_runtime.errors import ConfigurationError


@pytest.mark.parametrize(
    ("rule", "kappa", "scale"),
    [("none", 0.25, 1.0), ("linear", 0.25, 0.25), ("sqrt", 0.25, 0.5), ("sqrt", 1.0, 1.0), (lambda k: 3 * k, 2.0, 6.0)],
)
def test_the_scale_follows_the_rule(rule: object, kappa: float, scale: float) -> None:
    assert lr_scale(rule, kappa) == scale  # type: ignore[arg-type]


@pytest.mark.parametrize(("rule", "nearest"), [("liner", "linear"), ("xyz", ""), ("Sqrt", "sqrt")])
def test_an_unknown_rule_is_refused_with_the_nearest_one(rule: str, nearest: str) -> None:
    with pytest.raises(ConfigurationError, match=f"did you mean '{nearest}'" if nearest else "none, linear, sqrt$"):
        lr_scale(rule, 1.0)
    with pytest.raises(ConfigurationError, match="none, linear, sqrt"):
        check_rule(rule, "sgd")


@pytest.mark.parametrize("returned", [0.0, -1.0, float("nan"), float("inf")])
def test_a_callable_that_returns_no_factor_is_refused(returned: float) -> None:
    with pytest.raises(ConfigurationError, match="must be positive"):
        lr_scale(lambda kappa: returned, 2.0)


@pytest.mark.parametrize("kappa", [0.0, -1.0, float("nan")])
def test_a_batch_ratio_is_positive(kappa: float) -> None:
    with pytest.raises(ValueError, match="batch"):
        lr_scale("none", kappa)


def test_families_are_recognised_through_subclasses() -> None:
    class Mine(torch.optim.AdamW):
        pass

    for optimizer, family in (
        (torch.optim.SGD, "sgd"),
        (torch.optim.AdamW, "adam"),
        (Mine, "adam"),
        (torch.optim.Rprop, "other"),
    ):
        assert optimizer_family(c.__name__ for c in optimizer.__mro__) == family


@pytest.mark.parametrize(
    ("rule", "family", "advice"),
    [("linear", "adam", "'sqrt'"), ("sqrt", "sgd", "'linear'"), ("linear", "other", "'none' or a callable")],
)
def test_a_rule_for_another_family_is_refused_with_one_that_fits(rule: str, family: str, advice: str) -> None:
    with pytest.raises(ConfigurationError, match=advice):
        check_rule(rule, family)


@pytest.mark.parametrize(
    ("rule", "family"), [("none", "other"), ("linear", "sgd"), ("sqrt", "adam"), (lambda kappa: kappa, "other")]
)
def test_a_fitting_rule_passes(rule: object, family: str) -> None:
    check_rule(rule, family)  # type: ignore[arg-type]
