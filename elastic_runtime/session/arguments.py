"""What a Session was asked for, checked before anything is joined."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import torch
from torch import nn

from elastic_runtime.core.batch import micro_batches_for
from elastic_runtime.core.learning_rate import check_rule, lr_scale, optimizer_family
from elastic_runtime.errors import ConfigurationError

BATCH_RULES = ("fixed_global", "fixed_per_worker")
REDUCTIONS = ("fast", "exact")
ANY_NUMBER = 1 << 30
_EXACT_SLOTS = 1 << 16  # fixed_per_worker: the sum must have room for any world


# What the script need not say. The two sizes have no default.
DEFAULTS: Mapping[str, Any] = {
    "batch_rule": "fixed_global",
    "base_world_size": 1,
    "lr_rule": "none",
    "reduction": "fast",
    "seed": 0,
    "max_grad_norm": None,
    "threads": None,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class At:
    """What differs in worlds of one size; None: nothing. All of it is a function of the world a step commits in, so
    that every member knows it and a redone step uses the new world's. `lr_scale` takes the place of what lr_rule gives.
    """

    global_batch_size: int | None = None
    micro_batch_size: int | None = None
    lr_scale: float | None = None
    max_grad_norm: float | None = None


AT_KEYS = tuple(each.name for each in fields(At))
# Why the others cannot differ.
NOT_AT: Mapping[str, str] = {
    "batch_rule": "it says what the batch is at every size; give global_batch_size",
    "base_world_size": "what it defines is the base that all sizes are compared with; give global_batch_size",
    "lr_rule": "rules start from the base learning rate at every size; give the factor, lr_scale",
    "reduction": "its buffers and its carried state are made once, when the Session opens",
    "seed": "the order of the samples is one for the whole job",
    "threads": "it is set when the Session opens, and the process lives on through the change",
}
_NOWHERE = At()


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """Sizes are in samples. `base_world_size` is in workers and only used by fixed_per_worker. `at`: by world size."""

    global_batch_size: int
    micro_batch_size: int
    batch_rule: str
    base_world_size: int
    lr_rule: str | Callable[[float], float]
    reduction: str
    seed: int
    max_grad_norm: float | None
    threads: int | None
    at: Mapping[int, At] = field(default_factory=dict)

    def check(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Raise ConfigurationError for whatever could not work later."""
        self.check_values()
        _check_model(model)
        _check_optimizer(model, optimizer)
        check_rule(self.lr_rule, optimizer_family(c.__name__ for c in type(optimizer).__mro__))

    def check_values(self) -> None:
        """The part of `check` that needs no model."""
        for name in ("global_batch_size", "micro_batch_size", "base_world_size"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigurationError(f"{name} must be a positive whole number, not {value!r}")
        if not isinstance(self.seed, int):
            raise ConfigurationError(f"seed must be a whole number, not {self.seed!r}")
        if self.global_batch_size % self.micro_batch_size:
            raise ConfigurationError(
                f"global_batch_size={self.global_batch_size} is not a multiple of micro_batch_size="
                f"{self.micro_batch_size}; the nearest that are: {self._nearest_batches()}"
            )
        _one_of("batch_rule", self.batch_rule, BATCH_RULES)
        _one_of("reduction", self.reduction, REDUCTIONS)
        self.micro_batches(1)
        if self.max_grad_norm is not None and not self.max_grad_norm > 0:
            raise ConfigurationError(f"max_grad_norm must be positive or None, not {self.max_grad_norm!r}")
        if self.threads is not None and self.threads < 1:
            raise ConfigurationError(f"threads must be positive or None, not {self.threads!r}")
        for world_size in self.at:
            self._check_at(world_size)

    def _check_at(self, world_size: int) -> None:
        if self.reduction == "exact":
            raise ConfigurationError(
                f"[at.{world_size}] goes with reduction='fast' only: 'exact' means the same bits for any history of "
                "world sizes"
            )
        try:
            micro_batches = self.micro_batches(world_size)
        except ConfigurationError as error:
            raise ConfigurationError(f"[at.{world_size}]: {error}") from None
        if micro_batches < world_size:
            raise ConfigurationError(
                f"[at.{world_size}]: a batch of {micro_batches * self.micro_size(world_size)} in micro-batches of "
                f"{self.micro_size(world_size)} has work for {micro_batches} of {world_size} workers"
            )

    # -- in a world of some size --------------------------------------------------------------------------------------

    def micro_size(self, world_size: int) -> int:
        return self._at(world_size).micro_batch_size or self.micro_batch_size

    def micro_batches(self, world_size: int) -> int:
        own = self._at(world_size).global_batch_size
        return micro_batches_for(
            self.batch_rule if own is None else "fixed_global",
            global_batch_size=self.global_batch_size if own is None else own,
            micro_batch_size=self.micro_size(world_size),
            world_size=world_size,
            base_world_size=self.base_world_size,
        )

    def lr_scale(self, world_size: int) -> float:
        """The factor on the learning rate."""
        own = self._at(world_size).lr_scale
        return lr_scale(self.lr_rule, self.kappa(world_size)) if own is None else own

    def kappa(self, world_size: int) -> float:
        """Effective batch over base batch."""
        return self.micro_batches(world_size) * self.micro_size(world_size) / self.global_batch_size

    def grad_norm(self, world_size: int) -> float | None:
        """What the norm of the global gradient is clipped to; None: it is not."""
        own = self._at(world_size).max_grad_norm
        return self.max_grad_norm if own is None else own

    def _at(self, world_size: int) -> At:
        return self.at.get(world_size, _NOWHERE)

    @property
    def max_workers(self) -> int:
        """The largest world in which all have work; in smaller ones that `at` says nothing of, some may have none."""
        if self.batch_rule != "fixed_global":
            return ANY_NUMBER
        return max(self.global_batch_size // self.micro_batch_size, *self.at, 0)

    @property
    def headroom_slots(self) -> int:
        return self.max_workers if self.batch_rule == "fixed_global" else _EXACT_SLOTS

    def constants(self) -> tuple[str, str]:
        """What must be equal in all workers of a job: a digest, and the text behind it."""
        facts: dict[str, Any] = asdict(self)
        if callable(self.lr_rule):
            facts["lr_rule"] = getattr(self.lr_rule, "__qualname__", "callable")
        facts["torch"] = torch.__version__
        if self.reduction == "exact":
            facts["cpu"] = torch.backends.cpu.get_cpu_capability()
        text = json.dumps(facts, sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest(), text

    def _nearest_batches(self) -> str:
        below = self.global_batch_size // self.micro_batch_size * self.micro_batch_size
        return " and ".join(str(n) for n in (below, below + self.micro_batch_size) if n)


def _one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if value in known:
        return
    near = difflib.get_close_matches(str(value), known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ConfigurationError(f"{name}={value!r} is not one of {', '.join(map(repr, known))}{hint}")


def _check_model(model: nn.Module) -> None:
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise ConfigurationError(
            "give the Session the plain module: it reduces gradients itself (drop the DDP wrapper)"
        )
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats:
            raise ConfigurationError(
                f"{name or 'the model'} is {type(module).__name__}: running statistics differ between workers and "
                "have no rule here yet; use GroupNorm or LayerNorm"
            )
    if not any(p.requires_grad for p in model.parameters()):
        raise ConfigurationError("the model has no parameter that requires a gradient")


def _check_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigurationError("optimizer must be one torch.optim.Optimizer; several are not supported")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ConfigurationError("LBFGS evaluates the loss several times a step and cannot be used here")
    known = {id(p) for p in model.parameters()}
    if any(id(p) not in known for g in optimizer.param_groups for p in g["params"]):
        raise ConfigurationError("the optimizer holds parameters that the model does not have")
