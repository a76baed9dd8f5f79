"""Gradients of control flow in the native program: equal to the reference, and without fallbacks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compiled_graph import STACKING, Native, below, draw, value

import graphkit as gk
from graphkit.autodiff import gradient
from graphkit.ir.graph import Value
from graphkit.ops import F
from graphkit.ops.evaluate import evaluate

pytestmark = pytest.mark.usefixtures("strict")


def lstm_cell(x: Any, h: Any, c: Any, w: Any, b: Any) -> tuple[Any, Any]:
    gates = F.add(F.mat_mul(F.concat(x, h, axis=-1), w), b)
    i, f, g, o = F.split(gates, num_outputs=4, axis=-1)
    c = F.add(F.mul(F.sigmoid(f), c), F.mul(F.sigmoid(i), F.tanh(g)))
    return F.mul(F.sigmoid(o), F.tanh(c)), c


def lstm_arrays(steps: int, batch: int) -> list[np.ndarray]:
    rng = np.random.default_rng(steps + 7 * batch)
    return [draw(rng, *s) for s in ((steps, batch, 4), (9, 20), (20,), (batch, 5), (batch, 5))]


def lstm_inputs() -> list[Value]:
    return [value("xs", "T", "N", 4), value("w", 9, 20), value("b", 20), value("h", "N", 5), value("c", "N", 5)]


def test_lstm_in_a_scan() -> None:
    inputs = xs, w, b, h, c = lstm_inputs()

    def step(carry: Any, x: Any) -> Any:
        carry = lstm_cell(x, *carry, w, b)
        return carry, carry[0]

    (last, _), ys = gk.scan(step, (h, c), xs)
    loss = F.add(F.reduce_sum(F.mul(ys, ys), keepdims=False), F.reduce_sum(last, keepdims=False))
    run = Native(inputs, [loss, *gradient([loss], inputs)])
    for steps, batch in ((6, 3), (1, 2), (6, 3)):
        run(*lstm_arrays(steps, batch))


def test_lstm_in_a_loop() -> None:
    """Data decide the number of iterations."""
    inputs = xs, w, b, h, c = lstm_inputs()
    bound, x = value("bound"), F.gather(xs, np.int64(0), axis=0)

    def holds(state: Any) -> Any:
        return F.less(F.reduce_sum(F.mul(state[1], state[1]), keepdims=False), bound)

    last, cell = gk.while_loop(holds, lambda s: lstm_cell(x, *s, w, b), (h, c), maximum_iterations=12)
    loss = F.add(F.reduce_sum(F.mul(last, cell), keepdims=False), F.reduce_sum(cell, keepdims=False))
    run = Native([*inputs, bound], [loss, *gradient([loss], inputs[1:])])
    for limit in (0.0, 12.0, 1e9, 20.0):
        run(*lstm_arrays(2, 3), np.float32(limit))


def test_gradient_of_an_imported_loop() -> None:
    """The number of iterations comes from the data; the file has neither shapes for it nor gradients."""
    x, w = gk.input("x", [2, 3]), gk.input("w", [3, 3])
    y = gk.while_loop(below(30.0), lambda s: F.add(F.mat_mul(s, w), x), x, maximum_iterations=9)
    net = gk.load(gk.Model(F.identity(F.reduce_sum(F.mul(y, y), keepdims=False), name="loss")).to_onnx())
    derived = gk.grad(net, of=net.outputs[0], wrt=["x", "w"])
    executor = derived.compile()
    rng = np.random.default_rng(16)
    for scale in (0.1, 1.0, 10.0):
        feeds = {"x": draw(rng, 2, 3) * np.float32(scale), "w": draw(rng, 3, 3)}
        got = executor.run(feeds)
        wanted = evaluate(derived.graph, [feeds[name] for name in derived.graph.input_names])
        for a, b in zip(got.values(), wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_branches_in_a_loop() -> None:
    inputs = x, w, bound = value("x", "N", 3), value("w", 3, 3), value("bound")

    def step(s: Any) -> Any:
        rising = F.greater(F.reduce_sum(s, keepdims=False), np.float32(0.5))
        return gk.cond(rising, lambda: F.mat_mul(s, w), lambda: F.add(F.sin(s), F.reduce_sum(w, np.array([0]))))

    y = gk.while_loop(lambda s: F.less(F.reduce_sum(F.mul(s, s), keepdims=False), bound), step, x, maximum_iterations=6)
    loss = F.reduce_sum(F.mul(y, y), keepdims=False)
    run = Native(inputs, [loss, *gradient([loss], [x, w])])
    rng = np.random.default_rng(12)
    for limit in (0.0, 5.0, 40.0, 1e9):
        run(draw(rng, 2, 3), draw(rng, 3, 3), np.float32(limit))


def test_loops_in_a_loop() -> None:
    inputs = x, w = value("x", 2), value("w", 2)

    def outer(s: Value) -> Value:
        inner = gk.while_loop(below(2.0), lambda t: F.add(F.mul(t, w), s), F.sin(s), maximum_iterations=4)
        return F.add(F.mul(F.tanh(inner), s), s)

    y = gk.while_loop(below(20.0), outer, x, maximum_iterations=3)
    run = Native(inputs, [y, *gradient([F.reduce_sum(y)], [x, w])])
    run(np.array([0.8, -0.6], np.float32), np.array([1.4, 1.2], np.float32))
    run(np.array([9.0, -0.6], np.float32), np.array([1.4, 1.2], np.float32))


def test_second_order() -> None:
    inputs = x, w = value("x", 3), value("w", 3)
    y = gk.while_loop(below(10.0), lambda s: F.add(F.mul(s, w), F.sin(s)), x, maximum_iterations=5)
    (dx,) = gradient([F.reduce_sum(F.mul(y, y))], [x])
    run = Native(inputs, [y, dx, *gradient([F.reduce_sum(F.mul(dx, dx))], [x, w])])
    for scale in (0.1, 0.9, 5.0):
        run(np.array([1.0, -0.7, 0.5], np.float32) * np.float32(scale), np.array([1.5, 1.25, -1.75], np.float32))


def test_rows_of_a_profile_have_names_of_their_own() -> None:
    p, m, x, w = value("p", dtype="bool"), value("m", dtype="int64"), value("x", 3), value("w", 3)
    final, _ = F.loop(m, None, x, w, body=STACKING, captures=1)
    y = gk.cond(p, lambda: F.exp(final), lambda: F.exp(F.neg(final)), name="choice")
    run = Native([p, m, x, w], [y])
    arrays = 4, np.zeros(3, np.float32), np.ones(3, np.float32)
    with gk.profile() as profile:
        run(True, *arrays)
        run(False, *arrays)
    names = [e["args"]["node"] for e in profile.trace()["traceEvents"] if "node" in e.get("args", {})]
    assert any(name.startswith("choice/then/") for name in names)
    assert any(name.startswith("choice/else/") for name in names)
    assert any("/body/" in name for name in names)
