"""Batch normalisation in training is fused with sums and activations, and its gradient with their gradients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.autodiff import gradient
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F
from graphkit.ops.evaluate import evaluate
from graphkit.passes.cleanup import CLEANUP
from graphkit.passes.core.sweep import operators, run_passes
from graphkit.passes.fuse.batch_norm import fuse_batch_norm
from graphkit.passes.layout.channels_last import channels_last
from graphkit.passes.simplify.identities import simplify

rng = np.random.default_rng(0)


def weights(*shape: int) -> Value:
    made: Value = F.constant(value=rng.standard_normal(shape).astype(np.float32))
    return made


def norm(h: Any, channels: int = 6) -> Value:
    ones = F.constant(value=np.ones(channels, np.float32))
    made: Value = F.batch_normalization(h, weights(channels), weights(channels), ones, ones, training_mode=True)[0]
    return made


def conv(h: Any, channels: int = 6, kernel: int = 3) -> Value:
    made: Value = F.conv(h, weights(channels, h.shape[1], kernel, kernel), pads=(kernel // 2,) * 4)
    return made


def relu6(h: Any) -> Value:
    made: Value = F.clip(h, np.float32(0), np.float32(6))
    return made


def block(h: Any) -> Value:
    inner = F.relu(norm(conv(h)))
    made: Value = F.relu(F.add(norm(conv(inner)), h))
    return made


def branching(h: Any) -> Value:
    made: Value = F.relu(F.add(norm(conv(F.relu(norm(conv(h))))), norm(conv(h, 6, 1))))
    return made


NETWORKS: dict[str, tuple[Callable[[Any], Any], set[str]]] = {
    # what follows the first convolution, and the operators that must not be left
    "relu": (lambda h: conv(F.relu(norm(h))), {"Relu", "Where", "LessOrEqual"}),
    "limits": (lambda h: conv(relu6(norm(h))), {"Clip", "Where", "Greater", "Less", "Or"}),
    "residual blocks": (lambda h: conv(block(block(h))), {"Relu", "Where", "LessOrEqual", "Add"}),
    "two normalised branches": (lambda h: conv(branching(branching(h))), {"Relu", "Where", "LessOrEqual", "Add"}),
    "linear blocks": (lambda h: conv(F.add(norm(conv(relu6(norm(h)))), h)), {"Clip", "Where", "Add"}),
    "mean": (lambda h: F.reduce_mean(block(h), np.array([2, 3]), keepdims=True), {"Relu", "LessOrEqual"}),
    "twice the same scale": (lambda h: conv(F.relu(norm(F.tanh(norm(h))))), {"Relu", "Where"}),
}


def before_and_after(build: Callable[[Any], Any]) -> tuple[Graph, Graph]:
    x = Value(TensorType("float32", (2, 3, 6, 5)), "x")
    w = Value(TensorType("float32", (6, 3, 1, 1)), "w")
    h = F.conv(x, w)
    y = build(h)
    loss = F.reduce_sum_square(y if not isinstance(y, tuple) else y[0], keepdims=False)
    outputs = [loss, *gradient([loss], [w, x])]
    if isinstance(y, tuple):
        outputs += y[1:]
    graph = run_passes(Graph([x, w], outputs), [*CLEANUP, simplify, channels_last])
    return graph, run_passes(graph, [*CLEANUP, fuse_batch_norm, *CLEANUP])


def check_equal(before: Graph, after: Graph) -> None:
    arrays = [rng.standard_normal(v.tensor.static_shape).astype(np.float32) for v in before.inputs]
    for got, want in zip(evaluate(after, arrays), evaluate(before, arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * max(1.0, float(np.abs(want).max())))


@in_one_item()
@pytest.mark.parametrize("name", NETWORKS)
def test_training_graphs(name: str) -> None:
    build, gone = NETWORKS[name]
    before, after = before_and_after(build)
    check_equal(before, after)
    left = operators(after)
    assert not gone & set(left), left
    assert left["ChannelsLastBatchNorm"] == operators(before)["ChannelsLastBatchNorm"]


def fused(graph: Graph) -> list[Any]:
    return [node.op for node in graph.nodes if node.op.name == "ChannelsLastBatchNorm"]


def test_a_residual_that_comes_later_stays_outside() -> None:
    def build(h: Any) -> Any:
        y = norm(h)
        return conv(F.relu(F.add(y, F.tanh(F.neg(h)))))

    before, after = before_and_after(build)
    check_equal(before, after)
    place = {node.op.name: i for i, node in enumerate(before.nodes)}
    absorbed = place["Tanh"] < place["ChannelsLastBatchNorm"]
    assert fused(after)[0].activation == ("Relu" if absorbed else "")


@in_one_item()
@pytest.mark.parametrize(
    "build",
    [
        lambda h: (lambda y: (conv(F.relu(y)), y))(norm(h)),
        lambda h: (lambda y: conv(F.add(F.relu(y), F.tanh(y))))(norm(h)),
        lambda h: (lambda y: conv(F.add(relu6(y), F.tanh(y))))(norm(h)),
        lambda h: (lambda y: (conv(relu6(y)), F.less(y, np.float32(0))))(norm(h)),
        lambda h: conv(F.relu(F.add(norm(h), weights(6, 1, 1)))),
        lambda h: conv(F.clip(norm(h), np.float32(0))),
        lambda h: conv(F.leaky_relu(norm(h))),
    ],
    ids=["output", "second reader", "of limits", "limits as output", "broadcast residual", "one limit", "leaky"],
)
def test_what_others_read_is_not_absorbed(build: Callable[[Any], Any]) -> None:
    before, after = before_and_after(build)
    check_equal(before, after)
    assert all(op.activation == "" for op in fused(after))


def test_a_masked_gradient_that_others_read() -> None:
    before, after = before_and_after(lambda h: conv(block(F.tanh(h))))
    check_equal(before, after)
    node, _ = [n for n in after.nodes if n.op.name == "ChannelsLastBatchNormGrad"]
    assert readers(after, node)[3] == 1


def readers(graph: Graph, node: Node) -> list[int]:
    counts = Counter(v for n in graph.nodes for v in n.inputs if v is not None)
    return [counts[v] for v in node.outputs]


def test_inference_is_left_alone() -> None:
    x = Value(TensorType("float32", ("N", 3, 5, 5)), "x")
    graph = Graph([x], [F.relu(F.conv(x, weights(4, 3, 1, 1)))])
    assert fuse_batch_norm(graph) is graph
