"""Attention in training graphs: its products and softmax with their gradients become two operators, or stay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.autodiff import gradient
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import DType, TensorType
from graphkit.ops import F
from graphkit.ops.evaluate import evaluate
from graphkit.ops.internal.attention_gradient import FusedAttentionGrad, FusedAttentionWithStatistics
from graphkit.passes.cleanup import CLEANUP
from graphkit.passes.core.sweep import all_nodes, run_passes
from graphkit.passes.fuse.attention import fuse_attention
from graphkit.passes.fuse.attention_gradient import fuse_attention_gradient
from graphkit.passes.fuse.softmax import fuse_softmax, fuse_softmax_grad
from graphkit.passes.layout.round_products import round_products
from graphkit.passes.simplify.transpose import eliminate_transpose

HEADS, WIDTH = 2, 3
FUSED = {"FusedAttentionWithStatistics", "FusedAttentionGrad"}
# With the gradient of the softmax as an operator, and as its formula.
PASSES = (*CLEANUP, fuse_softmax, fuse_softmax_grad, eliminate_transpose, fuse_attention, fuse_attention_gradient)
OF_FORMULAS = tuple(step for step in PASSES if step is not fuse_softmax_grad)


def data(*shape: Any, name: str = "x", dtype: str = "float32") -> Value:
    return Value(TensorType(dtype, shape), name)


def split(x: Value) -> Any:
    return F.transpose(F.reshape(x, np.array([0, 0, HEADS, WIDTH])), perm=(0, 2, 1, 3))


def joined(y: Any) -> Any:
    return F.reshape(F.transpose(y, perm=(0, 2, 1, 3)), np.array([0, 0, HEADS * WIDTH]))


def transposed(x: Value) -> Any:
    rank = x.rank or 0
    return F.transpose(x, perm=(*range(rank - 2), rank - 1, rank - 2))


def operands(rows: Any = 4, keys: Any = 5) -> list[Value]:
    return [data(2, n, HEADS * WIDTH, name=name) for name, n in (("q", rows), ("k", keys), ("v", keys))]


def attention(q: Any, k: Any, v: Any, masked: Callable[[Any], Any] = lambda scores: scores) -> Any:
    return F.mat_mul(F.softmax(masked(F.mul(F.mat_mul(q, transposed(k)), 0.5))), v)


def made(
    inputs: Sequence[Value], y: Value, wrt: Sequence[Value] | None = None, *, others: Sequence[Value] = ()
) -> Graph:
    """Return a training graph after the passes, with outputs y and the gradients of sum(y^2). Checks the results."""
    wrt = inputs[:3] if wrt is None else wrt
    loss = F.reduce_sum(F.mul(y, y), keepdims=False)
    graph = Graph(inputs, [y, *gradient([loss], wrt), *others])
    after = run_passes(graph, PASSES)
    of_formulas = run_passes(graph, OF_FORMULAS)
    assert (of_formulas.operators >= FUSED) == (after.operators >= FUSED)
    assert of_formulas.operators.isdisjoint(("SoftmaxGrad",))
    assert after.output_names == graph.output_names
    assert [v.type for v in after.outputs] == [v.type for v in graph.outputs]
    arrays = fed(graph)
    for wanted, found in zip(evaluate(graph, arrays), evaluate(after, arrays), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6)
    return after


def fed(graph: Graph) -> list[np.ndarray]:
    rng = np.random.default_rng(len(graph.nodes))
    sizes = {"N": 2, "T": 4}
    arrays = []
    for value in graph.inputs:
        shape = [d if isinstance(d, int) else sizes[str(d)] for d in value.tensor.known_shape]
        drawn = rng.random(shape) < 0.7 if value.dtype is DType.BOOL else rng.standard_normal(shape)
        arrays.append(np.asarray(drawn, value.dtype.numpy))
    return arrays


def is_fused(graph: Graph) -> bool:
    names = [node.op.name for node in all_nodes(graph)]
    fused = set(names) >= FUSED
    assert fused or not FUSED & set(names)
    assert fused == (not {"Softmax", "SoftmaxGrad"} & set(names))
    return fused


FORMS: list[Callable[[Any, Any, Any], Any]] = [
    attention,
    lambda q, k, v: F.mat_mul(F.softmax(F.mat_mul(q, transposed(k))), v),
    lambda q, k, v: F.mat_mul(F.softmax(F.div(F.mat_mul(q, transposed(k)), 3.0)), v),
    # The factors' own scales stay with them.
    lambda q, k, v: F.mat_mul(F.softmax(F.mat_mul(F.mul(q, 0.5), transposed(F.mul(k, 0.25)))), v),
]


@in_one_item()
@pytest.mark.parametrize("form", FORMS)
def test_forms(form: Any) -> None:
    inputs = operands()
    graph = made(inputs, joined(form(*map(split, inputs))))
    assert is_fused(graph)
    (op,) = (node.op for node in graph.nodes if isinstance(node.op, FusedAttentionGrad))
    assert (op.layout, op.output_layout) == ("NLHD", "NLHD")
    assert "Transpose" not in graph.operators


@in_one_item()
@pytest.mark.parametrize("shape", [(2, 1, 1, 5), (2, 2, 4, 5), (5,)])
@pytest.mark.parametrize("kind", ["added", "kept", "hidden"])
def test_masks(shape: tuple[int, ...], kind: str) -> None:
    inputs = operands()
    mask = data(*shape, name="mask", dtype="float32" if kind == "added" else "bool")
    hidden = np.float32(-1e4)
    ways = {
        "added": lambda scores: F.add(scores, mask),
        "kept": lambda scores: F.where(mask, scores, hidden),
        "hidden": lambda scores: F.where(mask, hidden, scores),
    }
    graph = made([*inputs, mask], joined(attention(*map(split, inputs), ways[kind])))
    assert is_fused(graph)
    (op,) = (node.op for node in graph.nodes if isinstance(node.op, FusedAttentionGrad))
    assert op.mask_value == (-np.inf if kind == "added" else -1e4)


@in_one_item()
@pytest.mark.parametrize("layout", [False, True], ids=["heads first", "heads behind"])
def test_three_axes(layout: bool) -> None:
    q, k, v = inputs = [
        data(*((n, 2) if layout else (2, n)), 3, name=name) for name, n in zip("qkv", (4, 5, 5), strict=True)
    ]
    turned = (F.transpose(x, perm=(1, 0, 2)) if layout else x for x in (q, k, v))
    assert is_fused(made(inputs, attention(*turned)))


def test_four_axes_as_they_are() -> None:
    inputs = [data("N", 2, n, 3, name=name) for name, n in zip("qkv", ("T", 5, 5), strict=True)]
    graph = made(inputs, attention(*inputs))
    assert is_fused(graph)
    assert "Transpose" not in graph.operators


def test_one_value_is_query_and_key() -> None:
    x, v = inputs = [data(2, 2, 5, 3, name=name) for name in ("x", "v")]
    assert is_fused(made(inputs, attention(x, x, v), inputs))


def test_layers_of_attention() -> None:
    """The result of one layer is an operand of the next."""
    inputs = [data(2, 2, 5, 3, name=name) for name in "qkv"]
    q, k, v = inputs
    y = attention(attention(q, k, v), F.tanh(k), attention(k, v, q))
    graph = made(inputs, y)
    assert is_fused(graph)
    assert sum(isinstance(node.op, FusedAttentionGrad) for node in graph.nodes) == 3


def test_a_constant_triangle_is_causal() -> None:
    """As soon as it is constant, in both operators."""
    inputs = operands()
    triangle = np.tri(4, 5, 1, dtype=bool)
    y = joined(attention(*map(split, inputs), lambda s: F.where(triangle, s, np.float32(-1e9))))
    causal = [node.op.causal for node in made(inputs, y).nodes if node.op.name in FUSED]
    assert causal == [True, True]
    q, k, v = (data(1, 1, n, 3, name=name) for name, n in zip("qkv", (4, 5, 5), strict=True))
    result, largest, total = F.fused_attention_with_statistics(q, k, v, triangle, mask_value=-1e9)
    graph = Graph([q, k, v], F.fused_attention_grad(q, k, v, triangle, result, largest, total, result, mask_value=-1e9))
    after = fuse_attention(graph)
    assert all(node.op.causal for node in after.nodes if node.op.name in FUSED)
    for wanted, found in zip(evaluate(graph, fed(graph)), evaluate(after, fed(graph)), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_what_is_left_alone() -> None:
    inputs = operands()
    q, k, v = map(split, inputs)
    mask = data(2, 2, 4, 5, name="mask")
    weights = F.softmax(F.mat_mul(q, transposed(k)))
    dropped = F.mul(weights, F.cast(F.greater(mask, 0.0), to=DType.FLOAT32))
    declined = {
        "a mask with a gradient": ((*inputs, mask), attention(q, k, v, lambda s: F.add(s, mask)), (*inputs, mask), ()),
        "weights that are dropped": ((*inputs, mask), F.mat_mul(dropped, v), inputs, ()),
        "weights that are returned": (inputs, F.mat_mul(weights, v), inputs, (weights,)),
        "no gradient of the values": (inputs, F.mat_mul(weights, v), inputs[:2], ()),
        "no gradient of the keys": (inputs, F.mat_mul(weights, v), [inputs[0], inputs[2]], ()),
    }
    for why, (given, y, wrt, others) in declined.items():
        assert not is_fused(made(given, joined(y), wrt, others=others)), why


def test_a_gradient_that_does_not_read_the_result() -> None:
    """Whether it is fused depends on the order of the graph. The gradients are the same."""
    inputs = operands()
    q, k, v = map(split, inputs)
    dy = data(2, 2, 4, 3, name="dy")
    y = attention(q, k, v)
    for outputs in ([y, *gradient([y], inputs, [dy])], gradient([y], inputs, [dy])):
        graph = Graph([*inputs, dy], outputs)
        after = run_passes(graph, PASSES)
        for wanted, found in zip(evaluate(graph, fed(graph)), evaluate(after, fed(graph)), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6)
    assert not FUSED & after.operators


def test_kinds() -> None:
    q, k, v = inputs = [data(1, 2, 4, 3, name=name, dtype="float16") for name in "qkv"]
    loss = F.reduce_sum(F.tanh(F.mat_mul(F.softmax(F.mat_mul(q, transposed(k))), v)), keepdims=False)
    graph = run_passes(Graph(inputs, gradient([loss], inputs)), PASSES[:-1])
    assert fuse_attention_gradient(graph).operators >= FUSED
    assert not FUSED & fuse_attention_gradient(graph, kinds=[DType.FLOAT32]).operators


def test_bodies_of_loops() -> None:
    """Training inside of a loop's body."""
    q, k, v = inputs = [data(1, 2, 4, 3, name=name) for name in "qkv"]
    loss = F.reduce_sum(F.tanh(attention(q, k, v)), keepdims=False)
    steps = [F.sub(x, F.mul(g, 0.1)) for x, g in zip(inputs, gradient([loss], inputs), strict=True)]
    i, going = data(name="i", dtype="int64"), data(name="going", dtype="bool")
    body = Graph([i, going, *inputs], [F.identity(going), *steps])
    given = [data(1, 2, 4, 3, name=f"{name}0") for name in "qkv"]
    graph = Graph(given, F.loop(np.int64(3), None, *given, body=body))
    after = run_passes(graph, PASSES)
    assert is_fused(after)
    for wanted, found in zip(evaluate(graph, fed(graph)), evaluate(after, fed(graph)), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6)


@in_one_item()
@pytest.mark.parametrize("kind", [DType.FLOAT16, DType.BFLOAT16])
def test_both_operators_are_rounded(kind: DType) -> None:
    """Statistics are float32. The number that replaces hidden scores is the same in both operators."""
    inputs = operands()
    mask = data(2, 1, 1, 5, name="mask", dtype="bool")
    lowest = np.float32(np.finfo(np.float32).min)
    graph = made([*inputs, mask], joined(attention(*map(split, inputs), lambda s: F.where(mask, s, lowest))))
    rounded = run_passes(graph, [round_products.with_options(kind=kind, attention=True), *CLEANUP])
    (forward,) = (node for node in rounded.nodes if isinstance(node.op, FusedAttentionWithStatistics))
    (backward,) = (node for node in rounded.nodes if isinstance(node.op, FusedAttentionGrad))
    assert [v.dtype for v in forward.outputs] == [kind, DType.FLOAT32, DType.FLOAT32]
    assert {v.dtype for v in backward.outputs} == {kind}
    assert forward.op.mask_value == backward.op.mask_value
    assert np.isfinite(float(kind.numpy.type(forward.op.mask_value)))
    # The result goes from one to the other without a cast between.
    assert backward.inputs[:7] == (*forward.inputs, *forward.outputs)
    arrays = fed(graph)
    arrays[3][0] = False
    tolerance = 3e-3 if kind is DType.FLOAT16 else 3e-2
    for wanted, found in zip(evaluate(graph, arrays), evaluate(rounded, arrays), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance * np.abs(wanted).max())


def test_linear(steps: Any) -> None:
    """The work per layer does not depend on the number of layers."""

    def layers(count: int) -> Graph:
        inputs = [data(1, 2, 4, 3, name=name) for name in "qkv"]
        q, k, v = inputs
        for _ in range(count):
            q = F.tanh(attention(q, k, v))
        loss = F.reduce_sum(F.mul(q, q), keepdims=False)
        return run_passes(Graph(inputs, gradient([loss], inputs)), PASSES[:-1])

    few, many = (steps(partial(fuse_attention_gradient, layers(count))) for count in (8, 32))
    assert many < 5 * few
