"""The gradient of Scan: a reverse Scan, checked numerically in float64 and in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from combinations import default_at, in_one_item

import graphkit as gk
from graphkit.autodiff import gradient
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F
from graphkit.ops.evaluate import evaluate
from graphkit.passes.control.merge import merge_control

Check = Callable[..., None]
RNG = np.random.default_rng(7)


def float64(*shape: Any, name: str) -> Value:
    return Value(TensorType("float64", shape), name)


def draw(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape)


def nodes_named(graph: Graph, name: str) -> list[Node]:
    return [n for n in graph.nodes if n.op.name == name]


def rnn(x: Value, h0: Value, w: Value, u: Value, reverse: bool = False) -> tuple[Value, Value]:
    def step(h: Value, x: Value) -> tuple[Value, Value]:
        after = F.tanh(F.add(F.mat_mul(x, w), F.mat_mul(h, u)))
        return after, after

    return gk.scan(step, h0, x, reverse)


@in_one_item()
@default_at(1)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("batch", [2, "N"])
def test_recurrent_net(check: Check, batch: Any, reverse: bool) -> None:
    x, h0 = float64("T", batch, 3, name="x"), float64(batch, 2, name="h0")
    w, u = float64(3, 2, name="w"), float64(2, 2, name="u")
    last, hs = rnn(x, h0, w, u, reverse)
    check([x, h0, w, u], [last, hs], [draw(4, 2, 3), draw(2, 2), draw(3, 2), draw(2, 2)])


def test_states_inputs_outputs_axes_and_directions(check: Check) -> None:
    row, scalar = TensorType("float64", (3,)), TensorType("float64", ())
    a, b, x, y, w = Value(row), Value(scalar), Value(row), Value(scalar), Value(row)
    results = [F.sin(F.add(a, F.mul(x, w))), F.mul(b, y), F.mul(F.mul(x, y), a), F.exp(F.mul(b, w))]
    body = Graph([a, b, x, y, w], results)
    inputs = [
        float64(3, name="a"), float64(name="b"), float64(3, 4, name="x"), float64(4, name="y"), float64(3, name="w")
    ]  # fmt: skip
    outputs = F.scan(
        *inputs, body=body, num_scan_inputs=2, captures=1, scan_input_axes=(-1, 0), scan_input_directions=(0, 1),
        scan_output_axes=(-1, 1), scan_output_directions=(1, 0),
    )  # fmt: skip
    check(inputs, outputs, [draw(3), np.array(1.3), draw(3, 4), draw(4), draw(3)])


def test_one_of_several_outputs(check: Check) -> None:
    x, h = float64(4, 3, name="x"), float64(3, name="h")
    last, (first, second) = gk.scan(lambda c, v: (F.sin(F.add(c, v)), (F.mul(c, v), F.exp(v))), h, x)
    for output in (last, first, second):
        check([x, h], output, [draw(4, 3), draw(3)])


def test_without_any_element() -> None:
    # ONNX Runtime refuses to scan nothing, in the forward graph as in this one.
    x, h, w = float64("T", 3, name="x"), float64(3, name="h"), float64(3, name="w")
    last, ys = gk.scan(lambda c, v: (lambda n: (n, n))(F.tanh(F.add(F.mul(c, w), v))), h, x)
    arrays = [np.zeros((0, 3)), draw(3), draw(3)]
    dx, dh, dw = gradient([last, ys], [x, h, w])
    got = evaluate(Graph([x, h, w], [dx, dh, dw]), arrays)
    assert got[0].shape == (0, 3)
    np.testing.assert_array_equal(got[1], np.ones(3))
    np.testing.assert_array_equal(got[2], np.zeros(3))


def test_integer_state(check: Check) -> None:
    x, start = float64(4, 3, name="x"), Value(TensorType("int64", ()), "start")
    one = np.int64(1)

    def step(carry: Any, v: Value) -> tuple[Any, Any]:
        count, total = carry
        weight = F.cast(count, to=total.dtype)
        return (F.add(count, one), F.add(F.mul(total, total), F.mul(weight, v))), F.mul(total, weight)

    h = float64(3, name="h")
    (_, last), ys = gk.scan(step, (start, h), x)
    check([x, h, start], [last, ys], [0.3 * draw(4, 3), 0.3 * draw(3), np.array(2)])


def test_nested(check: Check) -> None:
    x, h, w = float64(3, 4, 2, name="x"), float64(2, name="h"), float64(2, name="w")

    def inner(carry: Value, v: Value) -> tuple[Value, Value]:
        after = F.tanh(F.add(F.mul(carry, w), v))
        return after, F.mul(after, v)

    def outer(carry: Value, rows: Value) -> tuple[Value, Value]:
        last, ys = gk.scan(inner, carry, rows)
        return F.mul(last, carry), F.reduce_sum(ys, keepdims=False)

    last, ys = gk.scan(outer, h, x)
    check([x, h, w], [last, ys], [draw(3, 4, 2), draw(2), draw(2)])


def test_three_deep(check: Check) -> None:
    x, h, w = float64(2, 3, 2, 2, name="x"), float64(2, name="h"), float64(2, name="w")

    def level(depth: int) -> Any:
        def step(carry: Value, part: Value) -> tuple[Value, None]:
            if depth == 0:
                return F.tanh(F.add(F.mul(carry, w), part)), None
            return F.mul(gk.scan(level(depth - 1), carry, part)[0], w), None

        return step

    last, _ = gk.scan(level(2), h, x)
    check([x, h, w], last, [draw(2, 3, 2, 2), draw(2), draw(2)])


def test_map_and_foreach_and_fold(check: Check) -> None:
    x, w = float64(4, 3, name="x"), float64(3, name="w")
    check([x, w], gk.map(lambda v: F.exp(F.mul(v, w)), x), [draw(4, 3), draw(3)])
    check([x, w], gk.fold(lambda c, v: F.sin(F.mul(c, v)), w, x), [draw(4, 3), draw(3)])
    outputs, last = gk.foreach(lambda v, c: (F.mul(v, c), F.cos(F.add(c, v))), x, w)
    check([x, w], [outputs, last], [draw(4, 3), draw(3)])


def test_broadcast_in_the_body(check: Check) -> None:
    x, h, b = float64("T", "N", 3, name="x"), float64("N", 3, name="h"), float64(1, 3, name="b")
    last, _ = gk.scan(lambda c, v: (F.add(F.mul(c, b), F.exp(F.mul(v, b))), None), h, x)
    check([x, h, b], last, [draw(3, 2, 3), draw(2, 3), draw(1, 3)])


def test_a_state_that_no_result_depends_on_has_no_gradient(check: Check) -> None:
    x, h, idle = float64(4, 3, name="x"), float64(3, name="h"), float64(3, name="idle")
    (last, _), _ = gk.scan(lambda c, v: ((F.mul(c[0], v), F.mul(c[1], v)), None), (h, idle), x)
    found = gradient([last], [h, idle, x], allow_unused=True)
    graph = Graph([x, h, idle], found)
    (reverse,) = [n for n in nodes_named(graph, "Scan") if n.op.scan_input_directions[0] == 1]  # type: ignore[attr-defined]
    states = len(reverse.inputs) - reverse.op.num_scan_inputs - reverse.op.captures  # type: ignore[attr-defined]
    assert states == 1
    check([x, h, idle], last, [draw(4, 3), draw(3), draw(3)])


def test_the_forward_scan_runs_once_and_saves_what_is_read() -> None:
    x, h, w = float64("T", 3, name="x"), float64(3, name="h"), float64(3, name="w")

    def step(c: Value, v: Value) -> tuple[Value, Value]:
        after = F.tanh(F.add(F.mul(c, w), v))
        return after, F.add(after, v)

    last, ys = gk.scan(step, h, x)
    graph = merge_control(Graph([x, h, w], [last, ys, *gradient([last, ys], [x, h, w])]))
    forward, reverse = nodes_named(graph, "Scan")
    # Its two results, and the states before and after the tanh; not the sums.
    assert len(forward.outputs) == 4
    assert [n.op.name for n in reverse.op.body.nodes].count("Tanh") == 0  # type: ignore[attr-defined]


def test_nested_forward_scans_run_once(check: Check) -> None:
    x, w = float64(3, 4, 2, name="x"), float64(2, name="w")
    last = gk.fold(lambda c, rows: gk.fold(lambda d, v: F.tanh(F.mul(F.add(d, v), w)), c, rows), w, x)
    graph = merge_control(Graph([x, w], [last, *gradient([last], [x, w])]))
    forward, reverse = nodes_named(graph, "Scan")
    for node in (forward, reverse):
        assert len(nodes_named(node.op.body, "Scan")) == 1  # type: ignore[attr-defined]
    check([x, w], last, [draw(3, 4, 2), draw(2)])


def test_gradients_of_equal_and_unrolled_nets_agree() -> None:
    x, h = float64(5, 2, 3, name="x"), float64(2, 2, name="h")
    w, u = float64(3, 2, name="w"), float64(2, 2, name="u")
    last, _ = rnn(x, h, w, u)
    unrolled = h
    for t in range(5):
        unrolled = F.tanh(F.add(F.mat_mul(x[t], w), F.mat_mul(unrolled, u)))
    inputs = [x, h, w, u]
    arrays = [draw(5, 2, 3), draw(2, 2), draw(3, 2), draw(2, 2)]
    ours = evaluate(Graph(inputs, gradient([last], inputs)), arrays)
    plain = evaluate(Graph(inputs, gradient([unrolled], inputs)), arrays)
    for a, b in zip(ours, plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)
