"""FusedMatMul and its kin."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.errors import UnsupportedError
from graphkit.onnx_io.importer import import_model


def normal(rng, *shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)


FLAGS = list(itertools.product((0, 1), repeat=4))


@in_one_item()
@pytest.mark.parametrize(("a", "b", "batch_a", "batch_b"), FLAGS)
def test_transposed_factors(node, agree, rng, a, b, batch_a, batch_b):
    left, right = [5, 2, 3, 4], [5, 2, 4, 6]
    for shape, last, batch in ((left, a, batch_a), (right, b, batch_b)):
        if last:
            shape[-2:] = shape[:-3:-1]
        if batch:
            shape[:-1] = shape[-2], *shape[:-2]
    attrs = {"transA": a, "transB": b, "transBatchA": batch_a, "transBatchB": batch_b, "alpha": 0.25}
    agree(node("FusedMatMul", normal(rng, *left), normal(rng, *right), names={5: "B"}, **attrs))


@in_one_item()
@pytest.mark.parametrize("op", ["FusedMatMul", "TransposeMatMul"])
@pytest.mark.parametrize(
    ("left", "right", "attrs"),
    [
        ((3, 4), (4, 5), {}),
        ((4, 3), (5, 4), {"transA": 1, "transB": 1}),
        ((4,), (4, 5), {"transA": 1}),
        ((2, 3, 4), (5, 4), {"transB": 1, "alpha": 2.0}),
        ((2, 3, 4), (4,), {}),
        ((7, 3, 4), (1, 5, 4), {"transB": 1}),
        ((0, 4), (4, 5), {}),
    ],
)
def test_products(node, agree, rng, op, left, right, attrs):
    agree(node(op, normal(rng, *left), normal(rng, *right), names={3: "N"}, **attrs))


def test_products_of_doubles(node, agree, rng):
    a, b = (normal(rng, 2, 3, dtype=np.float64) for _ in range(2))
    agree(node("FusedMatMul", a, b, transB=1, alpha=0.5), strict=False)


def test_a_transposed_factor_needs_a_rank(node, rng):
    case = node("FusedMatMul", normal(rng, 2, 3), normal(rng, 2, 3), transB=1)
    for value in case.proto.graph.input:
        value.type.tensor_type.ClearField("shape")
    with pytest.raises(UnsupportedError, match="rank"):
        import_model(case.proto)


@in_one_item()
@pytest.mark.parametrize(
    "attrs",
    [
        {"activation": "Relu"},
        {"activation": "LeakyRelu", "activation_alpha": 0.3},
        {"activation": "Sigmoid", "alpha": 0.5, "beta": 2.0},
        {"activation": "Tanh", "transB": 1},
        {"activation": "HardSigmoid", "activation_alpha": 0.25, "activation_beta": 0.75},
        {"activation": "Elu", "activation_alpha": 0.5},
        {"activation": "Softplus"},
        {"activation": "Softsign"},
        {"activation": "ThresholdedRelu", "activation_alpha": 0.5},
    ],
    ids=str,
)
def test_gemm_with_an_activation(node, agree, rng, attrs):
    right = (4, 3) if attrs.get("transB") else (3, 4)
    agree(node("FusedGemm", normal(rng, 5, 3), normal(rng, *right), normal(rng, 4), names={5: "N"}, **attrs))


def test_an_unknown_activation(node, rng):
    case = node("FusedGemm", normal(rng, 5, 3), normal(rng, 3, 4), activation="Wave")
    with pytest.raises(UnsupportedError, match=r"node 'node' \(com.microsoft.FusedGemm\).*Wave"):
        import_model(case.proto)


def test_an_unknown_attribute(node, rng):
    case = node("FusedMatMul", normal(rng, 5, 3), normal(rng, 3, 4), gain=2.0)
    with pytest.raises(UnsupportedError, match=r"gain=2\.0"):
        import_model(case.proto)


def test_matmul_with_an_activation(node, agree, rng):
    a, b = normal(rng, 2, 3), normal(rng, 3, 4)
    case = node("FusedMatMulActivation", a, b, activation="Relu", alpha=0.5)
    agree(case, {"y0": np.maximum(a @ b * np.float32(0.5), 0)})


def test_gemm_fast_gelu(node, agree, rng):
    a, b, bias = normal(rng, 2, 3), normal(rng, 3, 4), normal(rng, 4)
    x = (a @ b + bias).astype(np.float64)
    gelu = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    agree(node("GemmFastGelu", a, b, bias), {"y0": gelu.astype(np.float32)})
