"""Attention whose weights are 0 for queries that see no key: it is fused, and these results are 0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import DType, TensorType
from graphkit.ops import F
from graphkit.ops.evaluate import evaluate
from graphkit.passes.cleanup import CLEANUP
from graphkit.passes.core.sweep import run_passes
from graphkit.passes.fuse.attention import fuse_attention
from graphkit.passes.simplify.composites import expand_composites
from graphkit.passes.simplify.transpose import eliminate_transpose

ROWS, KEYS, HEADS, WIDTH = 6, 6, 2, 3
INFINITE = np.float32(-np.inf)
PASSES = (expand_composites, *CLEANUP, eliminate_transpose, fuse_attention, eliminate_transpose, *CLEANUP)


def data(*shape: Any, name: str, dtype: str = "float32") -> Value:
    return Value(TensorType(dtype, shape), name)


def operands() -> list[Value]:
    return [data(2, HEADS, n, WIDTH, name=name) for name, n in (("q", ROWS), ("k", KEYS), ("v", KEYS))]


def fed(inputs: Sequence[Value], *, damaged: bool) -> list[np.ndarray]:
    """Query 2 sees no key. damaged: query 1 is NaN, and query 4 is infinite."""
    rng = np.random.default_rng(0)
    arrays = []
    for value in inputs:
        shape = value.tensor.static_shape
        if value.dtype is DType.BOOL:
            array = rng.random(shape) < 0.6
            array[..., 2, :] = False
            array[..., 3, 0] = True
        else:
            array = rng.standard_normal(shape).astype(np.float32)
            if value.name == "mask":
                array = np.where(rng.random(shape) < 0.3, INFINITE, array)
                array[..., 2, :] = INFINITE
        if damaged and value.name == "q":
            rows = array.swapaxes(1, 2) if shape[1] == ROWS else array
            rows[:, :, 1], rows[:, :, 4] = np.nan, np.inf
        arrays.append(array)
    return arrays


def safe(scores: Any, v: Any) -> Any:
    """As PyTorch exports scaled_dot_product_attention with a mask."""
    weights = F.softmax(scores, axis=-1)
    return F.mat_mul(F.where(F.is_nan(weights), np.float32(0), weights), v)


def compare(graph: Graph) -> Graph:
    after = run_passes(graph, PASSES)
    for damaged in (False, True):
        arrays = fed(graph.inputs, damaged=damaged)
        for wanted, found in zip(evaluate(graph, arrays), evaluate(after, arrays), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6)
    return after


def attention_of(graph: Graph) -> Any:
    (op,) = (node.op for node in graph.nodes if node.op.name.startswith("FusedAttention"))
    assert graph.operators.isdisjoint(("Softmax", "MatMul"))
    return op


@in_one_item()
@pytest.mark.parametrize("dtype", ["bool", "float32"])
@pytest.mark.parametrize("shape", [(ROWS, KEYS), (2, 1, ROWS, KEYS), (2, HEADS, ROWS, KEYS)])
@pytest.mark.parametrize("causal", [False, True])
def test_the_operator_with_a_mask(dtype: str, shape: tuple[int, ...], causal: bool) -> None:
    inputs = [*operands(), data(*shape, name="mask", dtype=dtype)]
    graph = Graph(inputs, [F.attention(*inputs, is_causal=causal)[0]])
    after = compare(graph)
    op = attention_of(after)
    assert op.name == "FusedAttention"
    assert op.causal is causal
    assert op.mask_value == -np.inf
    (y,) = evaluate(after, fed(inputs, damaged=False))
    assert (y[:, :, 2] == 0).all()
    assert (y[:, :, 3] != 0).any()


@in_one_item()
@pytest.mark.parametrize("kind", ["added", "kept", "causal", "none"])
@pytest.mark.parametrize("transposed", [False, True])
def test_the_softmax_of_pytorch(kind: str, transposed: bool) -> None:
    inputs = operands()
    q, k, v = inputs
    if transposed:
        inputs = [data(2, n, HEADS, WIDTH, name=name) for name, n in (("q", ROWS), ("k", KEYS), ("v", KEYS))]
        q, k, v = (F.transpose(x, perm=(0, 2, 1, 3)) for x in inputs)
    scores = F.mul(F.mat_mul(q, F.transpose(k, perm=(0, 1, 3, 2))), np.float32(0.5))
    if kind == "added":
        inputs = [*inputs, data(ROWS, KEYS, name="mask")]
        scores = F.add(scores, inputs[-1])
    elif kind == "kept":
        inputs = [*inputs, data(ROWS, KEYS, name="mask", dtype="bool")]
        scores = F.where(inputs[-1], scores, INFINITE)
    elif kind == "causal":
        scores = F.add(scores, np.where(np.tri(ROWS, KEYS, dtype=bool), 0, -np.inf).astype(np.float32))
    y = safe(scores, v)
    after = compare(Graph(inputs, [F.transpose(y, perm=(0, 2, 1, 3)) if transposed else y]))
    op = attention_of(after)
    assert op.causal is (kind == "causal")
    assert op.layout == op.output_layout == ("NLHD" if transposed else "NHLD")
    sizes = [node.output.tensor.static_shape for node in after.nodes if node.op.name == "Transpose"]
    assert all(shape[-1] == 1 for shape in sizes)  # conditions, not results


def test_what_is_left_alone() -> None:
    q, k, v = inputs = operands()
    scores = F.mat_mul(q, F.transpose(k, perm=(0, 1, 3, 2)))
    weights = F.softmax(scores, axis=-1)
    invalid = F.is_nan(weights)
    other, row = data(2, HEADS, ROWS, 1, name="other", dtype="bool"), data(KEYS, name="row", dtype="bool")
    zero = np.float32(0)
    kept = F.softmax(F.where(other, scores, zero), axis=-1)
    graphs = {
        "other numbers": Graph(inputs, [F.mat_mul(F.where(invalid, np.float32(1), weights), v)]),
        "weights that are returned": Graph(inputs, [F.mat_mul(F.where(invalid, zero, weights), v), weights]),
        "a condition that is returned": Graph(inputs, [F.mat_mul(F.where(invalid, zero, weights), v), invalid]),
        "one condition alone": Graph([*inputs, other], [F.mat_mul(F.where(other, weights, zero), v)]),
        "two conditions": Graph([*inputs, other], [F.mat_mul(F.where(F.not_(other), kept, zero), v)]),
        "a condition of each key": Graph([*inputs, row], [F.mat_mul(F.where(row, weights, zero), v)]),
    }
    for why, graph in graphs.items():
        after = run_passes(graph, PASSES)
        assert "FusedAttention" not in after.operators, why
        assert "FusedAttentionWithStatistics" not in after.operators, why


def test_without_guards() -> None:
    q, k, v = inputs = operands()
    graph = Graph(inputs, [safe(F.mat_mul(q, F.transpose(k, perm=(0, 1, 3, 2))), v)])
    assert "FusedAttentionWithStatistics" in fuse_attention(graph).operators
    assert "Softmax" in fuse_attention(graph, guards=False).operators
