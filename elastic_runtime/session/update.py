"""From the global batch's gradient to the next parameters: hooks, clipping, learning rate, optimizer, schedule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from elastic_runtime.errors import LoopContractError


class Update:
    """The commit of a step on one worker. It holds no collective: it cannot be broken, only die with its process."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        lr_scheduler: Any,
        grad_scaler: Any,
        parameters: Sequence[nn.Parameter],
    ) -> None:
        self.before: list[Callable[[], object]] = []
        self.after: list[Callable[[], object]] = []
        self._optimizer, self._lr_scheduler, self._grad_scaler = optimizer, lr_scheduler, grad_scaler
        self._parameters = list(parameters)
        self._running = False
        self._guard = optimizer.register_step_pre_hook(self._forbid_foreign_step)

    def apply(self, loss: float, lr_factor: float, max_grad_norm: float | None) -> None:
        """Order: unscale, `before`, clip, scale the learning rate, optimizer, restore it, schedule, `after`.

        Schedulers of torch write the rate every step and some read it back, so they must never see the scaled one.
        """
        if self._grad_scaler is not None:
            self._grad_scaler.unscale_(self._optimizer)
        for fn in self.before:
            fn()
        if max_grad_norm is not None:
            nn.utils.clip_grad_norm_(self._parameters, max_grad_norm)
        groups = self._optimizer.param_groups
        unscaled = [group["lr"] for group in groups]
        self._running = True
        try:
            if lr_factor != 1.0:
                for group in groups:
                    group["lr"] = group["lr"] * lr_factor
            self._step_optimizer()
        finally:
            self._running = False
            for group, lr in zip(groups, unscaled, strict=True):
                group["lr"] = lr
        if isinstance(self._lr_scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            self._lr_scheduler.step(loss)
        elif self._lr_scheduler is not None:
            self._lr_scheduler.step()
        for fn in self.after:
            fn()

    def close(self) -> None:
        self._guard.remove()

    def _step_optimizer(self) -> None:
        if self._grad_scaler is None:
            self._optimizer.step()
        else:
            self._grad_scaler.step(self._optimizer)
            self._grad_scaler.update()

    def _forbid_foreign_step(self, *_: object) -> None:
        if not self._running:
            raise LoopContractError(
                "the Session calls optimizer.step() when the micro-batches run out: delete the script's own"
            )
