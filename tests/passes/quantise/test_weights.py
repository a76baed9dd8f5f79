"""Weights of few bits stay packed until they are multiplied."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.ops import F
from graphkit.ops.evaluate import evaluate
from graphkit.passes.core.match import is_op
from graphkit.passes.quantise.weights import weight_products

rng = np.random.default_rng(0)
INT4, UINT4 = np.dtype(ml_dtypes.int4), np.dtype(ml_dtypes.uint4)


def drawn(shape: tuple[int, ...], dtype: Any) -> Any:
    low, high = (0, 16) if dtype == UINT4 else (-8, 8)
    return F.constant(value=rng.integers(low, high, shape).astype(dtype))


def scales(*shape: int) -> Any:
    return F.constant(value=rng.uniform(0.1, 1, shape).astype(np.float32))


def of(w: Any) -> gk.Model:
    return gk.Model({"y": F.mat_mul(gk.input("x", ["N", 32]), w)})


FUSED = {
    "blocks of rows": lambda: F.dequantize_linear(
        drawn((32, 5), INT4), scales(4, 5), drawn((4, 5), INT4), axis=0, block_size=8
    ),
    "turned blocks": lambda: F.transpose(
        F.dequantize_linear(drawn((5, 32), UINT4), scales(5, 2), axis=1, block_size=16), perm=(1, 0)
    ),
    "columns": lambda: F.dequantize_linear(drawn((32, 5), np.int8), scales(5), axis=1),
    "columns, counted from the end": lambda: F.dequantize_linear(drawn((32, 5), np.int8), scales(5), axis=-1),
    "blocks of rows, counted from the end": lambda: F.dequantize_linear(
        drawn((32, 5), INT4), scales(4, 5), axis=-2, block_size=8
    ),
    "one scale": lambda: F.dequantize_linear(drawn((32, 5), UINT4), scales(), F.constant(value=np.array(3, UINT4))),
}
KEPT = {
    "rows of a vector of scales": lambda: F.dequantize_linear(drawn((32, 5), np.int8), scales(32), axis=0),
    "blocks of columns": lambda: F.dequantize_linear(drawn((32, 6), INT4), scales(32, 2), axis=1, block_size=3),
    "blocks that are no words": lambda: F.dequantize_linear(drawn((32, 5), INT4), scales(8, 5), axis=0, block_size=4),
    "blocks of columns, counted from the end": lambda: F.dequantize_linear(
        drawn((32, 16), INT4), scales(32, 2), axis=-1, block_size=8
    ),
    "16 bits": lambda: F.dequantize_linear(drawn((32, 5), np.int16), scales()),
}


@in_one_item()
@pytest.mark.parametrize("name", [*FUSED, *KEPT])
def test_products(name: str) -> None:
    net = of({**FUSED, **KEPT}[name]())
    graph = weight_products(net.graph)
    assert any(is_op(n, "WeightOnlyMatMul", domain="ai.graphkit") for n in graph.nodes) == (name in FUSED)
    x = rng.standard_normal((3, 32)).astype(np.float32)
    expected = evaluate(net.graph, [x])[0]
    np.testing.assert_allclose(evaluate(graph, [x])[0], expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(net.compile().run({"x": x})["y"], expected, rtol=1e-5, atol=1e-4)


def test_weights_that_are_fed_are_not_packed() -> None:
    w = gk.input("w", [32, 5], dtype="int8")
    net = of(F.dequantize_linear(w, scales(5), axis=1))
    assert not any(n.op.name == "WeightOnlyMatMul" for n in weight_products(net.graph).nodes)
