"""Transposes, reshapes and expansions: fewer of them, the same results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.ir.graph import Value
from graphkit.ir.types import TensorType
from graphkit.ops import F
from graphkit.passes.simplify.expand import eliminate_expand
from graphkit.passes.simplify.reshape import eliminate_reshape
from graphkit.passes.simplify.transpose import eliminate_transpose


def data(*shape: Any, name: str = "x") -> Value:
    return Value(TensorType("float32", shape), name)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def nhwc(x: Any) -> Any:
    return F.transpose(x, perm=(0, 2, 3, 1))


def nchw(x: Any) -> Any:
    return F.transpose(x, perm=(0, 3, 1, 2))


VECTOR = np.arange(4, dtype=np.float32)


@in_one_item()
@pytest.mark.parametrize(
    ("build", "left"),
    [
        (lambda x: nchw(nhwc(x)), []),
        (lambda x: nhwc(nhwc(x)), ["Transpose"]),
        (lambda x: nchw(F.relu(nhwc(x))), ["Relu"]),
        (lambda x: nchw(F.tanh(nhwc(x) * 2.0)), ["Mul", "Tanh"]),
        (lambda x: nchw(F.add(nhwc(x), nhwc(F.neg(x)))), ["Add", "Neg"]),
        (lambda x: nchw(F.add(nhwc(x), VECTOR)), ["Add", "Unsqueeze"]),
        (lambda x: nchw(F.add(nhwc(x), VECTOR[:1])), ["Add"]),
        (lambda x: nchw(F.clip(nhwc(x), np.float32(0), np.float32(1))), ["Clip"]),
        (lambda x: nchw(F.where(nhwc(x) > 0.0, nhwc(x), nhwc(F.exp(x)))), ["Exp", "Greater", "Where"]),
        # An operand that is not transposed alike.
        (lambda x: F.add(nhwc(x), np.ones((1, 1, 5, 1), np.float32)), ["Add", "Transpose"]),
        # Attention's transposition of flattened heads.
        (
            lambda x: F.reshape(F.transpose(F.reshape(x, ints(-1, 3, 5)), perm=(0, 2, 1)), F.concat(
                F.shape(x, start=0, end=1), ints(4, 5, 3), axis=0)),
            ["Transpose"],
        ),
    ],
)  # fmt: skip
def test_transposes(apply: Any, build: Callable[[Any], Value], left: list[str]) -> None:
    x = data("N", 4, 3, 5)
    assert sorted(apply([x], build(x), eliminate_transpose, N=2).elements()) == left


def test_heads_that_are_regrouped_after_a_transpose_stay(apply: Any) -> None:
    """The last Reshape does not undo the first one: eliminating both would change the shape of the result."""
    for target in (ints(6, 5, 4), ints(3, 2, 5, 4), ints(2, 15, 4), ints(2, 3, 4, 5)):
        x = data(2, 3, 4, 5)
        y = F.reshape(F.transpose(F.reshape(x, ints(6, 4, 5)), perm=(0, 2, 1)), target)
        assert apply([x], y, eliminate_transpose) == {"Transpose": 1, "Reshape": 2}
    x = data(2, 3, 4, 5)
    y = F.reshape(F.transpose(F.reshape(x, ints(6, 4, 5)), perm=(0, 2, 1)), ints(2, 3, 5, 4))
    assert apply([x], y, eliminate_transpose) == {"Transpose": 1}
    # The first Reshape moves elements between the last two axes.
    y = F.reshape(F.transpose(F.reshape(x, ints(6, 5, 4)), perm=(0, 2, 1)), ints(2, 3, 4, 5))
    assert apply([x], y, eliminate_transpose) == {"Transpose": 1, "Reshape": 2}


def test_a_transposed_tensor_with_other_readers_stays(apply: Any) -> None:
    x = data("N", 4, 3, 5)
    y = nhwc(x)
    assert apply([x], [F.relu(y), y], eliminate_transpose, N=2) == {"Transpose": 1, "Relu": 1}
    cube = data(3, 3, 3)
    y = F.add(F.transpose(cube, perm=(1, 0, 2)), F.transpose(F.exp(cube), perm=(0, 2, 1)))
    assert apply([cube], y, eliminate_transpose) == {"Transpose": 2, "Exp": 1, "Add": 1}


@in_one_item()
@pytest.mark.parametrize(
    ("build", "left"),
    [
        (lambda x: F.reshape(F.reshape(x, ints(-1, 12)), ints(-1, 3, 4)), []),
        (lambda x: F.reshape(F.flatten(x), ints(0, 2, 6)), ["Reshape"]),
        (lambda x: F.squeeze(F.unsqueeze(x, ints(0)), ints(0)), []),
        (lambda x: F.unsqueeze(F.reshape(x, ints(-1, 12)), ints(1)), ["Reshape"]),
        (lambda x: F.reshape(x, F.concat(F.shape(x, start=0, end=1), ints(12), axis=0)), ["Reshape"]),
        (lambda x: F.transpose(F.reshape(x, ints(-1, 1, 12)), perm=(1, 0, 2)), ["Reshape"]),
        (lambda x: F.transpose(F.unsqueeze(x, ints(3)), perm=(0, 3, 1, 2)), ["Reshape"]),
        (lambda x: F.flatten(x), ["Flatten"]),
        (lambda x: F.transpose(x, perm=(1, 0, 2)), ["Transpose"]),
    ],
)
def test_reshapes(apply: Any, build: Callable[[Any], Value], left: list[str]) -> None:
    x = data("N", 3, 4)
    assert sorted(apply([x], build(x), eliminate_reshape, N=2).elements()) == left


def test_a_reshape_of_two_unknown_dimensions_stays(apply: Any) -> None:
    x = data("N", "T", 4)
    target = F.concat(F.shape(x, start=0, end=2), ints(2, 2), axis=0)
    assert apply([x], F.reshape(x, target), eliminate_reshape, N=2, T=3)["Concat"] == 1


def test_expansions(apply: Any) -> None:
    x, w = data("N", 3, 4), Value(TensorType("float32", (4,)), "w", role="parameter")
    assert apply([x, w], F.p_relu(x, F.expand(w, ints(3, 4))), eliminate_expand, N=2) == {"PRelu": 1}
    assert apply([x, w], F.p_relu(F.expand(w, ints(2, 3, 4)), x), eliminate_expand, N=2) == {"PRelu": 1, "Expand": 1}
    assert apply([x, w], F.add(F.expand(w, F.shape(x)), x), eliminate_expand, N=2)["Expand"] == 0
    grown = F.expand(w, ints(5, 1, 3, 4))
    assert apply([x, w], F.add(grown, x), eliminate_expand, N=2) == {"Expand": 1, "Add": 1}
    assert apply([x, w], F.add(grown, grown), eliminate_expand, N=2) == {"Expand": 1, "Add": 1}
