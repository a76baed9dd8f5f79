"""The optimizers of ai.onnx.preview.training against onnx's reference evaluator, and exported against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from combinations import in_one_item
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import graphkit as gk
from graphkit.errors import InvalidModel, MissingGradient, TypeMismatch, UsageError

DOMAIN = "ai.onnx.preview.training"
RNG = np.random.default_rng(0)
MOMENTUM = {"alpha": 0.9, "beta": 0.5, "norm_coefficient": 0.01}
CASES: list[tuple[str, int, dict[str, Any]]] = [
    ("Adagrad", 3, {}),
    ("Adagrad", 3, {"decay_factor": 0.1, "epsilon": 1e-3, "norm_coefficient": 0.2}),
    ("Adam", 4, {}),
    ("Adam", 4, {"alpha": 0.5, "beta": 0.7, "epsilon": 1e-3, "norm_coefficient": 0.2, "norm_coefficient_post": 0.1}),
    ("Momentum", 3, {"mode": "standard", **MOMENTUM}),
    ("Momentum", 3, {"mode": "nesterov", **MOMENTUM}),
]


def model(
    kind: str, shapes: list[tuple[int, ...]], kinds: int, dtype: int, attributes: dict[str, Any]
) -> onnx.ModelProto:
    names = [f"x{i}" for i in range(kinds * len(shapes))]
    outputs = [f"y{i}" for i in range((kinds - 1) * len(shapes))]
    node = helper.make_node(kind, ["r", "t", *names], outputs, domain=DOMAIN, **attributes)
    inputs = [helper.make_tensor_value_info("r", TensorProto.FLOAT, []), helper.make_tensor_value_info("t", 7, [])]
    inputs += [helper.make_tensor_value_info(n, dtype, shapes[i % len(shapes)]) for i, n in enumerate(names)]
    made = [helper.make_tensor_value_info(n, dtype, None) for n in outputs]
    graph = helper.make_graph([node], kind, inputs, made)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)])


@in_one_item("pairs")
@pytest.mark.parametrize(("kind", "kinds", "attributes"), CASES)
@pytest.mark.parametrize("count", [0, 3])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_step(kind: str, kinds: int, attributes: dict[str, Any], count: int, dtype: str) -> None:
    """One tensor, and two of different shapes; at the first step and later."""
    rtol, atol = (2e-5, 1e-6) if dtype == "float32" else (1e-6, 1e-6)  # the evaluator has the rate in float32
    for shapes in ([(2, 3)], [(2, 3), (4,)]):
        proto = model(kind, shapes, kinds, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), attributes)
        feeds: dict[str, Any] = {"r": np.float32(0.1), "t": np.int64(count)}
        # Sums of squares are not negative.
        feeds |= {f"x{i}": RNG.random(shapes[i % len(shapes)]).astype(dtype) for i in range(kinds * len(shapes))}
        expected = ReferenceEvaluator(proto).run(None, feeds)
        net = gk.load(proto)
        for ours, theirs in zip(net.run(feeds).values(), expected, strict=True):
            assert ours.dtype == dtype
            np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=atol)
        assert {node.domain for node in net.to_onnx().graph.node} == {""}
        assert gk.verify(net, inputs=feeds).passed


def test_the_same_operator_trains() -> None:
    """Steps in a loop of the caller's reach the minimum of a square."""
    x, v = np.array([3.0, -2.0]), np.zeros(2)
    operands = [gk.input("t", [], dtype="int64"), *(gk.input(n, [2], dtype="float64") for n in "xgv")]
    new = gk.momentum(np.array(0.1), *operands, alpha=0.5, beta=1.0, mode="nesterov", norm_coefficient=0.0)
    net = gk.Model({"x": new[0], "v": new[1]})
    for t in range(80):
        x, v = net.run({"t": np.array(t), "x": x, "g": 2 * x, "v": v}).values()
    np.testing.assert_allclose(x, 0, atol=1e-6)


def test_refused() -> None:
    w, other, rate, count = (gk.input(n, s) for n, s in (("w", [2]), ("o", [3]), ("r", []), ("rates", [2])))
    t = gk.input("t", [], dtype="int64")
    with pytest.raises(TypeMismatch, match="takes 3 tensors for each weight, 2 given"):
        gk.adagrad(rate, t, w, w)
    with pytest.raises(TypeMismatch, match="does not fit weight"):
        gk.adagrad(rate, t, w, w, other)
    with pytest.raises(TypeMismatch, match="rate must be a scalar"):
        gk.adam(count, t, w, w, w, w)
    with pytest.raises(UsageError, match="mode must be standard or nesterov"):
        gk.momentum(rate, t, w, w, w, mode="heavy", **MOMENTUM)
    new, *_ = gk.adam(rate, t, w, w, w, w)
    with pytest.raises(MissingGradient, match="Adam ends a training step"):
        gk.grad(gk.Model({"new": new}), wrt=["w"])
    proto = model("Adagrad", [(2,)], 3, TensorProto.FLOAT, {})
    del proto.graph.node[0].input[4]
    with pytest.raises(InvalidModel, match="takes 3 tensors"):
        gk.load(proto)
