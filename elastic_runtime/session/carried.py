"""Everything that moves with a step: model, optimizer, schedules, the script's own state, the reduction's exponents."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor, nn

from elastic_runtime.errors import ConfigurationError
from elastic_runtime.session.encoding import as_bytes, copy_range, decode, encode, from_payload, payload_bytes

__all__ = ["Carried", "copy_range", "decode", "encode", "from_payload", "payload_bytes"]


class Carried:
    """The state of a job: model, optimizer, learning-rate scheduler, gradient scaler, `state=` and the reduction."""

    def __init__(
        self,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        lr_scheduler: Any = None,
        grad_scaler: Any = None,
        state: Mapping[str, Any] | None = None,
        reduction: Any = None,
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._others: dict[str, Any] = {}
        for name, value in (("lr_scheduler", lr_scheduler), ("grad_scaler", grad_scaler), ("reduction", reduction)):
            if value is not None:
                self._others[name] = value
        for name, value in (state or {}).items():
            if not (callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))):
                raise ConfigurationError(
                    f"state[{name!r}] is a {type(value).__name__}; what is carried over a change of the world needs"
                    " state_dict() and load_state_dict()"
                )
            self._others[f"state.{name}"] = value

    def export(self, extra: Mapping[str, Any]) -> tuple[bytes, list[Tensor]]:
        """Describe the state as it is now, with the live tensors: valid until the next step changes them."""
        return encode(self._tree(extra))

    def load(self, spec: bytes, payload: Tensor) -> dict[str, Any]:
        """Take over the state of a peer and return its `extra`.

        Parameters and buffers are copied in place. Raises ConfigurationError, before anything is changed, when the
        peer's objects have other names, shapes or dtypes.
        """
        tree = from_payload(spec, payload)
        own = _model_tensors(self._model)
        _check_same_names("the objects of the Session", tree["others"], self._others)
        _check_same_tensors(tree["model"], own)
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(tree["model"][name])
        # The rest is kept by whoever loads it: as views it would hold the whole payload in memory.
        rest_spec, views = encode({key: tree[key] for key in ("modules", "optimizer", "others", "extra")})
        rest = decode(rest_spec, [view.clone() for view in views])
        modules = dict(self._model.named_modules())
        for name, value in rest["modules"].items():
            modules[name].set_extra_state(value)
        _load_optimizer(self._optimizer, rest["optimizer"])
        for name, value in self._others.items():
            value.load_state_dict(rest["others"][name])
        extra: dict[str, Any] = rest["extra"]
        return extra

    def fingerprint(self, extra: Mapping[str, Any]) -> str:
        """A hex digest of the state: equal state gives an equal digest, whatever the order of keys in its dicts."""
        spec, tensors = encode(self._tree(extra), canonical=True)
        digest = blake2b(spec, digest_size=16)
        for tensor in tensors:
            data = as_bytes(tensor).cpu()
            if data.numel():
                digest.update((ctypes.c_char * data.numel()).from_address(data.data_ptr()))
        return digest.hexdigest()

    def _tree(self, extra: Mapping[str, Any]) -> dict[str, Any]:
        own_extra_state = {
            name: module.get_extra_state()
            for name, module in self._model.named_modules()
            if type(module).get_extra_state is not nn.Module.get_extra_state
        }
        return {
            "model": _model_tensors(self._model),
            "modules": own_extra_state,
            "optimizer": self._optimizer.state_dict(),
            "others": {name: value.state_dict() for name, value in self._others.items()},
            "extra": dict(extra),
        }


def _model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, those outside of state_dict() included: a peer that lacks them computes other numbers."""
    tensors = {name: parameter.detach() for name, parameter in model.named_parameters()}
    tensors.update((name, buffer.detach()) for name, buffer in model.named_buffers())
    return tensors


def _check_same_names(what: str, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    for name in sorted(theirs.keys() ^ ours.keys()):
        has, lacks = ("a peer", "this worker") if name in theirs else ("this worker", "a peer")
        raise ConfigurationError(f"{what} differ between workers: {has} has {name!r}, {lacks} does not")


def _check_same_tensors(theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor]) -> None:
    _check_same_names("parameters and buffers of the model", theirs, ours)
    for name, tensor in ours.items():
        a, b = theirs[name], tensor
        if a.shape != b.shape or a.dtype != b.dtype:
            raise ConfigurationError(
                f"the model differs between workers: {name!r} is {b.dtype} {tuple(b.shape)} in this worker"
                f" and {a.dtype} {tuple(a.shape)} in a peer"
            )


def _load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    try:
        optimizer.load_state_dict(state)
    except ValueError as error:
        raise ConfigurationError(f"the optimizer differs between workers: {error}") from error
    # torch casts the state to the dtype of its parameter; state kept in a wider one would lose bits.
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, values in state["state"].items():
        if not (isinstance(index, int) and index < len(parameters) and isinstance(values, dict)):
            continue
        live = optimizer.state.get(parameters[index], {})
        for name, value in values.items():
            now = live.get(name)
            if isinstance(value, Tensor) and isinstance(now, Tensor) and now.dtype != value.dtype:
                live[name] = value.to(now.device)
