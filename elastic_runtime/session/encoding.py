"""Nested state as a JSON description and a list of tensors, and as bytes of which any range can be sent.

The description (`spec`) holds the shape of the state and all small values; tensors stand beside it in the order in
which the description names them. Laid end to end, each at a multiple of 16 bytes, they are the payload, any range of
which can come from any peer that holds equal state. Nothing is ever pickled.
"""

from __future__ import annotations

import base64
import json
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from elastic_runtime.errors import ConfigurationError

# Views of any dtype into the payload need an offset that is a multiple of the element size.
_ALIGNMENT = 16
_MAPPINGS: dict[str, Callable[[], dict[Any, Any]]] = {"dict": dict, "ordered": OrderedDict, "counter": Counter}
_MAPPING_TAGS = {dict: "dict", OrderedDict: "ordered", Counter: "counter"}


def encode(tree: object, *, canonical: bool = False) -> tuple[bytes, list[Tensor]]:
    """Describe `tree`: nested dicts, lists, tuples, scalars, strings, bytes, numpy values and dense tensors.

    The tensors returned are those of the tree, not copies. With `canonical`, equal trees give equal results whatever
    the order of the keys in their dicts. Raises ConfigurationError that names the path of what cannot be carried.
    """
    encoder = _Encoder(canonical=canonical)
    body = encoder.node(tree, "")
    signatures = [[str(tensor.dtype).removeprefix("torch."), list(tensor.shape)] for tensor in encoder.tensors]
    return json.dumps({"tensors": signatures, "tree": body}, separators=(",", ":")).encode(), encoder.tensors


def decode(spec: bytes, tensors: Sequence[Tensor]) -> Any:
    """The tree that `encode` described, with `tensors` in the places of the original ones."""
    return _Decoder([tensor.view(shape) for tensor, (_, shape) in zip(tensors, _signatures(spec), strict=True)]).tree(
        json.loads(spec)["tree"]
    )


def payload_bytes(tensors: Sequence[Tensor]) -> int:
    """The length of the payload of these tensors."""
    return _layout([tensor.numel() * tensor.element_size() for tensor in tensors])[1]


def copy_range(tensors: Sequence[Tensor], low: int, high: int) -> Tensor:
    """The bytes [low, high) of the payload, as a new uint8 tensor in host memory."""
    sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
    starts, total = _layout(sizes)
    if not 0 <= low <= high <= total:
        raise ValueError(f"[{low}, {high}) is not a range of a payload of {total} bytes")
    out = torch.zeros(high - low, dtype=torch.uint8)
    for tensor, start, size in zip(tensors, starts, sizes, strict=True):
        first, last = max(low, start), min(high, start + size)
        if first < last:
            out[first - low : last - low].copy_(as_bytes(tensor)[first - start : last - start])
    return out


def from_payload(spec: bytes, payload: Tensor) -> Any:
    """The tree of `spec` with tensors that are views of `payload` (uint8, one dimension, host memory)."""
    signatures = _signatures(spec)
    sizes = [dtype.itemsize * torch.Size(shape).numel() for dtype, shape in signatures]
    starts, total = _layout(sizes)
    if payload.numel() != total:
        raise ValueError(f"a payload of {payload.numel()} bytes where {total} were described")
    views = [
        payload[start : start + size].view(dtype)
        for (dtype, _), start, size in zip(signatures, starts, sizes, strict=True)
    ]
    return decode(spec, views)


def _layout(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where each of these many bytes starts in the payload, and the payload's length."""
    starts, end = [], 0
    for size in sizes:
        starts.append(end)
        end += -(-size // _ALIGNMENT) * _ALIGNMENT
    return starts, end


def as_bytes(tensor: Tensor) -> Tensor:
    """The elements of `tensor` in row-major order, as a flat uint8 tensor on its device."""
    dense = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return dense.reshape(-1).view(torch.uint8)


def _signatures(spec: bytes) -> list[tuple[torch.dtype, list[int]]]:
    return [(getattr(torch, dtype), shape) for dtype, shape in json.loads(spec)["tensors"]]


class _Encoder:
    """Values that JSON has stand for themselves; everything else is an object with a single, tagged member."""

    def __init__(self, *, canonical: bool) -> None:
        self._canonical = canonical
        self.tensors: list[Tensor] = []

    def node(self, value: Any, path: str) -> Any:
        kind = type(value)
        if value is None or kind in (bool, int, float, str):
            return value
        if kind is list:
            return [self.node(item, f"{path}[{i}]") for i, item in enumerate(value)]
        if kind is tuple:
            return {"tuple": [self.node(item, f"{path}[{i}]") for i, item in enumerate(value)]}
        if kind in _MAPPING_TAGS:
            return self._mapping(value, path)
        if kind is bytes:
            return {"bytes": base64.b64encode(value).decode()}
        if isinstance(value, Tensor):
            return {"tensor": self._tensor(value, path)}
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
            return {"array" if kind is numpy.ndarray else "numpy": self._array(numpy, value, path)}
        raise ConfigurationError(f"{path or 'the state'} is a {kind.__name__}, which cannot be carried between workers")

    def _mapping(self, value: dict[Any, Any], path: str) -> dict[str, Any]:
        keys = [(self._key(key, path), key) for key in value]
        if self._canonical:
            keys.sort(key=lambda pair: json.dumps(pair[0]))
        items = [[code, self.node(value[key], f"{path}[{key!r}]" if path else str(key))] for code, key in keys]
        encoded: dict[str, Any] = {_MAPPING_TAGS[type(value)]: items}
        # Modules keep the versions of their state_dict in this attribute.
        metadata = getattr(value, "_metadata", None)
        if metadata is not None:
            encoded["metadata"] = self.node(metadata, f"{path}._metadata")
        return encoded

    def _key(self, key: Any, path: str) -> Any:
        if key is None or type(key) in (bool, int, float, str, bytes):
            return self.node(key, path)
        if type(key) is tuple:
            return {"tuple": [self._key(item, path) for item in key]}
        raise ConfigurationError(
            f"{path or 'the state'} has a key of type {type(key).__name__}, which cannot be carried"
        )

    def _tensor(self, value: Tensor, path: str) -> int:
        if value.layout != torch.strided or value.is_quantized or type(value) not in (Tensor, nn.Parameter, nn.Buffer):
            raise ConfigurationError(
                f"{path} is a {type(value).__name__} ({value.layout}); only dense tensors are carried"
            )
        self.tensors.append(value.detach())
        return len(self.tensors) - 1

    def _array(self, numpy: Any, value: Any, path: str) -> int:
        try:
            # A copy: torch takes no views of read-only arrays, and they are small.
            return self._tensor(torch.from_numpy(numpy.array(value, order="C", copy=True)), path)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"{path} is a numpy value of dtype {value.dtype}, which cannot be carried"
            ) from error


class _Decoder:
    def __init__(self, tensors: list[Tensor]) -> None:
        self._tensors = tensors

    def tree(self, node: Any) -> Any:
        if isinstance(node, list):
            return [self.tree(item) for item in node]
        if not isinstance(node, dict):
            return node
        tag, value = next(iter(node.items()))
        if tag == "tuple":
            return tuple(self.tree(item) for item in value)
        if tag == "bytes":
            return base64.b64decode(value)
        if tag == "tensor":
            return self._tensors[value]
        if tag in ("array", "numpy"):
            array = self._tensors[value].numpy()
            return array if tag == "array" else array[()]
        mapping = _MAPPINGS[tag]()
        for key, item in value:
            mapping[self.tree(key)] = self.tree(item)
        if "metadata" in node:
            mapping._metadata = self.tree(node["metadata"])  # type: ignore[attr-defined]
        return mapping
