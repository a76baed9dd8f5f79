"""Control flow inside control flow of every kind, and control flow that comes from an ONNX file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.checks.gradcheck import check_gradient
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.onnx_io.compare import OnnxRuntimeModel
from graphkit.ops import F

Check = Callable[..., None]
Function = Callable[[Value], Value]
RNG = np.random.default_rng(9)


def float64(*shape: Any, name: str) -> Value:
    return Value(TensorType("float64", shape), name)


def in_if(function: Function, w: Value) -> Function:
    def chosen(v: Value) -> Value:
        positive = F.greater(F.reduce_sum(v, keepdims=False), np.float64(0))
        result: Value = gk.cond(positive, lambda: function(F.mul(v, w)), lambda: F.sub(v, F.sin(w)))
        return result

    return chosen


def in_loop(function: Function, w: Value) -> Function:
    def repeated(v: Value) -> Value:
        below = lambda s: F.less(F.reduce_sum(F.mul(s, s), keepdims=False), np.float64(6))  # noqa: E731
        result: Value = gk.while_loop(below, lambda s: F.add(F.mul(function(s), w), v), v, 3)
        return result

    return repeated


def in_scan(function: Function, w: Value) -> Function:
    def folded(v: Value) -> Value:
        rows = F.concat(*(F.unsqueeze(F.mul(v, np.float64(k)), np.array([0])) for k in (1, -1, 2)), axis=0)
        last, ys = gk.scan(lambda c, x: (lambda n: (n, F.mul(n, x)))(function(F.add(F.mul(c, w), x))), v, rows)
        return F.add(last, F.reduce_mean(ys, np.array([0]), keepdims=False))

    return folded


KINDS = {"if": in_if, "loop": in_loop, "scan": in_scan}


# All orders of the three kinds have their turn in the full lane.
ORDERS = [
    *("if loop scan", "loop scan if", "scan if loop"),
    *(
        pytest.param(order, marks=pytest.mark.full)
        for order in ("if scan loop", "loop if scan", "scan loop if", "scan scan if", "loop loop if", "if if loop")
    ),
]


@in_one_item()
@pytest.mark.parametrize("order", ORDERS)
def test_three_deep(check: Check, order: str) -> None:
    x, w = float64(2, name="x"), float64(2, name="w")
    function: Function = F.tanh
    for kind in reversed(order.split()):
        function = KINDS[kind](function, w)
    # Both signs, so that the branches are taken both ways.
    for start in (np.array([0.4, 0.3]), np.array([-0.7, 0.2])):
        check([x, w], function(x), [start, np.array([1.1, -0.6])], second=order.startswith("scan"))


def imported() -> gk.Model:
    """A Scan with a branch, a counted Loop with a scan output, and a while_loop, through an ONNX file."""
    x, w = gk.input("x", [6, 3], "float64"), gk.parameter("w", (3,), init=0.75, dtype="float64")
    step = in_if(F.tanh, w)
    last, ys = gk.scan(lambda c, v: (lambda n: (n, n * v))(step(c + v)), gk.constant(np.zeros(3)), x, reverse=True)
    i, going, s, inner = (
        Value(TensorType("int64", ())), Value(TensorType("bool", ())), Value(TensorType("float64", (3,))),
        Value(TensorType("float64", (3,))),
    )  # fmt: skip
    body = Graph([i, going, s, inner], [going, F.sin(F.add(F.mul(s, inner), F.cast(i, to=s.dtype))), F.mul(s, s)])
    end, squares = F.loop(np.int64(4), None, last, w, body=body, captures=1)
    grown = in_loop(F.sin, w)(end)
    loss = gk.reduce_sum(grown, keepdims=False) + gk.reduce_sum(squares, keepdims=False)
    net = gk.Model({"loss": loss + gk.reduce_sum(ys * ys, keepdims=False)})
    return gk.load(net.to_onnx())


@in_one_item()
@pytest.mark.parametrize("block", [None, 2, 4])
def test_control_flow_of_a_file(block: int | None) -> None:
    net = imported()
    assert {"Scan", "Loop"} <= {n.op.name for n in net.graph.nodes}
    blocked = net if block is None else gk.block_loops(net, block)
    rows = RNG.standard_normal((6, 3))
    report = check_gradient(blocked, {"x": rows}, of="loss")
    assert report.passed, str(report)
    gradient = gk.grad(blocked, of="loss", wrt=["x", "w"], with_outputs=True)
    ours = gradient.run({"x": rows})
    theirs = OnnxRuntimeModel(gradient.to_onnx()).run({"x": rows})
    for name, array in ours.items():
        np.testing.assert_allclose(theirs[name], array, rtol=1e-9, atol=1e-11)


def test_an_imported_recurrent_network_trains_with_blocks() -> None:
    x, w = gk.input("x", [12, 4, 3]), gk.parameter("w", (3, 3))
    last = gk.fold(lambda c, v: gk.tanh(v + c @ w), gk.constant(np.zeros((4, 3), np.float32)), x)
    source = gk.Model({"y": last})
    net = gk.block_loops(gk.load(source.to_onnx()))
    (outer,) = [n for n in net.graph.nodes if n.op.name == "Scan"]
    assert outer.op.recompute  # type: ignore[attr-defined]
    rows = RNG.standard_normal((12, 4, 3)).astype(np.float32)
    target = 0.5 * np.tanh(RNG.standard_normal((4, 3))).astype(np.float32)
    plain = gk.Trainer(gk.load(source.to_onnx()), "mse", gk.optim.SGD(0.1))
    trainer = gk.Trainer(net, "mse", gk.optim.SGD(0.1))
    losses = [(float(trainer.step(rows, target)), float(plain.step(rows, target))) for _ in range(20)]
    assert losses[-1][0] < 0.9 * losses[0][0]
    for blocked, whole in losses:
        assert abs(blocked - whole) < 1e-5
