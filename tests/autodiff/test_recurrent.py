"""Gradients of RNN, GRU and LSTM against numeric differentiation in float64, and in ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.autodiff import gradient
from graphkit.checks.gradcheck import check_graph
from graphkit.checks.samples import Case, make_case, samples_of
from graphkit.checks.verify import compare_outputs
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import DType, TensorType
from graphkit.onnx_io.compare import OnnxRuntimeModel
from graphkit.onnx_io.exporter import export
from graphkit.ops import F
from graphkit.ops.evaluate import evaluate
from graphkit.ops.rnn.layers import GRU, LSTM, RNN

CASES = [make_case(cls, n, DType.FLOAT64) for cls in (RNN, GRU, LSTM) for n in range(len(samples_of(cls)))]


def floats(graph: Graph) -> list[Value]:
    return [v for v in graph.inputs if v.dtype.is_float]


@in_one_item()
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_every_sample(case: Case) -> None:
    graph = case.graph()
    wrt = {graph.name_of(v): v for v in floats(graph)}
    report = check_graph(graph.inputs, graph.outputs, wrt, case.feeds(), directions=2)
    assert report.passed, str(report)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
@pytest.mark.parametrize("output", [0, 1])
def test_of_one_output(case: Case, output: int) -> None:
    graph = case.graph()
    wrt = {graph.name_of(v): v for v in floats(graph)}
    report = check_graph(graph.inputs, graph.outputs[output : output + 1], wrt, case.feeds(), directions=2)
    assert report.passed, str(report)


FUNCTIONS = {
    "Relu": (),
    "Tanh": (),
    "Sigmoid": (),
    "Affine": (0.5, 0.25),
    "LeakyRelu": (-0.25,),
    "ThresholdedRelu": (0.5,),
    "ScaledTanh": (1.5, 0.5),
    "HardSigmoid": (0.25, 0.375),
    "Elu": (0.75,),
    "Softsign": (),
    "Softplus": (),
}


@in_one_item()
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("clip", [None, 0.75])
def test_every_function(function: str, clip: float | None) -> None:
    attributes = dict(zip(("activation_alpha", "activation_beta"), ((p,) for p in FUNCTIONS[function]), strict=False))
    shapes = ((3, 2, 4), (1, 5, 4), (1, 5, 5))
    operands = [Value(TensorType("float64", shape), name) for shape, name in zip(shapes, "xwr", strict=True)]
    y, _ = F.rnn(*operands, activations=(function,), clip=clip, **attributes)
    rng = np.random.default_rng(3)
    report = check_graph(
        operands, [y], {v.name: v for v in operands}, [rng.standard_normal(v.tensor.static_shape) for v in operands],
        directions=2,
    )  # fmt: skip
    assert report.passed, str(report)


@in_one_item()
@pytest.mark.parametrize("kind", ["rnn", "gru", "lstm"])
def test_the_gradient_graph_runs_in_onnx_runtime(kind: str) -> None:
    gates = {"rnn": 1, "gru": 3, "lstm": 4}[kind]
    shapes = {"x": (4, 3, 2), "w": (2, gates * 5, 2), "r": (2, gates * 5, 5), "b": (2, gates * 10)}
    operands = [Value(TensorType("float32", shape), name) for name, shape in shapes.items()]
    lengths = np.array([3, 1, 4], np.int32)
    y = getattr(F, kind)(*operands, lengths, direction="bidirectional")[0]
    graph = Graph(operands, gradient([y], operands))
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    results = OnnxRuntimeModel(export(graph, {}), threads=1).run(feeds)
    expected = dict(zip(results, evaluate(graph, list(feeds.values())), strict=True))
    for difference in compare_outputs(results, expected):
        assert difference.passed, str(difference)


def test_second_order() -> None:
    operands = [
        Value(TensorType("float64", shape), n) for n, shape in (("x", (4, 3, 2)), ("w", (1, 5, 2)), ("r", (1, 5, 5)))
    ]
    first = gradient([F.rnn(*operands)[0]], operands)
    arrays = [np.random.default_rng(3).standard_normal(v.shape) for v in operands]
    report = check_graph(operands, first, {v.name: v for v in operands}, arrays, directions=3, rtol=1e-5, atol=1e-6)
    assert report.passed, str(report)
