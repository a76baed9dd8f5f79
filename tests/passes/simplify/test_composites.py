"""Composite operators are expanded to run, with the same results."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.checks.samples import Case, dtypes_of, make_case, samples_of
from graphkit.checks.verify import compare
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import DType, TensorType
from graphkit.ops import F, registry
from graphkit.ops.evaluate import evaluate
from graphkit.passes.cleanup import CLEANUP
from graphkit.passes.core.sweep import run_passes
from graphkit.passes.pipeline import BOUND, INFERENCE
from graphkit.passes.simplify.composites import expand_composites

COMPOSITES = [cls for cls in registry if cls.composite]
# Samples that are not expanded, and why.
KEPT = {
    "LabelEncoder-0": "strings",
    "LabelEncoder-1": "strings",
    "LabelEncoder-2": "keys that are no integers",
    "OneHotEncoder-1": "strings",
    "OneHotEncoder-2": "what is in no category is an error",
    "SVMClassifier-3": "a linear machine",
    "TreeEnsembleClassifier-0": "labels other than their positions are gathered, the trees are left",
    "TreeEnsembleClassifier-1": "labels are gathered, the trees are left",
    "TreeEnsembleClassifier-2": "its labels are positions already",
}
CASES = [
    make_case(cls, number, DType.FLOAT32 if DType.FLOAT32 in dtypes_of(cls, sample) else dtypes_of(cls, sample)[0])
    for cls in COMPOSITES
    for number, sample in enumerate(samples_of(cls))
]


def names(graph: Graph) -> Counter[str]:
    return Counter(node.op.name for node in graph.nodes)


def test_composites_are_known_by_their_expansion() -> None:
    assert {"Attention", "Einsum", "LinearAttention"} <= {cls.name for cls in COMPOSITES}
    assert all(cls.expand is not None or cls.composed is not None for cls in COMPOSITES)


def test_attributes_stay() -> None:
    """Attributes of a scope are copied to all nodes of the expansion."""
    x = gk.input("x", [2, 4, 8])
    with gk.attr_scope(ctx_group="first", swap_memory=True):
        y = F.einsum(x, x, equation="bij,bkj->bik")
    graph = expand_composites(Graph([x], [F.neg(y)]))
    assert "Einsum" not in names(graph)
    *made, last = graph.nodes
    assert all(node.meta == {"ctx_group": "first", "swap_memory": "True"} for node in made)
    assert not last.meta


def test_a_diagonal_of_known_size_is_a_slice() -> None:
    x = gk.input("x", ["N", 3, 3])
    found = names(expand_composites(Graph([x], [F.einsum(x, equation="bii->b")])))
    assert found["Slice"]
    assert not found["Where"]


@in_one_item()
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_same_results(case: Case) -> None:
    graph = case.graph()
    expanded = expand_composites(graph)
    assert (case.op.name in names(expanded)) == (case.name.removesuffix(f"-{case.dtype}") in KEPT)
    for ours, expected in zip(evaluate(expanded, case.feeds()), evaluate(graph, case.feeds()), strict=True):
        report = compare(case.name, ours, expected, 1e-5, 1e-5)
        assert report.passed, str(report)


@in_one_item()
@pytest.mark.parametrize("axes", [[0], [1], [0, 2], None])
def test_gradients_of_products_run_natively(axes) -> None:
    x = gk.input("x", ["N", 3, 2])
    y = F.reduce_prod(x, *(() if axes is None else (np.array(axes),)), keepdims=False)
    back = gk.grad(gk.Model({"y": y}), of="y", wrt=["x"])
    exe, array = back.compile(), np.array([2, 0, 3, 4, -1, 0.5, 1, 2, 3, -2, 5, 0], np.float32).reshape(2, 3, 2)
    (found,) = exe.run({"x": array}).values()
    (expected,) = evaluate(back.graph, [array])
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert not exe.plan.fallbacks


LIMITS = np.iinfo(np.int64)


@in_one_item()
@pytest.mark.parametrize(
    ("keys", "native"),
    [
        ([3, -2, 7], True),
        ([5], True),
        ([0, 1 << 40], False),
        ([LIMITS.max], False),
        ([LIMITS.min, 1 - (1 << 63)], False),
    ],
)
def test_tables_of_integers_run_natively(keys, native) -> None:
    x = gk.input("x", ["N"], "int64")
    net = gk.Model({"y": F.label_encoder(x, keys_int64s=keys, values_floats=[float(i) for i in range(len(keys))])})
    exe = net.compile()
    array = np.array([*keys, *(min(max(k + 1, LIMITS.min), LIMITS.max) for k in keys), 0, LIMITS.min, LIMITS.max])
    (expected,) = evaluate(net.graph, [array])
    np.testing.assert_array_equal(exe.run({"x": array})["y"], expected)
    assert bool(exe.plan.fallbacks) is not native


def test_unknown_ranks_stay() -> None:
    x = Value(TensorType("float32"), "x")
    graph = Graph([x], [F.einsum(x, x, equation="...i,...i->...")])
    assert names(expand_composites(graph)) == names(graph)


def test_inside_branches() -> None:
    x, p = gk.input("x", [2, 3]), gk.input("p", [], dtype="bool")
    model = gk.Model({"y": gk.cond(p, lambda v: F.swi_glu(v, v), lambda v: v, (x,))}, name="branches")
    (node,) = (n for n in expand_composites(model.graph).nodes if n.op.name == "If")
    assert names(node.op.subgraphs()["then_branch"]) == {"Swish": 1, "Mul": 1}


def test_causal_attention_is_fused() -> None:
    """Attention becomes the operator that has a kernel, the mask its `causal`."""
    q, k, v = (Value(TensorType("float32", (1, 2, 8, 4)), name) for name in "qkv")
    graph = Graph([q, k, v], [F.attention(q, k, v, is_causal=True)[0]])
    prepared = run_passes(graph, (*CLEANUP, *INFERENCE, *CLEANUP, *BOUND))
    (fused,) = (n for n in prepared.nodes if n.op.name == "FusedAttention")
    assert fused.op.causal
    rng = np.random.default_rng(0)
    feeds = [rng.standard_normal((1, 2, 8, 4)).astype(np.float32) for _ in range(3)]
    np.testing.assert_allclose(evaluate(prepared, feeds)[0], evaluate(graph, feeds)[0], rtol=1e-5, atol=1e-6)
