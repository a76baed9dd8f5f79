"""Gelu and similar activations, and fused forms with a bias."""

from __future__ import annotations

import math

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.errors import UnsupportedError
from graphkit.onnx_io.importer import import_model
from graphkit.ops.xp import numpy_xp


def normal(rng, *shape, dtype=np.float32):
    return np.asarray(2 * rng.standard_normal(shape), dtype)


@in_one_item("values")
@pytest.mark.parametrize("shape", [(3, 4), (), (0, 2), (5, 6, 7)])
@pytest.mark.parametrize(
    ("op", "attrs"),
    [("Gelu", {}), ("FastGelu", {}), ("QuickGelu", {}), ("QuickGelu", {"alpha": 0.5}), ("ScaledSiLU", {"alpha": 2.0})],
)
def test_of_one_operand(node, agree, rng, op, attrs, shape):
    shape = shape or ((1,) if op == "FastGelu" else ())  # which ONNX Runtime refuses for scalars
    agree(node(op, normal(rng, *shape), names={3: "A", 5: "B"}, **attrs))


@in_one_item()
@pytest.mark.parametrize("op", ["BiasGelu", "FastGelu"])
@pytest.mark.parametrize("shape", [(3, 4), (5, 6, 7), (0, 2)])
def test_with_a_bias(node, agree, rng, op, shape):
    agree(node(op, normal(rng, *shape), normal(rng, shape[-1]), names={3: "A", 5: "B"}))


def test_special_values(node, agree):
    x = np.array([np.nan, np.inf, 0.0, -0.0, 90.0, -90.0], np.float32)
    agree(node("QuickGelu", x))
    agree(node("Gelu", x))


@pytest.mark.parametrize("scale", [np.array(0.5, np.float32), np.array(0.5, np.float16)])
def test_a_scale_that_is_an_operand(node, agree, rng, scale):
    agree(node("ScaledSiLU", normal(rng, 3, 4), scale, alpha=3.0))


def test_gated_add(node, agree, rng):
    agree(node("GatedAdd", normal(rng, 3, 2, 4), normal(rng, 3, 2, 4), normal(rng, 3, 2, 1), names={3: "N"}))


# Operators without a kernel for CPUs in ONNX Runtime, by their definitions.


def gelu(x):
    return 0.5 * x * numpy_xp.special.erfc(-x * math.sqrt(0.5))


def softmax(x):
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_bias_split_gelu(node, agree, rng):
    x, bias = normal(rng, 3, 5, 8), normal(rng, 8)
    left, right = np.split(x + bias, 2, axis=-1)
    agree(node("BiasSplitGelu", x, bias, names={3: "N"}), {"y0": left * gelu(right)})


def test_bias_add(node, agree, rng):
    x, bias, skip = normal(rng, 3, 5, 8), normal(rng, 8), normal(rng, 3, 5, 8)
    agree(node("BiasAdd", x, bias, skip, names={3: "N"}), {"y0": x + bias + skip})


@in_one_item()
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("shape", [(8,), (3, 8)])
def test_bias_dropout_in_inference(node, agree, rng, residual, shape):
    x, bias, more = normal(rng, 3, 8), normal(rng, *shape), normal(rng, 3, 8) if residual else None
    expected = {"y0": x + bias + (more if residual else 0), "y1": np.ones((3, 8), bool)}
    agree(node("BiasDropout", x, bias, more, np.array(0.25, np.float32), outputs=(True, True), seed=3), expected)


@in_one_item()
@pytest.mark.parametrize(("bias", "axis"), [((3, 1, 1, 7), 3), ((4, 7), 3), ((1, 1, 4, 7), -1), ((3, 1, 4, 7), 2)])
def test_bias_softmax(node, agree, rng, bias, axis):
    x, b = normal(rng, 3, 2, 4, 7), normal(rng, *bias)
    flat = (x + b).reshape(*x.shape[:axis], -1)
    case = node("BiasSoftmax", x, b, names={3: "N"}, axis=axis, is_inner_broadcast=int(bias[0] == 3))
    agree(case, {"y0": softmax(flat).reshape(x.shape)})


@in_one_item()
@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("attrs", [{}, {"limit": 0.75, "activation_alpha": 1.5, "activation_beta": 1.0}], ids=str)
def test_swiglu(node, agree, rng, joined, attrs):
    gate, up = normal(rng, 3, 4), normal(rng, 3, 4)
    limit, alpha, beta = attrs.get("limit", np.inf), attrs.get("activation_alpha", 1), attrs.get("activation_beta", 0)
    g, u = np.minimum(gate, limit), np.clip(up, -limit, limit)
    operands = (np.concatenate((gate, up), -1),) if joined else (gate, up)
    expected = (g * sigmoid(alpha * g) * (u + beta)).astype(np.float32)
    agree(node("SwiGLU", *operands, names={3: "N"}, **attrs), {"y0": expected})


def test_a_projected_gate_is_refused(node, rng):
    case = node("GatedAdd", normal(rng, 3, 4), normal(rng, 3, 4), normal(rng, 3, 2), normal(rng, 2, 1))
    with pytest.raises(UnsupportedError, match="gate_weight"):
        import_model(case.proto)
