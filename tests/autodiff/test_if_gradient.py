"""The gradient of If: an If on the same condition, with zeros for values that the taken branch does not read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.autodiff import gradient
from graphkit.checks.gradcheck import check_gradient
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F
from graphkit.ops.evaluate import evaluate
from graphkit.passes.control.merge import merge_control

Check = Callable[..., None]
RNG = np.random.default_rng(5)


def float64(*shape: Any, name: str) -> Value:
    return Value(TensorType("float64", shape), name)


def flag(name: str = "p") -> Value:
    return Value(TensorType("bool", ()), name)


def draw(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape)


def ifs(graph: Graph) -> list[Node]:
    return [n for n in graph.nodes if n.op.name == "If"]


BOTH = pytest.mark.parametrize("taken", [True, False])
ROWS = pytest.mark.parametrize("rows", [2, "N"])


@BOTH
@ROWS
def test_two_branches(check: Check, rows: Any, taken: bool) -> None:
    p, x, w = flag(), float64(rows, 3, name="x"), float64(3, name="w")
    y = gk.cond(p, lambda: F.sin(F.mul(F.exp(x), w)), lambda: F.mul(F.tanh(x), x))
    check([p, x, w], y, [np.array(taken), draw(2, 3), draw(3)])


@BOTH
def test_results_of_several_kinds(check: Check, taken: bool) -> None:
    p, x, w = flag(), float64(2, 3, name="x"), float64(3, name="w")

    def one() -> tuple[Value, Value]:
        h = F.exp(F.mul(x, w))
        return h, F.reduce_sum(F.mul(h, h), keepdims=False)

    y = gk.cond(p, one, lambda: (F.mul(x, x), F.reduce_sum(F.sin(w), keepdims=False)))
    check([p, x, w], y, [np.array(taken), draw(2, 3), draw(3)])
    check([p, x, w], y[1], [np.array(taken), draw(2, 3), draw(3)])


@BOTH
def test_results_of_different_shapes(check: Check, taken: bool) -> None:
    p, x = flag(), float64("N", 3, name="x")
    y = gk.cond(p, lambda: F.exp(x), lambda: F.exp(F.concat(x, F.sin(x), axis=0)))
    check([p, x], y, [np.array(taken), draw(2, 3)])


@BOTH
def test_a_value_whose_shape_depends_on_data(check: Check, taken: bool) -> None:
    p, x = flag(), float64("N", name="x")
    chosen = Value(TensorType("bool", ("N",)), "chosen")

    def kept() -> Value:
        h = F.exp(F.compress(x, chosen, axis=0))
        return F.reduce_sum(F.mul(h, F.sin(h)), keepdims=False)

    y = gk.cond(p, kept, lambda: F.reduce_sum(F.mul(x, x), keepdims=False))
    check([p, x, chosen], y, [np.array(taken), draw(4), np.array([True, False, True, True])])


def test_the_branch_not_taken_gives_zeros_and_never_nan() -> None:
    p, x = flag(), float64(3, name="x")
    y = gk.cond(p, lambda: F.mul(x, x), lambda: F.sqrt(F.log(x)))
    (dx,) = gradient([y], [x])
    array = np.array([-1.0, 0.0, 2.0])
    np.testing.assert_array_equal(evaluate(Graph([p, x], [dx]), [np.array(True), array])[0], 2 * array)
    z = gk.cond(p, lambda: F.mul(x, x), lambda: F.constant(value=np.ones(3)))
    (dz,) = gradient([z], [x])
    np.testing.assert_array_equal(evaluate(Graph([p, x], [dz]), [np.array(False), array])[0], np.zeros(3))


@BOTH
def test_nested(check: Check, taken: bool) -> None:
    p, q, x, w = flag("p"), flag("q"), float64(3, name="x"), float64(3, name="w")

    def inner() -> Value:
        h = F.exp(F.mul(x, w))
        return gk.cond(q, lambda: F.mul(h, F.sin(h)), lambda: F.tanh(F.mul(h, w)))

    y = gk.cond(p, inner, lambda: F.mul(x, F.cos(w)))
    for other in (True, False):
        check([p, q, x, w], y, [np.array(taken), np.array(other), draw(3), draw(3)])


@BOTH
def test_scan_in_a_branch(check: Check, taken: bool) -> None:
    p, x, h = flag(), float64("T", 3, name="x"), float64(3, name="h")
    y = gk.cond(p, lambda: gk.fold(lambda c, v: F.tanh(F.mul(F.add(c, v), h)), h, x), lambda: F.exp(h))
    check([p, x, h], y, [np.array(taken), draw(4, 3), draw(3)])


@ROWS
def test_in_a_scan(check: Check, rows: Any) -> None:
    x, h, w = float64("T", rows, 3, name="x"), float64(rows, 3, name="h"), float64(3, name="w")

    def step(c: Value, v: Value) -> tuple[Value, Value]:
        positive = F.greater(F.reduce_sum(v, keepdims=False), np.float64(0))
        after = gk.cond(positive, lambda: F.tanh(F.mul(F.add(c, v), w)), lambda: F.mul(F.sin(c), v))
        return after, F.mul(after, c)

    last, ys = gk.scan(step, h, x)
    arrays = draw(5, 2, 3)
    arrays[1], arrays[3] = np.abs(arrays[1]), -np.abs(arrays[3])  # both branches are taken
    check([x, h, w], [last, ys], [arrays, draw(2, 3), draw(3)])


def test_the_forward_branch_runs_once() -> None:
    p, x, w = flag(), float64(3, name="x"), float64(3, name="w")
    y = gk.cond(p, lambda: F.sin(F.exp(F.mul(x, w))), lambda: F.tanh(F.mul(x, w)))
    graph = merge_control(Graph([p, x, w], [y, *gradient([y], [x, w])]))
    forward, backward = ifs(graph)
    # The exponential and the product share no type with the result that tanh' reads, but one with each other.
    assert {n.op.name for g in backward.op.subgraphs().values() for n in g.nodes}.isdisjoint({"Exp", "Tanh"})
    assert len(forward.outputs) == 2


def test_a_rank_that_an_if_loses_comes_back() -> None:
    """The branches differ in rank, so the result has unknown rank, but a convolution determines it."""
    x, w, b, p = float64(2, 3, 6, name="x"), float64(4, 3, 3, name="w"), float64(4, name="b"), flag()

    def loses_rank(value: Value, function: Callable[[Value], Value]) -> Any:
        then, other = Value(value.type), Value(value.type)
        return F.if_(
            p, value,
            then_branch=Graph([then], [function(then)]),
            else_branch=Graph([other], [F.unsqueeze(other, np.array([0]))]),
        )  # fmt: skip

    chosen = loses_rank(x, F.tanh)
    assert chosen.rank is None
    net = gk.Model.from_graph(Graph([p, x, w, b], [loses_rank(F.conv(chosen, w, b), F.exp)], output_names=["y"]), {})
    arrays = {"p": np.array(True), "x": draw(2, 3, 6), "w": draw(4, 3, 3), "b": draw(4)}
    check_gradient(net, arrays, wrt=["x", "w", "b"], directions=2).raise_if_failed()
    proto = gk.grad(net, wrt=["x", "w", "b"]).to_onnx()
    assert {n.domain for n in proto.graph.node} == {""}


@in_one_item()
@pytest.mark.parametrize("optimize", [True, False])
@BOTH
def test_branches_that_slice_and_sum_what_is_left(taken: bool, optimize: bool) -> None:
    x, p = gk.input("x", ["N", 4]), gk.input("p", [], dtype="bool")
    first, two = np.array([0]), np.array([2])
    y = gk.cond(
        p,
        lambda: F.reduce_sum(F.slice(x, first, F.div(F.shape(x)[0:1] + 1, two), first), np.array([1])),
        lambda: F.slice(x, first, two, first),
    )
    back = gk.grad(gk.Model({"y": F.reduce_sum(y, keepdims=False)}), of="y", wrt=["x"])
    found = back.compile(optimize=optimize).run({"x": np.ones((3, 4), np.float32), "p": np.array(taken)})
    np.testing.assert_array_equal(found["x_grad"], [[1] * 4, [1] * 4, [0] * 4])
