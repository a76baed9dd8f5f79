"""Simplification: nodes that provably change nothing are removed, and all others are kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F
from graphkit.ops.evaluate import evaluate
from graphkit.passes.simplify.identities import simplify


def test_equal_sums_share_their_axes() -> None:
    x, like = Value(TensorType("float32", (3, 4)), "x"), Value(TensorType("float32", (4,)), "like")
    sums = [F.reduce_to_shape_of(f(x), like) for f in (F.exp, F.neg, F.abs)]
    simple = simplify(Graph([x, like], sums))
    assert sorted(node.op.name for node in simple.nodes) == sorted(
        ["Abs", "Constant", "Exp", "Neg"] + 3 * ["ReduceSum"]
    )


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def ops_of(build: Callable[[Value], Any], *shape: Any) -> list[str]:
    """Return the remaining operators of `build(x)` without constants. Checks that the results stay the same."""
    x = Value(TensorType("float32", shape), "x")
    y = build(x)
    graph = Graph([x], list(y) if isinstance(y, tuple) else [y])
    simple = simplify(graph)
    assert simple.output_names == graph.output_names
    array = np.random.default_rng(0).standard_normal([d if isinstance(d, int) else 2 for d in shape]).astype(np.float32)
    for found, wanted in zip(evaluate(simple, [array]), evaluate(graph, [array]), strict=True):
        np.testing.assert_array_equal(found, wanted)
    return [node.op.name for node in simple.nodes if node.op.name != "Constant"]


@in_one_item()
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
        lambda x: F.mul(x, np.float32(1)),
        lambda x: F.mul(F.expand(np.float32(1), F.shape(x)), x),
        lambda x: F.div(x, np.ones((1, 3), np.float32)),
        lambda x: F.add(np.float32(-0.0), x),
        lambda x: F.sub(x, np.zeros(3, np.float32)),
    ],
)
def test_nothing_is_left(build: Callable[[Value], Any]) -> None:
    left = ops_of(build, "N", 3)
    assert left == []


@in_one_item()
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
        # -0.0 + 0.0 is 0.0, 1 / x is not x, and the others have more elements, or another value.
        (lambda x: F.add(x, np.float32(0)), ["Add"]),
        (lambda x: F.div(np.float32(1), x), ["Div"]),
        (lambda x: F.sub(np.zeros(3, np.float32), x), ["Sub"]),
        (lambda x: F.mul(x, np.ones((2, 1, 1), np.float32)), ["Mul"]),
        (lambda x: F.mul(x, np.array([1, 1, 2], np.float32)), ["Mul"]),
        (lambda x: F.reduce_to_shape_of(F.expand(x, ints(4, 1, 1)), x), ["Expand", "ReduceToShapeOf"]),
    ],
)
def test_what_changes_something_stays(build: Callable[[Value], Any], left: list[str]) -> None:
    assert ops_of(build, "N", 3) == left


@in_one_item()
@pytest.mark.parametrize(
    ("source", "through", "back", "left"),
    [
        ("float32", "float64", "float32", 0),
        ("float16", "float32", "float16", 0),
        ("bfloat16", "float32", "bfloat16", 0),
        ("bool", "uint8", "bool", 0),
        ("int32", "int64", "int32", 0),
        ("int32", "float64", "int32", 0),
        # The type in between does not hold every value.
        ("int32", "float32", "int32", 2),
        ("int64", "float64", "int64", 2),
        ("int32", "int16", "int32", 2),
        ("float32", "float16", "float32", 2),
        ("float32", "bfloat16", "float32", 2),
        ("float16", "bfloat16", "float16", 2),
        ("float32", "int64", "float32", 2),
        # The result has another type.
        ("int32", "int64", "int16", 2),
    ],
)
def test_casts_through_another_type(source: str, through: str, back: str, left: int) -> None:
    x = Value(TensorType(source, ("N",)), "x")
    graph = Graph([x], [F.cast(F.cast(x, to=through), to=back)])
    assert len(simplify(graph).nodes) == left


def test_neutral_elements_keep_the_bits() -> None:
    array = np.array([-0.0, 0.0, np.inf, np.nan, 1e-45], np.float32)
    x = Value(TensorType("float32", (5,)), "x")
    graph = Graph([x], [F.sub(F.div(F.add(F.mul(x, np.float32(1)), np.float32(-0.0)), np.float32(1)), np.float32(0))])
    simple = simplify(graph)
    assert simple.outputs == simple.inputs
    assert evaluate(graph, [array])[0].tobytes() == array.tobytes()


def test_large_integers_are_rounded_by_float32() -> None:
    x = Value(TensorType("int32", (3,)), "x")
    graph = Graph([x], [F.cast(F.cast(x, to="float32"), to="int32")])
    array = np.array([2**24 + 1, -(2**24) - 1, 7], np.int32)
    assert evaluate(simplify(graph), [array])[0].tolist() == [2**24, -(2**24), 7]


def test_a_slice_with_one_step_other_than_one_stays() -> None:
    """Any step keeps the size of an axis with at most one element. For longer axes, only a step of 1 does."""
    for steps in ((1, -1), (-1, 1), (-1, -1)):
        starts = ints(*(0 if step == 1 else -1 for step in steps))
        ends = ints(*(9 if step == 1 else -9 for step in steps))
        assert ops_of(lambda x, a=starts, e=ends, s=steps: F.slice(x, a, e, ints(0, 1), ints(*s)), 2, 3) == ["Slice"]
    assert ops_of(lambda x: F.slice(x, ints(0, 0), ints(9, 9), ints(0, 1), ints(1, 1)), 2, 3) == []


def test_a_sum_to_an_unknown_shape_stays() -> None:
    """It is not enough that one of the two shapes is known."""
    x, like = Value(TensorType("float32", (4, 3)), "x"), Value(TensorType("float32", ("N",)), "like")
    simple = simplify(Graph([x, like], [F.reduce_to_shape_of(x, like)]))
    assert [node.op.name for node in simple.nodes] == ["ReduceToShapeOf"]


@in_one_item()
@pytest.mark.parametrize(("operator", "neutral"), [(F.and_, True), (F.or_, False)], ids=["and", "or"])
def test_neutral_constants_of_logic_go(operator: Callable[..., Any], neutral: bool) -> None:
    x = Value(TensorType("bool", (2, 3)), "x")
    constants = {(): 0, (1,): 0, (1, 1): 0, (3,): 1, (1, 1, 1): 1}
    for shape, left in constants.items():
        for order in (1, -1):
            operands = (x, F.constant(value=np.full(shape, neutral)))[::order]
            assert sum(n.op.name != "Constant" for n in simplify(Graph([x], [operator(*operands)])).nodes) == left
    for order in (1, -1):
        operands = (x, F.constant(value=np.array(not neutral)))[::order]
        assert any(n.op.name != "Constant" for n in simplify(Graph([x], [operator(*operands)])).nodes)


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
    for _ in range(5_000):
        value = F.transpose(F.identity(value))
    assert not simplify(Graph([x], [value])).nodes


@in_one_item()
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
