"""Nested state as a description and bytes, and back."""

from __future__ import annotations

import itertools
from collections import Counter, OrderedDict
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from elastic_runtime.errors import ConfigurationError
from elastic_runtime.session.carried import copy_range, decode, encode, from_payload, payload_bytes

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.complex64,
    torch.int64,
    torch.uint8,
    torch.bool,
]


def through_bytes(tree: object) -> Any:
    spec, tensors = encode(tree)
    return from_payload(spec, copy_range(tensors, 0, payload_bytes(tensors)))


def bits(tensor: Tensor) -> list[int]:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist()


SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5) | st.binary(max_size=5)
)
KEYS = st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.tuples(st.integers(), st.text(max_size=3))
TREES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(KEYS, inner, max_size=3)
        | st.dictionaries(KEYS, inner, max_size=3).map(OrderedDict)
        | st.lists(inner, max_size=3).map(tuple)
    ),
    max_leaves=12,
)


def same(a: Any, b: Any) -> bool:
    """Equal with equal types all the way down: 1, True and 1.0 are three values, -0.0 and 0.0 are two."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return len(a) == len(b) and all(same(x, y) and same(a[x], b[y]) for x, y in zip(a, b, strict=True))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return repr(a) == repr(b)


@given(TREES)
@settings(deadline=None, max_examples=100)
def test_nested_values_come_back_with_their_types_and_order(tree: object) -> None:
    assert same(through_bytes(tree), tree)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (0, 4), (5, 7)])
def test_tensors_of_any_dtype_and_shape_come_back(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = (torch.rand(shape) * 3).to(dtype)
    # The odd one before it makes the alignment matter.
    back = through_bytes({"odd": torch.ones(3, dtype=torch.uint8), "it": [tensor]})["it"][0]
    assert (back.dtype, back.shape) == (dtype, tensor.shape)
    assert bits(back) == bits(tensor)


def test_strided_tensors_parameters_and_special_values_come_back() -> None:
    odd = torch.tensor([float("nan"), float("inf"), -0.0])
    tree = {"t": torch.arange(6.0).view(2, 3).t(), "c": torch.tensor([1 + 2j]).conj(), "p": nn.Parameter(odd)}
    back = through_bytes(tree)
    assert back["t"].tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    assert back["c"].tolist() == [1 - 2j]
    assert bits(back["p"]) == bits(odd)
    assert type(back["p"]) is Tensor


def test_numpy_values_and_counters_come_back() -> None:
    tree = {"a": numpy.arange(6).reshape(2, 3), "s": numpy.float64(0.1), "c": Counter(x=2)}
    back = through_bytes(tree)
    assert back["a"].dtype == tree["a"].dtype and numpy.array_equal(back["a"], tree["a"])
    assert type(back["s"]) is numpy.float64 and back["s"] == 0.1
    assert type(back["c"]) is Counter and back["c"] == {"x": 2}


def test_the_versions_in_a_modules_state_come_back() -> None:
    state = nn.BatchNorm1d(3).state_dict()
    assert through_bytes(state)._metadata == state._metadata == {"": {"version": 2}}


def test_encoding_keeps_the_live_tensors() -> None:
    tensor = torch.zeros(3)
    spec, tensors = encode({"x": tensor})
    tensor.fill_(2.0)
    assert decode(spec, tensors)["x"].tolist() == [2.0] * 3


@given(st.lists(st.integers(0, 40), max_size=4), st.data())
@settings(deadline=None, max_examples=60)
def test_any_ranges_put_together_are_the_payload(sizes: list[int], data: st.DataObject) -> None:
    tensors = [torch.arange(size, dtype=torch.int16) for size in sizes]
    total = payload_bytes(tensors)
    whole = copy_range(tensors, 0, total)
    cuts = sorted(data.draw(st.lists(st.integers(0, total), max_size=4)))
    edges = [0, *cuts, total]
    parts = [copy_range(tensors, low, high) for low, high in itertools.pairwise(edges)]
    assert torch.equal(torch.cat(parts), whole)


def test_wrong_ranges_and_payloads_are_refused() -> None:
    spec, tensors = encode([torch.zeros(4)])
    for low, high in ((-1, 3), (3, 2), (0, 17)):
        with pytest.raises(ValueError, match="not a range"):
            copy_range(tensors, low, high)
    with pytest.raises(ValueError, match="15 bytes where 16"):
        from_payload(spec, torch.zeros(15, dtype=torch.uint8))


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"a": [1, {2}]}, r"a\[1\] is a set"),
        ({"a": {"b": lambda: 0}}, r"a\['b'\] is a function"),
        ({"a": torch.eye(2).to_sparse()}, "only dense tensors"),
        ({"a": numpy.array(["x"])}, "a is a numpy value"),
        ({"a": {frozenset(): 1}}, "a has a key of type frozenset"),
        (object(), "the state is a object"),
    ],
)
def test_what_cannot_be_carried_is_named(tree: object, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        encode(tree)
