"""`Session`: what a training script opens.

It checks what it was asked for, puts the parts together and holds the public surface. A worker's life in generations
is `worker.py`, a step `step.py`, the gradient `reduction/`, what moves with a step `carried.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from elastic_runtime.core.messages import Failed, Finished, Refused
from elastic_runtime.core.recovery import FINISHING
from elastic_runtime.environment import session_defaults
from elastic_runtime.errors import BrokenCollective, ConfigurationError, LoopContractError
from elastic_runtime.session.carried import Carried
from elastic_runtime.session.defaults import UNSET, Unset, settle
from elastic_runtime.session.evaluate import evaluate
from elastic_runtime.session.membership import Membership, find_membership
from elastic_runtime.session.reduction import make_reduction
from elastic_runtime.session.step import Step, training_steps
from elastic_runtime.session.update import Update
from elastic_runtime.session.worker import Change, Worker

_open_session: Session | None = None


class Session:
    """Keep a model, its optimizer and its place in the data over every change of the workers.

    Args:
        model: plain module, replicated in every worker. Its parameters and buffers move with the state.
        optimizer: one torch optimizer over the model's parameters.
        lr_scheduler: stepped once after each optimizer step; ReduceLROnPlateau gets the step's loss.
        state: name -> anything with `state_dict` and `load_state_dict`, carried along.
        global_batch_size, micro_batch_size: samples; the first is a multiple of the second.
        batch_rule: "fixed_global" keeps the global batch at every world size; "fixed_per_worker" scales it with the
            world, `base_world_size` workers giving `global_batch_size`.
        lr_rule: how the learning rate follows the effective batch: "none", "linear" (Goyal et al. 2017), "sqrt"
            (Malladi et al. 2022), or a function of new/base batch. Always from the base value.
        reduction: "fast" as DDP does it, or "exact": the same bits for any history of world sizes.
        max_grad_norm: clip the global gradient norm to this before the optimizer's step.
        grad_scaler: a torch.amp.GradScaler.
        threads: intra-op threads of this worker; exact mode fixes one unless told.
        seed: of sample order and of all random numbers.

    What is not given here is what the file of `elasticrun --config` says, else: batch_rule="fixed_global",
    base_world_size=1, lr_rule="none", reduction="fast", seed=0, max_grad_norm=None, threads=None. The two sizes must
    be given in one of the two places.

    Raises ConfigurationError before joining anything.
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        global_batch_size: int | Unset = UNSET,
        micro_batch_size: int | Unset = UNSET,
        lr_scheduler: Any = None,
        state: Mapping[str, Any] | None = None,
        batch_rule: str | Unset = UNSET,
        base_world_size: int | Unset = UNSET,
        lr_rule: str | Callable[[float], float] | Unset = UNSET,
        reduction: str | Unset = UNSET,
        seed: int | Unset = UNSET,
        max_grad_norm: float | None | Unset = UNSET,
        grad_scaler: Any = None,
        threads: int | None | Unset = UNSET,
    ) -> None:
        given = {
            "global_batch_size": global_batch_size,
            "micro_batch_size": micro_batch_size,
            "batch_rule": batch_rule,
            "base_world_size": base_world_size,
            "lr_rule": lr_rule,
            "reduction": reduction,
            "seed": seed,
            "max_grad_norm": max_grad_norm,
            "threads": threads,
        }
        membership = find_membership()
        with _refused_once(membership):
            settled = settle(given, session_defaults())
            self.arguments = settled.arguments
            settled.check(model, optimizer)
            trained = [p for p in model.parameters() if p.requires_grad]
            self.reduction = make_reduction(
                self.arguments.reduction,
                trained,
                micro_batch_size=self.arguments.micro_batch_size,
                headroom_slots=self.arguments.headroom_slots,
            )
            carried = Carried(
                model=model,
                optimizer=optimizer,
                lr_scheduler=lr_scheduler,
                grad_scaler=grad_scaler,
                state=state or {},
                reduction=self.reduction,
            )
        self.grad_scaler = grad_scaler
        self.evaluations = 0  # begun since the last commit
        self.worker = Worker(membership, settled, carried, self.reduction)
        self.update = Update(optimizer, lr_scheduler, grad_scaler, trained)
        self._membership = membership
        self._carried = carried
        self._buffers = list(model.buffers())
        self._on_finish: list[Callable[[], object]] = []
        self._steps_opened = False

    @property
    def rank(self) -> int:
        return self.worker.world.rank

    @property
    def local_rank(self) -> int:
        return self.worker.world.local_rank

    @property
    def world_size(self) -> int:
        return self.worker.world.world_size

    @property
    def generation(self) -> int:
        return self.worker.world.generation

    def fingerprint(self) -> str:
        """Hex digest of all carried state. Independent of the world size and equal in all workers after a commit."""
        progress = self.worker.progress
        return self._carried.fingerprint({"step": progress.step, "position": progress.position})

    def on_resize(self, fn: Callable[[Change], object]) -> None:
        """Call `fn(change)` in every worker after each change of the world, before the next step."""
        self.worker.on_resize.append(fn)

    def before_update(self, fn: Callable[[], object]) -> None:
        """Call `fn()` between reduction and optimizer: gradients are the global batch's, unscaled, unclipped."""
        self.update.before.append(fn)

    def after_update(self, fn: Callable[[], object]) -> None:
        """Call `fn()` at the end of each commit: the place to change what `state=` carries (an EMA of the weights).

        The body of the loop is not: a worker that gets a step's result from a peer runs the body all the same, on a
        state that the peer's body may have changed already.
        """
        self.update.after.append(fn)

    def on_finish(self, fn: Callable[[], object]) -> None:
        """Call `fn()` on one worker after the last commit; on another one if that worker dies in it."""
        self._on_finish.append(fn)

    def steps(
        self,
        dataset: Any,
        *,
        max_steps: int | None = None,
        epochs: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
        shuffle: bool = True,
    ) -> Iterator[Step]:
        """Yield the optimizer steps still to be taken, each an iterable of this worker's micro-batches.

        Exactly one of `max_steps` (whole job) and `epochs`. `num_workers`: loader processes of each worker.
        """
        if self._steps_opened:
            raise LoopContractError("one steps() for a Session: a second loop would train the same samples again")
        self._steps_opened = True
        return training_steps(
            self,
            dataset,
            max_steps=max_steps,
            epochs=epochs,
            collate_fn=collate_fn,
            num_workers=num_workers,
            shuffle=shuffle,
        )

    def evaluate(self, dataset: Any, fn: Callable[[Any], Any], *, collate_fn: Any = None) -> float | torch.Tensor:
        """Sum `fn(batch)` over the whole dataset, sharded over the world; the same bits at every world size.

        `fn` returns a number, or a tensor of a fixed shape: the sum over the batch's samples. Survives changes.
        """
        return evaluate(self, dataset, fn, collate_fn)

    def __enter__(self) -> Session:
        global _open_session
        if _open_session is not None:
            raise LoopContractError("one Session at a time in a process: leave the first `with` before the second")
        if dist.is_initialized():
            raise LoopContractError(
                "delete the script's own init_process_group(...): the Session owns the default group"
            )
        if self.arguments.threads is not None:
            torch.set_num_threads(self.arguments.threads)
        _open_session = self
        try:
            self.worker.join()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._finish()
        except Exception as failed:
            error = failed
            raise
        finally:
            if isinstance(error, Exception):
                what = f"{type(error).__name__}: {error}"[:2000]
                self._membership.send(Failed(error=what, step=self.worker.progress.step))
            self._close()

    def _close(self) -> None:
        global _open_session
        self.reduction.close()
        self.worker.close()
        self.update.close()
        _open_session = None

    def _finish(self) -> None:
        """Wait for all, let one worker run the on_finish functions, wait again. Redone after a change."""
        ran = False
        worker = self.worker
        worker.progress = replace(worker.progress, finished=True)
        while True:
            try:
                with worker.at(FINISHING, 0):
                    worker.all_reduce(torch.zeros(1, dtype=torch.int64))
                    if worker.world.rank == 0 and not ran:
                        for fn in self._on_finish:
                            fn()
                        ran = True
                    worker.all_reduce(torch.zeros(1, dtype=torch.int64))
                break
            except BrokenCollective as broken:
                worker.recover(broken)
        self._membership.send(Finished(steps=worker.progress.step))

    # -- for steps ----------------------------------------------------------------------------------------------------

    def save_buffers(self) -> list[torch.Tensor]:
        return [buffer.clone() for buffer in self._buffers]

    def restore_buffers(self, saved: list[torch.Tensor]) -> None:
        """What a forward pass of the void attempt left in the buffers is undone."""
        for buffer, before in zip(self._buffers, saved, strict=True):
            buffer.copy_(before)


class _refused_once:
    """Under an agent a wrong argument is the agent's to print, once for the job: this worker ends without its own."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, ConfigurationError) or not self._membership.elastic:
            return
        self._membership.send(Refused(message=str(error)))
        usual = sys.excepthook

        def quiet(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
            if value is not error:
                usual(kind, value, trace)

        sys.excepthook = quiet
