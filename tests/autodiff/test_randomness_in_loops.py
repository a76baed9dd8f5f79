"""Dropout inside control flow: forward and backward draw the same masks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import UsageError
from graphkit.ir.graph import Value

ROWS = np.random.default_rng(1).standard_normal((6, 8)).astype(np.float32)


def dropped(x: Value) -> Value:
    y: Value = gk.dropout(gk.tanh(x), 0.5, True)[0]
    return y


def by_scan(w: Value, x: Value) -> Value:
    # Two equal expressions that CSE merges: the body's nodes are rebuilt.
    _, ys = gk.scan(lambda c, v: (dropped(c * w + v) + v * w * 0.0, c * w), np.ones(8, np.float32), x)
    total: Value = gk.reduce_sum(ys, keepdims=False)
    return total


def by_blocks(w: Value, x: Value) -> Value:
    step = lambda c, v: (dropped(c * w + v), dropped(c))  # noqa: E731
    last, ys = gk.scan(step, np.ones(8, np.float32), x, recompute=4)
    total: Value = gk.reduce_sum(ys, keepdims=False) + gk.reduce_sum(last, keepdims=False)
    return total


def by_nested_loops(w: Value, x: Value) -> Value:
    def body(s: Any) -> Any:
        return {"h": dropped(s["h"] * w) + s["h"], "i": s["i"] + 1}

    def step(c: Value, v: Value) -> tuple[Value, Value]:
        h = gk.while_loop(lambda s: s["i"] < 3, body, {"h": c + v, "i": 0})["h"]
        return h, h

    total: Value = gk.reduce_sum(gk.scan(step, np.ones(8, np.float32), x)[1], keepdims=False)
    return total


def by_branches(w: Value, x: Value) -> Value:
    y = gk.cond(gk.reduce_sum(w, keepdims=False) > 0.0, lambda: dropped(x * w), lambda: x * w)
    total: Value = gk.reduce_sum(y, keepdims=False)
    return total


@in_one_item()
@pytest.mark.parametrize("network", [by_scan, by_blocks, by_nested_loops, by_branches])
def test_backward_uses_the_masks_of_forward(network: Callable[[Value, Value], Value]) -> None:
    w, x = gk.input("w", [8]), gk.input("x", ["T", 8])
    net = gk.Model({"loss": network(w, x)})
    gradient = gk.grad(net, of="loss", wrt=["w"], with_outputs=True)

    executor = gradient.compile(threads=1)

    def run(scale: np.ndarray, seed: int = 3) -> dict[str, np.ndarray]:
        executor.rng = (seed, 0)
        found: dict[str, np.ndarray] = executor.run({"w": scale, "x": ROWS})
        return found

    at = np.full(8, 0.5, np.float32)
    found = run(at)
    assert run(at)["loss"] == found["loss"], "one state draws one set of masks"
    assert found["loss"] != run(at, seed=4)["loss"]
    for i in range(8):
        step = np.zeros(8, np.float32)
        step[i] = 1e-2
        numeric = (float(run(at + step)["loss"]) - float(run(at - step)["loss"])) / 2e-2
        assert abs(numeric - found["w_grad"][i]) < 2e-2 * max(1.0, abs(numeric))


def test_randomness_without_a_state_is_refused() -> None:
    w, x = gk.input("w", [8]), gk.input("x", ["T", 8])
    with pytest.raises(UsageError, match="draw random numbers, but have no random state"):
        gk.gradient([by_scan(w, x)], [w])


def test_dropout_of_inference_draws_nothing() -> None:
    w, x = gk.input("w", [8]), gk.input("x", ["T", 8])
    last = gk.fold(lambda c, v: gk.nn.dropout(gk.tanh(c * w + v)), np.ones(8, np.float32), x)
    net = gk.Model({"loss": gk.reduce_sum(last, keepdims=False)})
    gradient = gk.grad(net, wrt=["w", "x"], with_outputs=True)
    assert not [v for v in gradient.graph.inputs if v.role == "rng"]
    report = gk.verify(gradient, inputs={"w": np.full(8, 0.5, np.float32), "x": ROWS})
    assert report.passed, str(report)
