"""A recurrent layer and the recurrence that its gradient reads become one."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.autodiff import gradient
from graphkit.executor.devices.loading import load_device
from graphkit.executor.devices.registry import runs_whole
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F
from graphkit.ops.evaluate import evaluate
from graphkit.passes.cleanup import CLEANUP
from graphkit.passes.control.merge_recurrences import merge_recurrences
from graphkit.passes.core.sweep import run_passes
from graphkit.passes.simplify.composites import expand_composites

SHAPES = {"x": (3, 2, 4), "w": (1, 20, 4), "r": (1, 20, 5)}


def whole(node: Node) -> bool:
    return node.op.name.endswith(("Recurrence", "RecurrenceGrad"))


def names(graph: Graph) -> Counter[str]:
    return Counter(node.op.name for node in graph.nodes)


def operands() -> list[Value]:
    return [Value(TensorType("float32", shape), name) for name, shape in SHAPES.items()]


def merged(graph: Graph) -> Graph:
    return merge_recurrences(expand_composites(run_passes(graph, CLEANUP), whole))


@in_one_item()
@pytest.mark.parametrize("absent", [0, 2])
def test_a_layer_takes_the_results_of_its_recurrence(absent: int) -> None:
    values = operands()
    y, h, c = F.lstm(*values, *[None] * absent)
    graph = Graph(values, [y, h, c, *gradient([F.mul(y, y), c], values)])
    result = merged(graph)
    assert names(result)["LSTMRecurrence"] == names(result)["LSTMRecurrenceGrad"] == 1
    assert names(result)["LSTM"] == 0
    rng = np.random.default_rng(0)
    feeds = [rng.standard_normal(shape).astype(np.float32) for shape in SHAPES.values()]
    for ours, expected in zip(evaluate(result, feeds), evaluate(graph, feeds), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


def test_other_layers_stay() -> None:
    x, w, r = values = operands()
    y = F.lstm(x, w, r)[0]
    others = F.lstm(x, w, r, clip=0.5)[0], F.lstm(F.neg(x), w, r)[0]
    result = merged(Graph(values, [*others, *gradient([y], values)]))
    assert names(result)["LSTM"] == 2
    assert names(result)["LSTMRecurrence"] == 1


def test_without_gradients_nothing_changes() -> None:
    values = operands()
    graph = Graph(values, [F.lstm(*values)[0]])
    assert merge_recurrences(graph) is graph


def test_what_has_a_kernel_of_its_own() -> None:
    load_device("cpu")
    for dtype, expected in (("float32", True), ("float64", False)):
        x, w, r = (Value(TensorType(dtype, shape), name) for name, shape in SHAPES.items())
        made = [
            node
            for node in Graph([x, w, r], list(F.lstm_recurrence(x, w, r))).nodes
            if node.op.name == "LSTMRecurrence"
        ]
        assert [runs_whole("cpu", node) for node in made] == [expected]
