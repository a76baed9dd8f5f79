"""BatchNormalization in training mode as means and products, compared with onnx's evaluator."""

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

import graphkit as gk
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.onnx_io.exporter import export
from graphkit.ops import F
from graphkit.ops.evaluate import evaluate
from graphkit.passes.training.standard_batch_norm import standard_batch_norm
from graphkit.passes.training.to_training import to_training


def batch_norm(shape, dtype="float32", **options):
    x = Value(TensorType(dtype, ["N", *shape]), "x")
    vectors = [Value(TensorType("float32", (shape[0],)), n) for n in ("scale", "b", "mean", "var")]
    outputs = F.batch_normalization(x, *vectors, training_mode=True, **options)
    return Graph([x, *vectors], outputs, output_names=["y", "running_mean", "running_var"])


@pytest.mark.parametrize("shape", [(3,), pytest.param((3, 5), marks=pytest.mark.full), (3, 2, 4)])
def test_results_are_those_of_the_standard(shape):
    graph = batch_norm(shape, momentum=0.75, epsilon=1e-3)
    plain = standard_batch_norm(graph)
    assert "BatchNormalization" not in plain.operators
    rng = np.random.default_rng(0)
    feeds = [rng.standard_normal((6, *shape), np.float32) + 3, *(rng.random(3, np.float32) + 0.5 for _ in range(4))]
    reference = ReferenceEvaluator(export(graph, {}))
    wanted = reference.run(None, dict(zip(graph.input_names, feeds, strict=True)))
    for found, expected in zip(evaluate(plain, feeds), wanted, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_sums_of_float16_are_computed_in_float32():
    plain = standard_batch_norm(batch_norm((3, 40), "float16"))
    x = np.full((20, 3, 40), 300, np.float16)
    y, mean, _ = evaluate(plain, [x, *(np.ones(3, np.float32) for _ in range(4))])
    assert y.dtype == np.float16
    np.testing.assert_allclose(y, 1)
    np.testing.assert_allclose(mean, 0.9 + 30)


def test_inference_mode_is_kept():
    inputs = batch_norm((3,)).inputs
    graph = Graph(inputs, [F.batch_normalization(*inputs)])
    assert standard_batch_norm(graph) is graph


def test_branches_are_included():
    x = gk.input("x", ["N", 3])
    net = gk.Model(gk.cond(F.greater(F.reduce_sum(x, keepdims=False), np.float32(0)), _normalised, gk.tanh, x), seed=0)
    graph = standard_batch_norm(to_training(net.graph))
    branches = [inner for node in graph.nodes for inner in node.op.subgraphs().values()]
    assert len(branches) == 2
    assert not any("BatchNormalization" in inner.operators for inner in branches)
    assert any("ReduceMean" in inner.operators for inner in branches)


def _normalised(x):
    return gk.nn.batch_norm(x, name="bn")
