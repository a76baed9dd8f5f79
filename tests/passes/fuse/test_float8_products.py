"""Matrix products with 8-bit operands: which products, the formats, and the rounded values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.autodiff.reverse_mode import gradient
from graphkit.ir import context
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import DType, TensorType
from graphkit.ops import F, apply
from graphkit.ops.evaluate import evaluate
from graphkit.ops.internal.fused import FusedMatMul
from graphkit.passes.cleanup import CLEANUP
from graphkit.passes.core.sweep import run_passes
from graphkit.passes.fuse.float8_products import float8_products
from graphkit.passes.pipeline import array_passes

E4M3, E5M2 = DType.FLOAT8E4M3FN, DType.FLOAT8E5M2


def value(name: str, *shape: Any, role: str = "data", dtype: str = "float32") -> Value:
    return Value(TensorType(dtype, shape), name, role=role)


def of(graph: Graph, name: str) -> list[Node]:
    return [node for node in graph.nodes if node.op.name == name]


def formats_of(graph: Graph) -> list[tuple[DType, ...]]:
    return [tuple(node.operands[i].dtype for i in (0, 2)) for node in of(graph, "Float8MatMul")]


def rewritten(graph: Graph) -> Graph:
    return run_passes(graph, (float8_products, *CLEANUP))


@in_one_item()
@pytest.mark.parametrize(
    ("a", "b", "attrs", "taken"),
    [
        ((5, 32), (32, 16), {}, True),
        (("N", 32), (32, 16), {}, True),
        (("N", "T", 40), (40, 48), {}, True),
        ((5, 32), (16, 32), {"transB": True}, True),
        (("N", 32), ("N", 16), {"transA": True}, True),
        ((5, 24), (24, 16), {"alpha": 0.5}, True),
        ((5, 32), (32, 24), {}, False),  # columns
        ((5, 32), (32, "M"), {}, False),
        ((5, 12), (12, 16), {}, False),  # too short a sum
        ((0, 32), (32, 16), {}, True),
        ((4, 5, 32), (4, 32, 16), {}, False),  # batches
        ((4, 32, 5), (32, 16), {"transA": True}, False),
        ((5, 32), (32, 16), {"activation": "Relu"}, False),
    ],
)
def test_sizes(a: Any, b: Any, attrs: dict[str, Any], taken: bool) -> None:
    x, w = value("x", *a), value("w", *b)
    y = apply(FusedMatMul(**attrs), x, w)
    graph = Graph([x, w], [y])
    found = rewritten(graph)
    assert bool(of(found, "Float8MatMul")) == taken
    assert found.outputs[0].dtype is DType.FLOAT32
    if not taken:
        assert found is graph
        return
    sizes = {"N": 5, "T": 3}
    arrays = [
        np.random.default_rng(i).standard_normal([sizes.get(n, n) for n in shape], np.float32)
        for i, shape in enumerate((a, b))
    ]
    (exact,), (near,) = evaluate(graph, arrays), evaluate(found, arrays)
    assert near.shape == exact.shape
    assert np.linalg.norm(near - exact) <= 2.0**-4 * np.linalg.norm(exact)


def test_other_types_stay() -> None:
    x, w = (value(name, 16, 16, dtype="float64") for name in "xw")
    graph = Graph([x, w], [F.mat_mul(x, w)])
    assert float8_products(graph) is graph


@in_one_item()
@pytest.mark.parametrize("beta", [1.0, 0.0, 0.5])
def test_what_is_added(beta: float) -> None:
    """A Gemm stays if its third operand is not a plain bias."""
    x, w, c = value("x", 4, 32), value("w", 32, 16), value("c", 16)
    graph = Graph([x, w, c], [F.gemm(x, w, c, beta=beta)])
    found = of(rewritten(graph), "Float8MatMul")
    assert len(found) == (beta != 0.5)
    for node in found:
        assert len(node.inputs) == (5 if beta else 4)


def test_what_a_run_computes_is_rounded_to_bfloat16_first() -> None:
    """Inputs and values that depend only on parameters are not rounded."""
    x = value("x", 4, 32)
    v, w = value("v", 16, 16, role="parameter"), value("w", 16, 32, role="parameter")
    y = F.mat_mul(x, F.mul(F.transpose(w), F.constant(value=np.float32(2))))
    found = rewritten(Graph([x, v, w], [F.mat_mul(F.relu(y), F.transpose(v))]))
    kinds = [node.operands[0].dtype for node in of(found, "ScaledFloat8")]
    assert sorted(map(str, kinds)) == ["bfloat16", "float32", "float32", "float32"]


def trained() -> Graph:
    """Of two layers and a loss, as a trainer has it."""
    x, v, w = value("x", "N", "T", 32), value("v", 32, 48, role="state"), value("w", 48, 16, role="state")
    h = F.relu(F.mat_mul(x, v))
    loss = F.reduce_sum(F.tanh(F.mat_mul(h, w)))
    slopes = gradient([loss], [v, w], meta={context.GRADIENT: "true"})
    updates = [(p, F.sub(p, g)) for p, g in zip((v, w), slopes, strict=True)]
    return Graph([x, v, w], [loss], updates=updates)


def test_gradients_have_the_wider_format() -> None:
    found = run_passes(trained(), (*CLEANUP, *array_passes(lambda node: True, "fp8")))
    formats = formats_of(found)
    assert formats.count((E4M3, E4M3)) == 2, "forward"
    assert sum(E5M2 in pair for pair in formats) == len(formats) - 2 == 3, "backward"
    assert (E5M2, E5M2) not in formats


def test_a_tensor_is_rounded_once() -> None:
    """The forward product and the gradient of the weights share the rounded tensor, also transposed or flattened."""
    found = run_passes(trained(), (*CLEANUP, *array_passes(lambda node: True, "fp8")))
    rounded = of(found, "ScaledFloat8")
    # Both inputs, both weights, and the gradients of both results.
    assert len(rounded) == len(of(found, "AbsoluteMaxima")) == 6
    assert not of(found, "MatMul")


def test_no_product_has_two_gradients() -> None:
    x = value("x", 16, 16)
    with context.entered(context.Scope(attrs={context.GRADIENT: "true"})):
        y = F.exp(x)
        moved = F.transpose(x)
        both, one = F.mat_mul(y, y), F.mat_mul(moved, x)
    assert sorted(formats_of(rewritten(Graph([x], [both, one]))), key=str) == [(E4M3, E4M3), (E5M2, E4M3)]


def test_bodies() -> None:
    def branch(compute: Any) -> Graph:
        x, w = value("x", 4, 16), value("w", 16, 16)
        return Graph([x, w], [compute(x, w)])

    flag, x, w = value("flag", dtype="bool"), value("x", 4, 16), value("w", 16, 16)
    y = F.if_(flag, x, w, then_branch=branch(F.mat_mul), else_branch=branch(lambda x, w: F.mul(x, x)))
    (node,) = of(rewritten(Graph([flag, x, w], [y])), "If")
    inner = node.op.subgraphs()["then_branch"]
    assert of(inner, "Float8MatMul")
    assert inner.outputs[0].dtype is DType.FLOAT32
