"""Deep graphs: no function recurses along a chain. bench/scaling.py measures times."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graphkit.autodiff import gradient
from graphkit.ir import serialize
from graphkit.ir.graph import Graph, Value
from graphkit.ir.printing import to_dot, to_text
from graphkit.ir.types import TensorType
from graphkit.ops import F, registry
from graphkit.ops.evaluate import evaluate
from graphkit.passes.core.bind import bind
from graphkit.passes.simplify.cse import cse
from graphkit.passes.simplify.fold import fold


@pytest.mark.parametrize("length", [5_000, pytest.param(40_000, marks=pytest.mark.full)])
@pytest.mark.long
def test_a_long_chain(tmp_path: Path, length: int) -> None:
    x = Value(TensorType("float64", ("N",)), "x")
    y = x
    for number in range(length):
        y = F.neg(y) if number % 2 else F.add(y, x)
    graph = Graph([x], [y], name="chain")
    assert len(graph.nodes) == length

    text = to_text(graph)
    assert text.count("\n") == length + 3
    assert to_dot(graph).count("->") >= length

    path = tmp_path / "chain.json"
    serialize.save(path, graph, {})
    again, _, _ = serialize.load(path, registry.get)
    assert to_text(again) == text

    (dx,) = gradient(graph.outputs, graph.inputs)
    bound = bind(graph, {"x": (2,)})
    assert bound.outputs[0].shape == (2,)
    assert len(cse(fold(bound)).nodes) <= length

    array = np.array([1.0, -2.0])
    (value,) = evaluate(graph, [array])
    assert value.shape == (2,)
    # The chain is linear, so that its slope is its value per unit of x.
    np.testing.assert_allclose(evaluate(Graph([x], [dx]), [array])[0] * array, value)


def test_many_inputs_and_outputs(tmp_path: Path) -> None:
    values = [Value(TensorType("float32", ()), "x") for _ in range(3_000)]
    graph = Graph(values, [F.sum(*values), *values])
    assert len(set(graph.input_names)) == 3_000
    serialize.save(tmp_path / "wide.json", graph, {})
    again, _, _ = serialize.load(tmp_path / "wide.json", registry.get)
    assert to_text(again) == to_text(graph)
