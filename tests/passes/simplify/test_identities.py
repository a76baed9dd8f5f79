"""Simplification: what provably changes nothing goes, everything else stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F
from graphkit.ops.evaluate import evaluate
from graphkit.passes.simplify.identities import simplify


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def ops_of(build: Callable[[Value], Any], *shape: Any) -> list[str]:
    """Operators left of `build(x)`, constants aside; checks that results stay what they were."""
    x = Value(TensorType("float32", shape), "x")
    y = build(x)
    graph = Graph([x], list(y) if isinstance(y, tuple) else [y])
    simple = simplify(graph)
    assert simple.output_names == graph.output_names
    array = np.random.default_rng(0).standard_normal([d if isinstance(d, int) else 2 for d in shape]).astype(np.float32)
    for found, wanted in zip(evaluate(simple, [array]), evaluate(graph, [array]), strict=True):
        np.testing.assert_array_equal(found, wanted)
    return [node.op.name for node in simple.nodes if node.op.name != "Constant"]


@pytest.mark.parametrize(
    "build",
    [
        lambda x: F.identity(F.identity(x)),
        lambda x: F.cast(x, to="float32"),
        lambda x: F.expand(x, F.shape(x)),
        lambda x: F.expand(x, ints(1, 3)),
        lambda x: F.reshape(x, F.shape(x)),
        lambda x: F.reshape(x, ints(0, 3)),
        lambda x: F.reshape(F.reshape(x, ints(-1)), F.shape(x)),
        lambda x: F.reshape(F.flatten(x), F.shape(x)),
        lambda x: F.transpose(F.transpose(x)),
        lambda x: F.transpose(x, perm=(0, 1)),
        lambda x: F.reduce_to_shape_of(x, F.neg(x)),
        lambda x: F.dropout(x)[0],
        lambda x: F.dropout(x, np.float32(0.5), np.array(False))[0],
        lambda x: F.concat(x, axis=1),
        lambda x: F.max([x]),
        lambda x: F.slice(x, ints(0), ints(3), ints(1)),
        lambda x: F.pad(x, ints(0, 0, 0, 0)),
        lambda x: F.tile(x, ints(1, 1)),
        lambda x: F.where(np.array([True, True, True]), x, np.float32(0)),
        lambda x: F.where(np.array(False), np.float32(0), x),
    ],
)
def test_nothing_is_left(build: Callable[[Value], Any]) -> None:
    left = ops_of(build, "N", 3)
    assert left == []


@pytest.mark.parametrize(
    ("build", "left"),
    [
        (lambda x: F.cast(x, to="float64"), ["Cast"]),
        (lambda x: F.expand(x, ints(5, 1, 1)), ["Expand"]),
        (lambda x: F.transpose(x), ["Transpose"]),
        (lambda x: F.reshape(F.reshape(x, ints(3, -1)), ints(-1)), ["Reshape"]),
        (lambda x: F.reshape(F.reshape(x, ints(3, -1)), ints(0, -1, 1)), ["Reshape", "Reshape"]),
        (lambda x: F.slice(x, ints(-1), ints(-4), ints(1), ints(-1)), ["Slice"]),
        (lambda x: F.slice(x, ints(1), ints(3), ints(1)), ["Slice"]),
        (lambda x: F.dropout(x)[1], ["Dropout"]),
        (lambda x: F.where(np.array([True, False, True]), x, np.float32(0)), ["Where"]),
        (lambda x: F.where(np.array([[[True]]]), x, np.float32(0)), ["Where"]),
        (lambda x: F.pad(x, ints(0, 1, 0, 0)), ["Pad"]),
        (lambda x: F.reduce_to_shape_of(F.expand(x, ints(4, 1, 1)), x), ["Expand", "ReduceToShapeOf"]),
    ],
)
def test_what_changes_something_stays(build: Callable[[Value], Any], left: list[str]) -> None:
    assert ops_of(build, "N", 3) == left


def test_transposes_compose() -> None:
    assert ops_of(lambda x: F.transpose(F.transpose(x, perm=(1, 2, 0)), perm=(1, 2, 0)), 2, 3, 4) == ["Transpose"]
    assert ops_of(lambda x: F.transpose(F.transpose(x, perm=(1, 2, 0)), perm=(2, 0, 1)), 2, 3, 4) == []


def test_dimensions_that_may_be_equal_prove_nothing() -> None:
    x, y = Value(TensorType("float32", ("N",)), "x"), Value(TensorType("float32", ("M",)), "y")
    simple = simplify(Graph([x, y], [F.reduce_to_shape_of(F.add(x, y), x)]))
    assert simple.nodes[-1].op.name == "ReduceToShapeOf"


def test_updates_survive() -> None:
    s = Value(TensorType("float32", (2,)), "s", role="state")
    t = Value(TensorType("float32", (2,)), "t", role="state")
    simple = simplify(Graph([s, t], [], [(s, F.identity(t)), (t, F.identity(s))]))
    assert [(a.name, b.name) for a, b in simple.updates] == [("s", "t"), ("t", "s")]
    assert not simple.nodes


def test_long_chain() -> None:
    x = value = Value(TensorType("float32", (2, 3)), "x")
    for _ in range(20_000):
        value = F.transpose(F.identity(value))
    assert not simplify(Graph([x], [value])).nodes


@pytest.mark.parametrize(
    ("shape", "like", "sums"),
    [((2, 3), (2, 3), False), ((2, 3), (3,), True), ((4, 1, 3), (1, 3), True), ((4, 2, 3), (2, 1), True)],
)
def test_the_gradient_of_broadcasting_is_a_sum_where_shapes_are_known(
    shape: tuple[int, ...], like: tuple[int, ...], sums: bool
) -> None:
    other = F.constant(value=np.zeros(like, np.float32))
    left = ops_of(lambda x: F.reduce_to_shape_of(x, other), *shape)
    assert ("ReduceSum" in left) == sums
    assert "ReduceToShapeOf" not in left
    assert ops_of(lambda x: F.reduce_to_shape_of(x, other), "N", *shape) == ["ReduceToShapeOf"]
