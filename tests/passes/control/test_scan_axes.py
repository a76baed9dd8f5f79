"""Scans along any axis become scans along the first one, which run natively."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.executor.run.params import ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F
from graphkit.ops.evaluate import evaluate
from graphkit.passes.control.scan_axes import scan_axes


def scanned(axis: int, out_axis: int, backwards: bool = False) -> tuple[Graph, list[np.ndarray]]:
    """h = tanh(h + x_t), scanned over an axis of x; the states are stacked along `out_axis`."""
    state, item = Value(TensorType("float32", (2, 3)), "state"), Value(TensorType("float32", (2, 3)), "item")
    after = F.tanh(F.add(state, item))
    body = Graph([state, item], [after, F.mul(after, 2.0)])
    shape = [2, 3]
    shape.insert(axis % 3, 5)
    h, x = Value(TensorType("float32", (2, 3)), "h"), Value(TensorType("float32", shape), "x")
    attrs: dict[str, Any] = {"scan_input_axes": (axis,), "scan_output_axes": (out_axis,)}
    if backwards:
        attrs |= {"scan_input_directions": (1,), "scan_output_directions": (1,)}
    last, states = F.scan(h, x, body=body, num_scan_inputs=1, **attrs)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in ((2, 3), shape)]
    return Graph([h, x], [last, states]), arrays


@in_one_item()
@pytest.mark.parametrize("backwards", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize("out_axis", [0, 1, 2, -1])
@pytest.mark.parametrize("axis", [0, 1, 2, -2])
def test_every_axis(axis: int, out_axis: int, backwards: bool) -> None:
    graph, arrays = scanned(axis, out_axis, backwards)
    expected = evaluate(graph, arrays)
    after = scan_axes(graph)
    assert [v.type for v in after.outputs] == [v.type for v in graph.outputs]
    for got, want in zip(evaluate(after, arrays), expected, strict=True):
        np.testing.assert_array_equal(got, want)
    exe = Executor(graph, ParamStore({}))
    for got, want in zip(exe(*arrays), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    assert {s.op: s.kernel for s in exe.plan.steps}["Scan"] == "native"


def test_the_first_axis_needs_nothing() -> None:
    graph, _ = scanned(0, 0)
    assert len(scan_axes(graph).nodes) == len(graph.nodes)
