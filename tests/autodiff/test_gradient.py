"""Differentiation from graph to graph: aggregation, seeds, unused values, missing rules, second order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import graphkit as gk
from graphkit.autodiff import gradient
from graphkit.checks.gradcheck import check_graph
from graphkit.errors import MissingGradient, TypeMismatch, UsageError
from graphkit.ir.context import Scope, entered
from graphkit.ir.graph import Graph, Value, topological
from graphkit.ir.types import TensorType
from graphkit.ops import F, Op, op, registry
from graphkit.ops.evaluate import evaluate


def float64(*shape: Any, name: str = "") -> Value:
    return Value(TensorType("float64", shape), name)


def run(inputs: list[Value], outputs: list[Value], arrays: list[Any]) -> list[np.ndarray]:
    return evaluate(Graph(inputs, outputs), [np.asarray(a) for a in arrays])


@pytest.fixture(autouse=True)
def no_rule_operator() -> Iterator[None]:
    @op
    class WithoutRule(Op):
        """x, without a gradient."""

        domain = "test.autodiff"
        inputs = ("x",)

        def infer(self, x: TensorType) -> TensorType:
            return x

        def reference(self, xp: Any, x: Any) -> Any:
            return x

    yield
    registry.remove(WithoutRule)


def missing_rule(x: Value, name: str) -> Value:
    return F.without_rule(x, name=name)


X = np.array([[0.5, -1.5, 2.0], [1.0, 0.25, -0.75]])


def test_product_rule() -> None:
    x, w = float64(2, 3, name="x"), float64(3, name="w")
    dx, dw = gradient([F.mul(F.mul(x, x), w)], [x, w])
    weights = np.array([1.0, 2.0, 3.0])
    got = run([x, w], [dx, dw], [X, weights])
    np.testing.assert_allclose(got[0], 2 * X * weights)
    np.testing.assert_allclose(got[1], (X * X).sum(0))


def test_gradients_have_their_values_types() -> None:
    x, w = float64("N", 3, name="x"), float64(3, 4, name="w")
    b = float64(4, name="b")
    outputs = [F.relu(F.gemm(x, w, b))]
    for value, found in zip((x, w, b), gradient(outputs, [x, w, b]), strict=True):
        assert found.type == value.type


def test_a_value_read_several_times_gets_one_sum() -> None:
    x = float64(3, name="x")
    h = F.exp(x)
    (dx,) = gradient([F.add(F.add(F.sin(h), F.cos(h)), F.mul(h, h))], [x])
    graph = Graph([x], [dx])
    sums = [n for n in graph.nodes if n.op.name == "Sum"]
    assert len(sums) == 1
    assert len(sums[0].inputs) >= 3
    e = np.exp(X[0])
    np.testing.assert_allclose(run([x], [dx], [X[0]])[0], (np.cos(e) - np.sin(e) + 2 * e) * e)


def test_seeds() -> None:
    x, seed = float64(3, name="x"), float64(3, name="seed")
    (dx,) = gradient([F.mul(x, x)], [x], [seed])
    np.testing.assert_allclose(run([x, seed], [dx], [X[0], X[1]])[0], 2 * X[0] * X[1])
    with pytest.raises(UsageError, match="1 output but 2 seeds"):
        gradient([x], [x], [seed, seed])


def test_several_outputs_add_up() -> None:
    x = float64(2, 3, name="x")
    (both,) = gradient([F.mul(x, x), F.reduce_sum(F.exp(x))], [x])
    np.testing.assert_allclose(run([x], [both], [X])[0], 2 * X + np.exp(X))


def test_an_output_may_also_feed_another_output() -> None:
    x = float64(3, name="x")
    h = F.exp(x)
    (dx,) = gradient([h, F.mul(h, h)], [x])
    e = np.exp(X[0])
    np.testing.assert_allclose(run([x], [dx], [X[0]])[0], e + 2 * e * e)


def test_the_same_output_twice() -> None:
    x = float64(3, name="x")
    h = F.exp(x)
    (dx,) = gradient([h, h], [x])
    np.testing.assert_allclose(run([x], [dx], [X[0]])[0], 2 * np.exp(X[0]))


def test_several_outputs_of_one_node() -> None:
    x = float64(4, 3, name="x")
    first, second = F.split(x, np.array([1, 3]), axis=0)
    (dx,) = gradient([F.reduce_sum(F.mul(second, second))], [x])
    array = np.arange(12.0).reshape(4, 3)
    expected = 2 * array
    expected[0] = 0
    np.testing.assert_allclose(run([x], [dx], [array])[0], expected)
    assert first.node is second.node


def test_with_respect_to_internal_values() -> None:
    x = float64(3, name="x")
    h = F.exp(x)
    y = F.mul(h, F.sin(h))
    dh, dx = gradient([y], [h, x])
    e = np.exp(X[0])
    got = run([x], [dh, dx], [X[0]])
    np.testing.assert_allclose(got[0], np.sin(e) + e * np.cos(e))
    np.testing.assert_allclose(got[1], got[0] * e)


def test_with_respect_to_an_output() -> None:
    x = float64(3, name="x")
    y = F.exp(x)
    (dy,) = gradient([y], [y])
    np.testing.assert_array_equal(run([x], [dy], [X[0]])[0], np.ones(3))


def test_second_order() -> None:
    x = float64(3, name="x")
    (first,) = gradient([F.mul(F.mul(x, x), x)], [x])
    (second,) = gradient([first], [x])
    (third,) = gradient([second], [x])
    got = run([x], [second, third], [X[0]])
    np.testing.assert_allclose(got[0], 6 * X[0])
    np.testing.assert_allclose(got[1], np.full(3, 6.0))


def test_hessian_vector_product_of_a_network() -> None:
    rng = np.random.default_rng(0)
    x, w1, w2 = float64(5, 4, name="x"), float64(4, 3, name="w1"), float64(3, 2, name="w2")
    v = float64(4, 3, name="v")
    loss = F.reduce_sum(F.softmax(F.mat_mul(F.tanh(F.mat_mul(x, w1)), w2)))
    loss = F.add(loss, F.reduce_sum(F.mul(F.mat_mul(F.tanh(F.mat_mul(x, w1)), w2), np.array(0.1))))
    (dw1,) = gradient([loss], [w1])
    inputs = [x, w1, w2, v]
    arrays = [rng.standard_normal(t.shape) for t in inputs]
    report = check_graph(inputs, [F.reduce_sum(F.mul(dw1, v))], {"w1": w1, "w2": w2, "x": x}, arrays)
    assert report.passed, str(report)


def test_unused() -> None:
    x, z = float64(3, name="x"), float64(2, name="z")
    y = F.exp(x)
    with pytest.raises(UsageError, match="do not depend on z"):
        gradient([y], [x, z])
    dx, dz = gradient([y], [x, z], allow_unused=True)
    got = run([x, z], [dx, dz], [X[0], np.ones(2)])
    np.testing.assert_array_equal(got[1], np.zeros(2))


def test_integers_have_no_gradient() -> None:
    i = Value(TensorType("int64", (2,)), "i")
    with pytest.raises(UsageError, match="not a float tensor"):
        gradient([F.cast(i, to="float64")], [i])
    x = float64(4, name="x")
    (dx,) = gradient([F.gather(x, i)], [x])
    np.testing.assert_array_equal(run([x, i], [dx], [np.zeros(4), np.array([1, 1])])[0], [0, 2, 0, 0])


def test_operators_without_a_rule_are_listed_together() -> None:
    x = float64(3, name="x")
    h = missing_rule(x, "first")
    y = F.add(missing_rule(F.exp(h), "second"), x)
    with pytest.raises(MissingGradient) as caught:
        gradient([y], [x])
    text = str(caught.value)
    assert "'first'" in text
    assert "'second'" in text
    assert "put gk.stop_gradient behind them" in text
    (dx,) = gradient([F.add(F.stop_gradient(missing_rule(x, "third")), x)], [x])
    assert dx.type == x.type
    assert caught.value.exit_code == 3


def test_an_operator_without_a_rule_off_the_path_does_not_matter() -> None:
    x, z = float64(3, name="x"), float64(3, name="z")
    (dx,) = gradient([F.mul(x, missing_rule(z, "aside"))], [x])
    assert dx.type == x.type


def test_symbolic_batch_and_unknown_rank() -> None:
    x, w = float64("N", 3, name="x"), float64(3, name="w")
    dx, dw = gradient([F.mul(x, w)], [x, w])
    for batch in (1, 4):
        array = np.ones((batch, 3))
        got = run([x, w], [dx, dw], [array, np.array([1.0, 2.0, 3.0])])
        assert got[0].shape == (batch, 3)
        np.testing.assert_array_equal(got[1], np.full(3, float(batch)))
    free = Value(TensorType("float64"), "free")
    (found,) = gradient([F.mul(free, w)], [w])
    np.testing.assert_array_equal(run([free, w], [found], [np.ones((2, 5, 3)), np.ones(3)])[0], np.full(3, 10.0))


def test_broadcast_of_symbols_that_turn_out_to_be_one() -> None:
    a, b = float64("A", name="a"), float64("B", name="b")
    da, db = gradient([F.mul(a, b)], [a, b])
    got = run([a, b], [da, db], [np.array([2.0]), np.array([1.0, 2.0, 3.0])])
    np.testing.assert_array_equal(got[0], [6.0])
    np.testing.assert_array_equal(got[1], [2.0, 2.0, 2.0])


def test_rule_errors_name_the_node() -> None:
    @op
    class WrongRule(Op):
        """x, with a gradient of another shape."""

        domain = "test.autodiff"
        inputs = ("x",)

        def infer(self, x: TensorType) -> TensorType:
            return x

        def reference(self, xp: Any, x: Any) -> Any:
            return x

        def grad(self, node: Any, dy: Any) -> Any:
            return F.reduce_sum(dy, keepdims=False)

    try:
        x = float64(3, name="x")
        with pytest.raises(Exception, match=r"WrongRule.*float64\[\].*float64\[3\].*'mine'"):
            gradient([F.wrong_rule(x, name="mine")], [x])
    finally:
        registry.remove(WrongRule)


def test_stop_gradient() -> None:
    x = float64(3, name="x")
    (dx,) = gradient([F.mul(x, F.stop_gradient(F.exp(x)))], [x])
    np.testing.assert_allclose(run([x], [dx], [X[0]])[0], np.exp(X[0]))
    with pytest.raises(UsageError, match="no gradient reaches x"):
        gradient([F.stop_gradient(x)], [x])


def test_empty_tensors() -> None:
    x, w = float64(0, 3, name="x"), float64(3, 2, name="w")
    dx, dw = gradient([F.mat_mul(x, w)], [x, w])
    got = run([x, w], [dx, dw], [np.zeros((0, 3)), np.ones((3, 2))])
    assert got[0].shape == (0, 3)
    np.testing.assert_array_equal(got[1], np.zeros((3, 2)))


def test_wrong_operands_are_caught_when_the_gradient_is_built() -> None:
    x = float64(3, name="x")
    with pytest.raises(TypeMismatch):
        gradient([F.add(x, float64(4, name="z"))], [x])


def test_the_ambient_scope_does_not_leak_into_gradient_nodes() -> None:
    x = float64(3, name="x")
    y = F.exp(x)
    with entered(Scope("outer/", {"k": "v"})):
        (dx,) = gradient([y], [x])
    assert not any(n.meta or n.name for n in Graph([x], [dx]).nodes)


def test_by_default_of_the_parameters_that_the_outputs_depend_on() -> None:
    x = gk.input("x", ["N", 3])
    used, unused, mask = (gk.parameter(n, [3], init="ones") for n in ("used", "unused", "mask"))
    kept = gk.where(gk.cast(mask, to="bool"), x * used, x)
    net = gk.Model({"y": kept, "other": x * unused})
    assert gk.grad(net, of="y").outputs == ("used_grad",)
    assert gk.grad(net).outputs == ("used_grad", "unused_grad")
    with pytest.raises(UsageError, match=r"do not depend on .*unused"):
        gk.grad(net, of="y", wrt=["unused"])


def test_a_model_without_parameters_says_what_to_give() -> None:
    x = gk.input("x", ["N", 2])
    net = gk.Model({"y": F.sin(x)}, name="net")
    with pytest.raises(UsageError, match=r"y depends on no parameter; give wrt= \(--wrt\)"):
        gk.grad(net)
    assert gk.grad(net, wrt=["x"]).outputs == ("x_grad",)


def test_a_gradient_is_in_the_group_of_what_it_is_the_gradient_of() -> None:
    """This holds inside of branches and loops, too. Sums of gradients of several groups are in no group."""
    x, w = gk.input("x", [3, 3]), gk.parameter("w", [3, 3], {"type": "zeros"})

    def body(h: gk.Value) -> gk.Value:
        with gk.attr_scope(ctx_group="a"):
            return gk.tanh(gk.mat_mul(h, w))

    h = gk.fold(lambda h, row: body(h) + row, x, gk.input("rows", [4, 3, 3]))
    with gk.attr_scope(ctx_group="b"):
        loss = gk.reduce_sum(gk.exp(gk.mat_mul(h, w)), keepdims=False)
    (found,) = gradient([loss], [w])
    nodes = topological([found])
    behind = nodes[len(topological([loss])) :]
    assert found.node is not None
    assert "ctx_group" not in found.node.meta
    assert {n.meta.get("ctx_group") for n in behind if n.op.name in ("MatMul", "Gemm")} == {"b"}
    (reverse,) = [n for n in behind if n.op.name == "Scan" and n.name.endswith("backward")]
    inside = reverse.op.subgraphs()["body"].nodes
    assert {n.meta.get("ctx_group") for n in inside if n.op.name in ("MatMul", "Gemm", "TanhGrad")} == {"a"}
