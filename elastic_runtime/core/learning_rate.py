"""By how much the learning rate moves when the effective batch does.

κ is always the current batch over the base batch, so that shrinking and growing back returns to the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from math import isfinite, sqrt

from elastic_runtime.errors import ConfigurationError

Rule = str | Callable[[float], float]
LR_RULES = ("none", "linear", "sqrt")
_FAMILY_OF_RULE = {"linear": "sgd", "sqrt": "adam"}
_ADAM_FAMILY = frozenset({"Adam", "AdamW", "Adamax", "NAdam", "RAdam", "FusedAdam", "Lamb", "LAMB"})


def lr_scale(rule: Rule, kappa: float) -> float:
    """The factor on the learning rate for a batch `kappa` times the base batch.

    `none`: 1. `linear`: κ (Goyal et al. 2017, "Accurate, Large Minibatch SGD", for SGD with or without momentum).
    `sqrt`: √κ (Malladi et al. 2022, "On the SDEs and Scaling Rules for Adaptive Gradient Algorithms", for the Adam
    family, the learning-rate part of it). A callable is given κ and returns the factor.
    """
    if not (isfinite(kappa) and kappa > 0):
        raise ValueError(f"the batch cannot change by a factor of {kappa}")
    if callable(rule):
        scale = float(rule(kappa))
        if not (isfinite(scale) and scale > 0):
            raise ConfigurationError(f"lr_rule returned {scale} for a batch ratio of {kappa}; it must be positive")
        return scale
    _check_name(rule)
    return {"none": 1.0, "linear": kappa, "sqrt": sqrt(kappa)}[rule]


def optimizer_family(class_names: Iterable[str]) -> str:
    """ "sgd", "adam" or "other", from the class names of an optimizer, most derived first (its MRO)."""
    for name in class_names:
        if name == "SGD":
            return "sgd"
        if name in _ADAM_FAMILY:
            return "adam"
    return "other"


def check_rule(rule: Rule, family: str) -> None:
    """Raise ConfigurationError for a rule that is unknown or was not derived for this family of optimizers."""
    if callable(rule):
        return
    _check_name(rule)
    needed = _FAMILY_OF_RULE.get(rule)
    if needed is None or needed == family:
        return
    fitting = [name for name, of in _FAMILY_OF_RULE.items() if of == family]
    advice = f"use lr_rule={fitting[0]!r}" if fitting else "use lr_rule='none' or a callable from κ to a factor"
    raise ConfigurationError(
        f"lr_rule={rule!r} holds for the {needed} family of optimizers, not for this one; {advice}"
    )


def _check_name(rule: str) -> None:
    if rule in LR_RULES:
        return
    nearest = get_close_matches(str(rule), LR_RULES, n=1, cutoff=0.4)
    meant = f"; did you mean {nearest[0]!r}?" if nearest else ""
    raise ConfigurationError(f"lr_rule={rule!r} is not one of {', '.join(LR_RULES)}{meant}")
