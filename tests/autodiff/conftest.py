"""The check that tests of control flow share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from graphkit.autodiff import gradient
from graphkit.checks.gradcheck import check_graph
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.onnx_io.compare import OnnxRuntimeModel
from graphkit.onnx_io.exporter import export
from graphkit.ops.evaluate import evaluate
from graphkit.passes.control.merge import merge_control


@pytest.fixture
def check() -> Callable[..., None]:
    return _check


def _check(inputs: Sequence[Value], outputs: Any, arrays: Sequence[Any], second: bool = True) -> None:
    """First and second order against numeric differentiation, and the gradient graph in ONNX Runtime."""
    rng = np.random.default_rng(11)
    outputs = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
    wrt = {v.name: v for v in inputs if v.dtype.is_float}
    report = check_graph(inputs, outputs, wrt, arrays, directions=2)
    assert report.passed, str(report)
    seeds = [Value(TensorType(y.dtype, y.shape), f"seed_{i}") for i, y in enumerate(outputs)]
    gradients = gradient(outputs, list(wrt.values()), seeds, allow_unused=True)
    weights = [rng.standard_normal(np.shape(y)) for y in evaluate(Graph(inputs, outputs), arrays)]
    everything, feeds = [*inputs, *seeds], [*arrays, *weights]
    if second:
        again = {v.name: v for v in [*wrt.values(), *seeds]}
        report = check_graph(everything, gradients, again, feeds, directions=2, together=True, rtol=1e-5, atol=1e-6)
        assert report.passed, str(report)
    _in_onnx_runtime(everything, [*outputs, *gradients], feeds)


def _in_onnx_runtime(inputs: Sequence[Value], outputs: Sequence[Value], feeds: Sequence[Any]) -> None:
    graph = merge_control(Graph(inputs, outputs))
    expected = evaluate(Graph(inputs, outputs), feeds)
    named = {graph.name_of(v): np.asarray(a) for v, a in zip(graph.inputs, feeds, strict=True)}
    got = OnnxRuntimeModel(export(graph, {}), threads=1).run(named)
    values = list(got.values()) if isinstance(got, dict) else list(got)
    for ours, theirs in zip(expected, values, strict=True):
        np.testing.assert_allclose(theirs, ours, rtol=1e-9, atol=1e-11)
