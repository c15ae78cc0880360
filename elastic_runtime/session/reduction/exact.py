"""Sums of integers, which do not depend on who computed what: the same bits for every world size and placement.

With c = 62 - ⌈log2 S⌉ bits for one of the at most S micro-batches of a step, and E the exponent of a parameter
(its gradients are below 2^(E+12)), the gradient g of one micro-batch, scaled by its weight, becomes the integer
round-half-even(g · 2^k) with k = c - 12 - E: below 2^c, so that S of them fit int64. These are added up, in the worker
and over the world, in any order. The result is float64(sum) · (2^-k / (Σ w / b)), cast to the parameter's dtype.
Scaling by powers of two is exact, so the only rounding before the end is to a multiple of 2^-k.

E is the binary exponent of the largest gradient that the last committed step installed for this parameter, 12 bits of
headroom above it: a function of committed values, hence of no placement. It is one per parameter because anything
larger would tie the bits to the way parameters are grouped. A gradient outside of its range makes every rank redo the
step with all exponents raised. Non-finite gradients are counted apart and make the parameter's result NaN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import frexp, isfinite, nan
from typing import Any

import torch
from torch import Tensor, nn

from elastic_runtime.errors import ConfigurationError
from elastic_runtime.session.reduction.base import Reduction
from elastic_runtime.session.reduction.buckets import Bucket, flat_views
from elastic_runtime.session.reduction.summary import Summary, fact_code

_SUM_BITS = 62
_HEADROOM_BITS = 12
_GROWTH_BITS = 16
_EXPONENT_LIMIT = 60
# With it the range holds every finite float32, so that growing comes to an end.
_LARGEST_EXPONENT = 128 - _HEADROOM_BITS
_WIDENED = (torch.float16, torch.bfloat16)
_Kind = tuple[torch.dtype, torch.device]


class ExactReduction(Reduction):
    """Each micro-batch's gradient is converted and added as soon as autograd has it, then freed."""

    def __init__(self, parameters: Sequence[nn.Parameter], *, micro_batch_size: int, headroom_slots: int) -> None:
        for index, parameter in enumerate(parameters):
            if not parameter.is_floating_point():
                raise ConfigurationError(
                    f"reduction='exact' cannot sum the {parameter.dtype} parameter at place {index}"
                )
        if headroom_slots < 1:
            raise ConfigurationError(f"headroom_slots={headroom_slots} is not a number of micro-batches")
        super().__init__(parameters, micro_batch_size=micro_batch_size, buffer_dtype=torch.int64)
        self._slot_bits = _SUM_BITS - (headroom_slots - 1).bit_length()
        self._results = {
            member: view
            for bucket in self._buckets
            for member, view in zip(
                bucket.members, flat_views(bucket.parameters, bucket.parameters[0].dtype)[1], strict=True
            )
        }
        self._make_scratch()
        self._exponents = [0] * len(self.parameters)
        self._growth = 0
        self._set_scales()

    def start(self, *, group: Any, slots: int, share: range) -> None:
        super().start(group=group, slots=slots, share=share)
        self._sums = {
            member: view for bucket in self._buckets for member, view in zip(bucket.members, bucket.views, strict=True)
        }
        self._touched = bytearray(len(self.parameters))
        for kind, found in self._found.items():
            found.clear()
            self._peaks[kind].zero_()
        self._result_peaks: list[tuple[Sequence[int], Tensor]] = []

    def abandon(self) -> None:
        super().abandon()
        # Peers may not have seen the overflow that this rank saw: all redo the step from what was committed.
        self._growth = 0
        self._set_scales()

    def committed(self) -> None:
        for members, peaks in self._result_peaks:
            for member, peak in zip(members, peaks.tolist(), strict=True):
                if isfinite(peak):
                    exponent = frexp(peak)[1]
                    self._exponents[member] = max(-_EXPONENT_LIMIT, min(_EXPONENT_LIMIT, exponent))
        self._result_peaks = []
        self._growth = 0
        self._set_scales()

    def grow(self) -> None:
        self._growth += _GROWTH_BITS
        self._set_scales()

    def state_dict(self) -> dict[str, Any]:
        return {"exponents": torch.tensor(self._exponents, dtype=torch.int64)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        exponents = state["exponents"].tolist()
        if len(exponents) != len(self.parameters):
            raise ConfigurationError(f"{len(exponents)} exponents for {len(self.parameters)} parameters")
        self._exponents = exponents
        self._growth = 0
        self._set_scales()

    def _take_gradient(self, index: int, parameter: nn.Parameter) -> None:
        gradient = parameter.grad
        assert gradient is not None
        parameter.grad = None
        if gradient.dtype in _WIDENED:
            gradient = gradient.float()
        if gradient.numel():
            self._found_of[index].append((index, *torch.aminmax(gradient)))
        gradient.mul_(self._scales[index]).round_()
        if self._touched[index]:
            self._sums[index].add_(self._integers[index].copy_(gradient))
        else:
            self._sums[index].copy_(gradient)
            self._touched[index] = 1

    def _after_backward(self) -> None:
        for kind, found in self._found.items():
            if found:
                indices, lows, highs = zip(*found, strict=True)
                where = torch.tensor(indices, device=kind[1])
                peaks = self._peaks[kind]
                # maximum() keeps a NaN.
                peak = torch.maximum(torch.stack(highs), -torch.stack(lows)).double()
                peaks[where] = torch.maximum(peaks[where], peak)
                found.clear()

    def _codes(self) -> list[int]:
        peaks = {kind: values.tolist() for kind, values in self._peaks.items()}
        codes = []
        for index, parameter in enumerate(self.parameters):
            peak = peaks[parameter.dtype, parameter.device][index]
            overflow = peak >= self._limits[index]
            if not isfinite(peak) or (overflow and self._ranges[index] == _LARGEST_EXPONENT):
                codes.append(fact_code(used=True, nonfinite=True))
            else:
                codes.append(fact_code(used=bool(self._touched[index]), overflow=overflow))
        return codes

    def _fill(self, bucket: Bucket) -> None:
        for member, view in zip(bucket.members, bucket.views, strict=True):
            if not self._touched[member]:
                view.zero_()

    def _install(self, bucket: Bucket, summary: Summary, divisor: float) -> None:
        members, lows, highs = [], [], []
        for member, parameter, total in zip(bucket.members, bucket.parameters, bucket.views, strict=True):
            result = self._results[member]
            if not summary.used[member]:
                parameter.grad = None
                continue
            if summary.nonfinite[member]:
                result.fill_(nan)
            else:
                result.copy_(self._floats[member].copy_(total).mul_(1.0 / self._scales[member] / divisor))
            parameter.grad = result
            if result.numel():
                low, high = torch.aminmax(result)
                members.append(member)
                lows.append(low)
                highs.append(high)
        if members:
            self._result_peaks.append((members, torch.maximum(torch.stack(highs), -torch.stack(lows))))

    def _make_scratch(self) -> None:
        """One buffer per device, as large as the largest parameter, seen in the shape of each and as either type."""
        largest: dict[torch.device, int] = {}
        for parameter in self.parameters:
            largest[parameter.device] = max(largest.get(parameter.device, 0), parameter.numel())
        scratch = {device: torch.empty(n, dtype=torch.int64, device=device) for device, n in largest.items()}
        self._integers = [scratch[p.device][: p.numel()].view(p.shape) for p in self.parameters]
        self._floats = [integers.view(torch.float64) for integers in self._integers]
        self._found: dict[_Kind, list[tuple[int, Tensor, Tensor]]] = {}
        self._peaks: dict[_Kind, Tensor] = {}
        self._found_of = [self._found.setdefault((p.dtype, p.device), []) for p in self.parameters]
        for kind in self._found:
            self._peaks[kind] = torch.zeros(len(self.parameters), dtype=torch.float64, device=kind[1])

    def _set_scales(self) -> None:
        self._ranges = [min(exponent + self._growth, _LARGEST_EXPONENT) for exponent in self._exponents]
        self._limits = [2.0 ** (exponent + _HEADROOM_BITS) for exponent in self._ranges]
        self._scales = [2.0 ** (self._slot_bits - _HEADROOM_BITS - exponent) for exponent in self._ranges]
