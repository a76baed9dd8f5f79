"""A loss and its gradient as one operator."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.autodiff import gradient
from graphkit.executor.run.params import ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F
from graphkit.ops.evaluate import evaluate
from graphkit.passes.fuse.loss_grad import fuse_loss_grad


def training(shape: tuple[int, ...] = (6, 5), log_prob: bool = False, dtype: str = "float32", **options: Any) -> Graph:
    scores, labels = Value(TensorType(dtype, shape), "scores"), Value(TensorType("int64", (shape[0], *shape[2:])), "y")
    loss, logs = F.softmax_cross_entropy_loss(scores, labels, **options)
    total = F.reduce_sum(loss, keepdims=False) if options.get("reduction") == "none" else loss
    outputs = [loss, *gradient([total], [scores]), *([F.exp(logs)] if log_prob else [])]
    return Graph([scores, labels], outputs, output_names=["loss", "dscores", "p"][: len(outputs)])


def names(graph: Graph) -> Counter[str]:
    return Counter(node.op.name for node in graph.nodes)


@in_one_item()
@pytest.mark.parametrize("options", [{}, {"reduction": "sum"}, {"ignore_index": -1}, {"ignore_index": 2}])
@pytest.mark.parametrize("shape", [(6, 5), (1, 3), (40, 1000), (3, 40000)])
@pytest.mark.parametrize("threads", [1, 2])
def test_values_are_those_of_the_two(options: dict[str, Any], shape: tuple[int, ...], threads: int) -> None:
    graph = training(shape, **options)
    assert names(fuse_loss_grad(graph))["SoftmaxCrossEntropyWithGrad"] == 1
    ex = Executor(graph, ParamStore({}), threads=threads)
    assert "SoftmaxCrossEntropyWithGrad" in names(ex._graph)
    rng = np.random.default_rng(0)
    feeds = {"scores": (rng.standard_normal(shape) * 20).astype(np.float32), "y": rng.integers(0, shape[1], shape[0])}
    if options.get("ignore_index") == -1:
        feeds["y"][0] = -1
    found = ex.run(feeds)
    assert not ex.plan.fallbacks
    double = training(shape, dtype="float64", **options)
    with np.errstate(invalid="ignore"):
        loss, dscores = evaluate(double, [feeds["scores"].astype(np.float64), feeds["y"]])
    np.testing.assert_allclose(found["loss"], loss, rtol=2e-6, atol=1e-6)
    np.testing.assert_allclose(found["dscores"], dscores, rtol=1e-5, atol=1e-7)


def test_probabilities_that_vanish_have_a_finite_loss() -> None:
    ex = Executor(training((2, 3)), ParamStore({}))
    found = ex.run({"scores": np.array([[0, 300, 0], [500, 0, 0]], np.float32), "y": np.array([0, 0])})
    assert found["loss"] == 150
    np.testing.assert_array_equal(found["dscores"], np.array([[-0.5, 0.5, 0], [0, 0, 0]], np.float32))


@in_one_item()
@pytest.mark.parametrize(
    "graph", [training((2, 4, 3)), training(reduction="none"), training(log_prob=True)], ids=["pixels", "none", "read"]
)
def test_others_stay(graph: Graph) -> None:
    assert names(fuse_loss_grad(graph)) == names(graph)


def test_a_gradient_that_is_computed_stays() -> None:
    """It may depend on the loss."""
    scores, labels = Value(TensorType("float32", (6, 5)), "scores"), Value(TensorType("int64", (6,)), "y")
    loss, _ = F.softmax_cross_entropy_loss(scores, labels)
    squared = F.mul(loss, loss)
    graph = Graph([scores, labels], [squared, *gradient([squared], [scores])])
    assert names(fuse_loss_grad(graph)) == names(graph)


def test_training_takes_it() -> None:
    trainer = gk.Trainer(gk.models.build("mlp", inputs=4, hidden=(8,), classes=3), threads=1)
    loss = float(trainer.step(np.ones((2, 4), np.float32), np.array([0, 1])))
    assert np.isfinite(loss)
    assert "SoftmaxCrossEntropyWithGrad" in names(trainer.executor._graph)
