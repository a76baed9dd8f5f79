"""The gradient of Loop: a reverse Loop over the saved values of the iterations that ran."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.autodiff import gradient
from graphkit.errors import RuntimeFailure
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F
from graphkit.ops.evaluate import evaluate
from graphkit.passes.control.merge import merge_control

Check = Callable[..., None]
RNG = np.random.default_rng(3)
COUNT, FLAG = TensorType("int64", ()), TensorType("bool", ())


def float64(*shape: Any, name: str) -> Value:
    return Value(TensorType("float64", shape), name)


def draw(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape)


def norm_below(bound: float) -> Callable[[Any], Value]:
    return lambda s: F.less(F.reduce_sum(F.mul(s, s), keepdims=False), np.float64(bound))


@in_one_item()
@pytest.mark.parametrize("trips", [0, 1, 4])
def test_counted(check: Check, trips: int) -> None:
    m, x, w = Value(COUNT, "m"), float64(3, name="x"), float64(3, name="w")
    i, going, s, total, v = Value(COUNT), Value(FLAG), *(Value(TensorType("float64", (3,))) for _ in range(3))
    after = F.tanh(F.add(F.mul(s, v), F.cast(i, to=s.dtype)))
    body = Graph([i, going, s, total, v], [going, after, F.add(total, F.mul(after, s)), F.exp(F.mul(after, v))])
    outputs = F.loop(m, None, x, w, w, body=body, captures=1)
    check([m, x, w], outputs, [np.array(trips), draw(3), draw(3)])


@in_one_item()
@pytest.mark.parametrize("scale", [0.1, 0.9, 5.0])
def test_data_dependent_trips(check: Check, scale: float) -> None:
    x, w = float64(3, name="x"), float64(3, name="w")
    y = gk.while_loop(norm_below(10.0), lambda s: F.add(F.mul(s, w), F.sin(s)), x)
    check([x, w], y, [scale * np.array([1.0, -0.7, 0.5]), np.array([1.5, 1.25, -1.75])])


def test_a_budget_of_iterations(check: Check) -> None:
    x, w = float64(3, name="x"), float64(3, name="w")
    y = gk.while_loop(norm_below(1e9), lambda s: F.add(F.mul(s, w), F.sin(s)), x, maximum_iterations=3)
    arrays = [np.array([1.0, -0.7, 0.5]), np.array([1.5, 1.25, -1.75])]
    check([x, w], y, arrays)
    unrolled = x
    for _ in range(3):
        unrolled = F.add(F.mul(unrolled, w), F.sin(unrolled))
    ours = evaluate(Graph([x, w], gradient([y], [x, w])), arrays)
    plain = evaluate(Graph([x, w], gradient([unrolled], [x, w])), arrays)
    for a, b in zip(ours, plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_integer_state_decides_the_end(check: Check) -> None:
    n, x = Value(COUNT, "n"), float64("N", 2, name="x")
    state = {"left": n, "value": x}
    y = gk.while_loop(
        lambda s: F.greater(s["left"], np.int64(0)),
        lambda s: {
            "left": F.sub(s["left"], np.int64(1)),
            "value": F.mul(F.sin(s["value"]), F.cast(s["left"], to=x.dtype)),
        },
        state,
    )
    check([n, x], y["value"], [np.array(3), draw(2, 2)])


def test_no_iteration_gives_zeros_for_captures() -> None:
    x, w = float64(3, name="x"), float64(3, name="w")
    y = gk.while_loop(norm_below(-1.0), lambda s: F.log(F.mul(s, w)), x)
    dx, dw = evaluate(Graph([x, w], gradient([y], [x, w])), [draw(3), np.zeros(3)])
    np.testing.assert_array_equal(dx, np.ones(3))
    np.testing.assert_array_equal(dw, np.zeros(3))


def test_linear_bodies_save_only_what_tells_the_trips() -> None:
    x = float64(3, name="x")
    y = gk.while_loop(norm_below(10.0), lambda s: F.add(s, s), x)
    graph = merge_control(Graph([x], [y, *gradient([y], [x])]))
    forward, _ = (n for n in graph.nodes if n.op.name == "Loop")
    assert [v.type.dtype.name.lower() for v in forward.outputs] == ["float64", "int64"]  # type: ignore[union-attr]
    np.testing.assert_array_equal(evaluate(graph, [np.array([1.0, 0.5, 0.0])])[1], np.full(3, 4.0))


def test_loop_in_a_loop(check: Check) -> None:
    x, w = float64(2, name="x"), float64(2, name="w")

    def outer(s: Value) -> Value:
        inner = gk.while_loop(norm_below(2.0), lambda t: F.add(F.mul(t, w), s), F.sin(s), maximum_iterations=4)
        return F.add(F.mul(F.tanh(inner), s), s)

    y = gk.while_loop(norm_below(20.0), outer, x, maximum_iterations=3)
    check([x, w], y, [np.array([0.8, -0.6]), np.array([1.4, 1.2])])


@pytest.mark.parametrize("outer", ["scan", "while_loop"])
def test_trips_that_differ_between_iterations_around(check: Check, outer: str) -> None:
    xs, w = float64("T", 2, name="xs"), float64(2, name="w")
    trips = []

    def inner(start: Value) -> Value:
        state = {"s": start, "n": np.int64(0)}
        end = gk.while_loop(
            lambda state: norm_below(30.0)(state["s"]),
            lambda state: {"s": F.add(F.mul(state["s"], w), F.sin(state["s"])), "n": F.add(state["n"], np.int64(1))},
            state,
        )
        trips.append(end["n"])
        result: Value = end["s"]
        return result

    arrays = [np.array([[0.1, 0.2], [1.0, 2.0], [9.0, 9.0], [0.01, 0.02]]), np.array([1.5, 1.3])]
    if outer == "scan":
        last, ys = gk.scan(lambda c, x: (lambda y: (F.add(c, F.cos(y)), (y, trips[-1])))(inner(x)), w, xs)
        assert set(evaluate(Graph([xs, w], [ys[1]]), arrays)[0]) == {0, 2, 5, 7}
        check([xs, w], [last, ys[0]], arrays)
    else:
        end = gk.while_loop(
            lambda s: F.less(s[0], np.int64(4)),
            lambda s: (F.add(s[0], np.int64(1)), F.add(s[1], F.cos(inner(F.gather(xs, s[0], axis=0))))),
            (np.int64(0), w),
        )
        check([xs, w], end[1], arrays)


def test_if_in_a_loop_in_a_scan(check: Check) -> None:
    xs, w = float64("T", 2, name="xs"), float64(2, name="w")

    def step(carry: Value, x: Value) -> tuple[Value, Value]:
        def body(s: Value) -> Value:
            rising = F.greater(F.reduce_sum(s, keepdims=False), np.float64(0.5))
            return gk.cond(rising, lambda: F.mul(F.mul(s, w), x), lambda: F.add(F.sin(s), w))

        after = gk.while_loop(norm_below(4.0), body, carry, maximum_iterations=2)
        return F.tanh(after), F.mul(after, x)

    last, ys = gk.scan(step, w, xs)
    check([xs, w], [last, ys], [draw(3, 2), np.array([0.7, 0.4])])


def test_saved_values_that_change_their_shape_are_refused() -> None:
    x = float64("N", name="x")
    y = gk.while_loop(norm_below(10.0), lambda s: F.concat(s, F.sin(s), axis=0), x, maximum_iterations=3)
    (dx,) = gradient([F.reduce_sum(y)], [x])
    with pytest.raises(RuntimeFailure, match="changes its shape between iterations"):
        evaluate(Graph([x], [dx]), [np.array([1.0, 0.5])])
