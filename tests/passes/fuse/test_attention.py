"""Attention in the forms that exporters and models write, with its layouts and masks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import FLOATS, DType, TensorType
from graphkit.ops import F
from graphkit.ops._base import apply as apply_op
from graphkit.ops.evaluate import evaluate
from graphkit.ops.internal.fused_attention import FusedAttention
from graphkit.passes.fuse.attention import fuse_attention
from graphkit.passes.fuse.matmul import fuse_matmul
from graphkit.passes.layout.round_products import round_products
from graphkit.passes.simplify.transpose import eliminate_transpose

HEADS, WIDTH = 2, 3


def data(*shape: Any, name: str = "x", dtype: str = "float32") -> Value:
    return Value(TensorType(dtype, shape), name)


def split(x: Value) -> Any:
    return F.transpose(F.reshape(x, np.array([0, 0, HEADS, WIDTH])), perm=(0, 2, 1, 3))


def transposed(x: Value) -> Any:
    return F.transpose(x, perm=(0, 1, 3, 2))


def joined(y: Any) -> Any:
    return F.reshape(F.transpose(y, perm=(0, 2, 1, 3)), np.array([0, 0, HEADS * WIDTH]))


def operands(length: Any = "S") -> list[Value]:
    return [data("N", n, HEADS * WIDTH, name=name) for name, n in (("q", "T"), ("k", length), ("v", length))]


SIZES = {"N": 2, "T": 4, "S": 5}
FORMS: list[Callable[[Any, Any], Any]] = [
    lambda q, k: F.mat_mul(q, transposed(k)),
    lambda q, k: F.div(F.mat_mul(q, transposed(k)), math.sqrt(3.0)),
    lambda q, k: F.mul(F.mat_mul(q, transposed(k)), 0.25),
    lambda q, k: F.mat_mul(F.mul(q, 0.5), F.mul(transposed(k), 0.5)),
    lambda q, k: F.mat_mul(F.mul(q, 0.5), transposed(F.mul(k, 0.5))),
    lambda q, k: F.mat_mul(q, F.transpose(F.transpose(k, perm=(0, 2, 1, 3)), perm=(0, 2, 3, 1))),
]


@in_one_item()
@pytest.mark.parametrize("form", FORMS)
def test_forms_of_the_scale(apply: Any, form: Any) -> None:
    inputs = operands()
    q, k, v = map(split, inputs)
    y = joined(F.mat_mul(F.softmax(form(q, k)), v))
    kept: list[Graph] = []
    found = apply(inputs, y, eliminate_transpose, fuse_attention, keep=kept, **SIZES)
    assert found == {"Reshape": 4, "FusedAttention": 1}
    (node,) = (n for n in kept[0].nodes if n.op.name == "FusedAttention")
    assert (node.op.layout, node.op.output_layout) == ("NLHD", "NLHD")
    # Products that are fused already, as in a graph whose shapes became known later.
    again = apply(inputs, y, fuse_matmul, fuse_attention, **SIZES)
    assert again["FusedAttention"] == 1


@in_one_item()
@pytest.mark.parametrize("shape", [(2, 1, 1, 5), (2, 2, 4, 5), (4, 5), (5,), (1, 1, 4, 1)])
@pytest.mark.parametrize("boolean", [False, True, None])
def test_masks(apply: Any, shape: tuple[int, ...], boolean: bool | None) -> None:
    inputs = [data(2, n, HEADS * WIDTH, name=name) for name, n in (("q", 4), ("k", 5), ("v", 5))]
    q, k, v = map(split, inputs)
    scores = F.mat_mul(q, transposed(k)) * 0.5
    if boolean is None:
        mask = data(*shape, name="mask")
        masked = F.add(mask, scores)
    else:
        mask = data(*shape, name="mask", dtype="bool")
        hidden = np.float32(-1e4)
        masked = F.where(mask, scores, hidden) if boolean else F.where(mask, hidden, scores)
    y = F.mat_mul(F.softmax(masked), v)
    found = apply([*inputs, mask], y, fuse_attention)
    assert found["FusedAttention"] == 1
    assert not found.keys() & {"MatMul", "Softmax", "Where", "Add", "Mul"}


def test_a_mask_that_would_broadcast_the_scores(apply: Any) -> None:
    inputs = [data(1, n, HEADS * WIDTH, name=name) for name, n in (("q", 1), ("k", 5), ("v", 5))]
    q, k, v = map(split, inputs)
    mask = data(1, 1, 4, 5, name="mask")
    y = F.mat_mul(F.softmax(F.mat_mul(q, transposed(k)) + mask), v)
    assert apply([*inputs, mask], y, fuse_attention)["FusedAttention"] == 0


@in_one_item()
@pytest.mark.parametrize("boolean", [False, True])
def test_a_constant_triangle_is_causal(apply: Any, boolean: bool) -> None:
    inputs = [data(2, n, HEADS * WIDTH, name=name) for name, n in (("q", 3), ("k", 5), ("v", 5))]
    q, k, v = map(split, inputs)
    visible = np.tri(3, 5, 2, dtype=bool)
    for mask, causal in ((visible, True), (np.tri(3, 5, 1, dtype=bool), False)):
        scores = F.mat_mul(q, transposed(k))
        if boolean:
            masked = F.where(mask, scores, np.finfo(np.float32).min)
        else:
            masked = F.add(scores, np.where(mask, 0, -np.inf).astype(np.float32)[None, None])
        kept: list[Graph] = []
        apply(inputs, F.mat_mul(F.softmax(masked), v), fuse_attention, keep=kept)
        (node,) = (n for n in kept[0].nodes if n.op.name == "FusedAttention")
        assert node.op.causal is causal
        assert len(node.inputs) == (3 if causal else 4)


def test_a_row_that_hides_nothing_is_not_causal(apply: Any) -> None:
    """A mask of one row applies to every query. It must not be read as a triangle, which would hide most scores."""
    inputs = [data(2, n, HEADS * WIDTH, name=name) for name, n in (("q", 3), ("k", 5), ("v", 5))]
    q, k, v = map(split, inputs)
    masked = F.add(F.mat_mul(q, transposed(k)), np.zeros((1, 1, 1, 5), np.float32))
    kept: list[Graph] = []
    apply(inputs, F.mat_mul(F.softmax(masked), v), fuse_attention, keep=kept)
    assert not any(n.op.causal for n in kept[0].nodes if n.op.name == "FusedAttention")


def test_operands_of_three_axes(apply: Any) -> None:
    q, k, v = (data("T", 6, WIDTH, name=name) for name in "qkv")
    heads = [F.transpose(x, perm=(1, 0, 2)) for x in (q, k, v)]
    scores = F.mat_mul(heads[0], F.transpose(k, perm=(1, 2, 0)))
    y = F.transpose(F.mat_mul(F.softmax(scores), heads[2]), perm=(1, 0, 2))
    kept: list[Graph] = []
    found = apply([q, k, v], y, fuse_attention, T=4, keep=kept)
    assert found == {"Unsqueeze": 3, "FusedAttention": 1, "Squeeze": 1}


@in_one_item()
@pytest.mark.parametrize("shape", [(HEADS, 4, 4), (HEADS, 1, 4), (1, 4, 4)])
def test_a_mask_of_three_axes(apply: Any, shape: tuple[int, ...]) -> None:
    """Its first axis is that of the heads."""
    q, k, v = (data(HEADS, 4, WIDTH, name=name) for name in "qkv")
    mask = data(*shape, name="mask")
    y = F.mat_mul(F.softmax(F.add(F.mat_mul(q, F.transpose(k, perm=(0, 2, 1))), mask)), v)
    assert apply([q, k, v, mask], y, fuse_attention)["FusedAttention"] == 1


def test_what_is_no_attention(apply: Any) -> None:
    inputs = operands()
    q, k, v = map(split, inputs)
    scores = F.mat_mul(q, transposed(k))
    weights = F.softmax(scores)
    for outputs in (
        [F.mat_mul(weights, v), weights],
        [F.mat_mul(weights, v), scores],
        [F.mat_mul(F.softmax(scores, axis=1), v)],
        [F.mat_mul(F.softmax(F.relu(scores)), v)],
    ):
        assert apply(inputs, outputs, fuse_attention, **SIZES)["FusedAttention"] == 0
    # One head of keys for all queries broadcasts.
    single = data("N", 1, "S", WIDTH, name="k")
    y = F.mat_mul(F.softmax(F.mat_mul(q, transposed(single))), v)
    assert apply([inputs[0], single, inputs[2]], y, fuse_attention, **SIZES)["FusedAttention"] == 0


@in_one_item()
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_types_are_for_devices_that_compute_them(dtype: str) -> None:
    q, k, v = (data(2, HEADS, 5, WIDTH, name=name, dtype=dtype) for name in "qkv")
    graph = Graph([q, k, v], [F.mat_mul(F.softmax(F.mat_mul(q, transposed(k))), v)])
    assert "FusedAttention" not in fuse_attention(graph).operators
    assert "FusedAttention" in fuse_attention(graph, kinds=FLOATS).operators


@in_one_item()
@pytest.mark.parametrize("kind", [DType.FLOAT16, DType.BFLOAT16])
def test_a_rounded_mask_stays_finite(kind: DType) -> None:
    """A query that sees nothing has equal weights, where minus infinity would make NaN of it."""
    q, k, v = (data(1, 1, 4, 4, name=name) for name in "qkv")
    seen = data(4, 4, name="seen", dtype="bool")
    lowest = float(np.finfo(np.float32).min)
    for value in (lowest, -1e3, -math.inf):
        y = apply_op(FusedAttention(mask_value=value), q, k, v, seen)
        made = round_products(Graph([q, k, v, seen], [y]), kind=kind, attention=True)
        (op,) = (node.op for node in made.nodes if isinstance(node.op, FusedAttention))
        rounded = float(kind.numpy.type(op.mask_value))
        assert np.isfinite(rounded) == np.isfinite(value)
        assert value != -1e3 or op.mask_value == value
        given = [np.random.default_rng(i).standard_normal((1, 1, 4, 4)).astype(np.float32) for i in range(3)]
        (found,) = evaluate(made, [*given, np.zeros((4, 4), bool)])
        assert np.isnan(found).all() if value == -math.inf else np.isfinite(found).all()


def test_numbers_that_are_added_are_not_rounded() -> None:
    q, k, v, added = (data(1, 1, 4, 4, name=name) for name in ("q", "k", "v", "added"))
    graph = Graph([q, k, v, added], [apply_op(FusedAttention(), q, k, v, added)])
    assert "Cast" not in round_products(graph, kind=DType.FLOAT16).operators
    made = round_products(graph, kind=DType.FLOAT16, attention=True)
    (node,) = (node for node in made.nodes if isinstance(node.op, FusedAttention))
    assert [v.dtype for v in node.operands] == [DType.FLOAT16] * 3 + [DType.FLOAT32]
    assert node.operands[3] is made.inputs[3]
