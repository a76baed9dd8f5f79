"""Keys and values whose heads are repeated for several heads of queries, as exporters write that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F
from graphkit.ops.nn.heads import shared_product
from graphkit.passes.fuse.attention import fuse_attention
from graphkit.passes.fuse.shared_heads import repeat_heads, share_heads

HEADS, GROUPS, DEPTH = 6, 2, 4
SIZES = {"N": 2, "T": 3, "S": 5}


def data(*shape: Any, name: str) -> Value:
    return Value(TensorType("float32", shape), name)


def inputs(layout: str = "NHLD", groups: int = GROUPS) -> list[Value]:
    heads = {"q": (HEADS, "T"), "k": (groups, "S"), "v": (groups, "S")}
    return [data("N", *(h if layout == "NHLD" else h[::-1]), DEPTH, name=name) for name, h in heads.items()]


def expanded(x: Value, axis: int = 1) -> Any:
    """[N, G, S, D] -> [N, H, S, D]."""
    sizes, times = F.shape(x), HEADS // GROUPS
    many = F.concat(sizes[: axis + 1], np.array([times]), sizes[axis + 1 :], axis=0)
    every = F.expand(F.unsqueeze(x, np.array([axis + 1])), many)
    whole = F.concat(sizes[:axis], np.array([HEADS]), sizes[axis + 1 :], axis=0)
    return F.reshape(every, whole)


def tiled(x: Value, axis: int = 1) -> Any:
    sizes = F.shape(x)
    counts = np.ones(5, np.int64)
    counts[axis + 1] = HEADS // GROUPS
    every = F.tile(F.unsqueeze(x, np.array([axis + 1])), counts)
    return F.reshape(every, F.concat(sizes[:axis], np.array([HEADS]), sizes[axis + 1 :], axis=0))


def attended(q: Any, k: Any, v: Any, cap: bool = False) -> Any:
    scores = F.mul(F.mat_mul(q, F.transpose(k, perm=(0, 1, 3, 2))), 0.5)
    return F.mat_mul(F.softmax(F.tanh(scores) if cap else scores, axis=-1), v)


@in_one_item()
@pytest.mark.parametrize("repeat", [expanded, tiled])
def test_attention(apply: Any, repeat: Callable[..., Any]) -> None:
    given = q, k, v = inputs()
    kept: list[Graph] = []
    found = apply(given, attended(q, repeat(k), repeat(v)), fuse_attention, share_heads, keep=kept, **SIZES)
    assert found == {"FusedAttention": 1}
    (node,) = kept[0].nodes
    assert list(node.operands) == list(kept[0].inputs)


def test_attention_with_heads_last(apply: Any) -> None:
    given = q, k, v = inputs("NLHD")
    q, k, v = (F.transpose(x, perm=(0, 2, 1, 3)) for x in (q, expanded(k, axis=2), expanded(v, axis=2)))
    assert apply(given, attended(q, k, v), fuse_attention, share_heads, **SIZES) == {"FusedAttention": 1}


@in_one_item()
@pytest.mark.parametrize("repeat", [expanded, tiled])
@pytest.mark.parametrize("scaled", [False, True])
def test_products_that_are_not_attention(apply: Any, repeat: Callable[..., Any], scaled: bool) -> None:
    """Rows of the heads that share one are below each other."""
    given = q, k, v = inputs()
    every_k = F.mul(repeat(k), 0.5) if scaled else repeat(k)
    found = apply(given, attended(q, every_k, repeat(v), cap=True), fuse_attention, share_heads, **SIZES)
    assert found["MatMul"] == 2
    assert not {"Expand", "Tile"} & found.keys()


@in_one_item()
@pytest.mark.parametrize("cap", [False, True])
def test_rows_below_each_other(apply: Any, cap: bool) -> None:
    """As graphkit writes shared heads itself: attention, or the same products as before."""
    given = q, k, v = inputs()
    scores = F.mul(shared_product(q, F.transpose(F.mul(k, 0.5), perm=(0, 1, 3, 2))), 0.5)
    y = shared_product(F.softmax(F.tanh(scores) if cap else scores, axis=-1), v)
    found = apply(given, y, repeat_heads, fuse_attention, share_heads, **SIZES)
    if cap:
        assert found["MatMul"] == 2
        assert "Expand" not in found
    else:
        assert found == {"FusedAttention": 1}


def test_files_of_older_versions_repeat_nothing() -> None:
    """The expansion of the operator multiplies keys and values without copying them."""
    q, k, v = (gk.input(name, [1, heads, 5, 8]) for name, heads in (("q", 8), ("k", 2), ("v", 2)))
    y, *_ = gk.attention(q, k, v, is_causal=True)
    file = gk.Model({"y": y}).to_onnx(opset=20)
    operators = {node.op_type for node in file.graph.node}
    assert "MatMul" in operators
    assert not {"Attention", "Expand", "Tile"} & operators
    assert gk.verify(gk.load(file)).passed


def test_what_is_no_repetition_of_heads(apply: Any) -> None:
    """One of both alone; heads that come in turn; another axis."""
    q, k, v = given = inputs()
    only = data("N", HEADS, "S", DEPTH, name="only")
    found = apply([q, k, only], attended(q, expanded(k), only), fuse_attention, share_heads, **SIZES)
    assert found["Expand"] == 1
    in_turn = F.tile(k, np.array([1, HEADS // GROUPS, 1, 1]))
    found = apply(given, attended(q, in_turn, expanded(v)), fuse_attention, share_heads, **SIZES)
    assert (found["Tile"], found["Expand"]) == (1, 1)


@in_one_item()
@pytest.mark.parametrize("layers", ["attention", "softcap"])
def test_training(layers: str) -> None:
    """Gradients of shared keys are the sums over the heads of queries that have them."""
    q = gk.input("q", ["N", HEADS, "T", DEPTH])
    k = gk.parameter("k", (2, GROUPS, 5, DEPTH))
    cap = 0.5 if layers == "softcap" else 0.0
    y, *_ = gk.attention(q, k, k, is_causal=layers == "attention", softcap=cap)
    net = gk.Model({"y": y}, seed=3)
    net.params["k"] = np.random.default_rng(0).standard_normal((2, GROUPS, 5, DEPTH)).astype(np.float32)
    grads = gk.grad(net, of="y", wrt=["k", "q"])
    feeds = {"q": np.random.default_rng(1).standard_normal((2, HEADS, 3, DEPTH)).astype(np.float32)}
    names = grads.outputs
    found, plain = grads.compile().run(feeds), grads.compile(optimize=False).run(feeds)
    for name in names:
        np.testing.assert_allclose(found[name], plain[name], rtol=2e-5, atol=1e-6)
    assert "Expand" not in {step.op for step in net.compile().specialise({"q": (2, HEADS, 3, DEPTH)}).steps}
