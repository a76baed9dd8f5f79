"""Operands of unknown rank get the rank that a convolution or a recurrent layer needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphkit as gk
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import TensorType
from graphkit.model import Model
from graphkit.ops import F
from graphkit.ops.evaluate import evaluate
from graphkit.passes.layout.channels_last import channels_last
from graphkit.passes.simplify.known_ranks import known_ranks

RNG = np.random.default_rng(3)


def weight(name: str, *shape: int) -> Value:
    return Value(TensorType("float32", shape), name)


def lstm(x: Any, w: Value, r: Value) -> Any:
    return F.lstm(x, w, r, hidden_size=5)[0]


def gru(x: Any, w: Value, r: Value) -> Any:
    return F.gru(x, w, r, hidden_size=5)[0]


def conv(x: Any, w: Value) -> Any:
    return F.relu(F.conv(x, w, strides=(2,)))


def conv_transpose(x: Any, w: Value) -> Any:
    return F.conv_transpose(x, w)


WEIGHTS: dict[Any, list[tuple[int, ...]]] = {
    lstm: [(1, 20, 3), (1, 20, 5)],
    gru: [(1, 15, 3), (1, 15, 5)],
    conv: [(4, 3, 2)],
    conv_transpose: [(3, 4, 2)],
}
LAYERS = pytest.mark.parametrize("layer", WEIGHTS, ids=lambda f: f.__name__)


def gradient_in_a_branch(layer: Callable[..., Any]) -> tuple[gk.Model, dict[str, np.ndarray]]:
    """The gradient of a layer in the branch of an If, on an operand of unknown rank."""
    p, x = Value(TensorType("bool", ()), "p"), Value(TensorType("float32", None), "x")
    weights = [weight(name, *shape) for name, shape in zip("wr", WEIGHTS[layer], strict=False)]

    def one() -> Any:
        return F.reduce_sum(F.sin(layer(F.mul(x, 2.0), *weights)), keepdims=False)

    y = gk.cond(p, one, lambda: F.reduce_sum(x, keepdims=False))
    arrays = {v.name: RNG.standard_normal(v.tensor.static_shape).astype(np.float32) for v in weights}
    arrays |= {"x": RNG.standard_normal((4, 3, 3)).astype(np.float32), "p": np.array(True)}
    model = Model.from_graph(Graph([p, x, *weights], [y], name="net", output_names=["y"]), {})
    return gk.grad(model, of="y", wrt=["x", *(v.name for v in weights)]), arrays


def lowest(graph: Graph) -> list[Node]:
    return [n for node in graph.nodes for n in ([node] + [i for g in node.op.subgraphs().values() for i in lowest(g)])]


@LAYERS
def test_gradients_are_native_and_run_in_onnx_runtime(layer: Callable[[Any], Any], monkeypatch: Any) -> None:
    import onnxruntime

    model, arrays = gradient_in_a_branch(layer)
    fed = [arrays[n] for n in model.inputs]
    expected = evaluate(model.graph, fed)
    monkeypatch.setenv("GRAPHKIT_STRICT", "1")
    got = model.compile(threads=1).run(arrays)
    for y, want in zip(got.values(), expected, strict=True):
        np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-5)
    session = onnxruntime.InferenceSession(model.to_onnx().SerializeToString(), providers=["CPUExecutionProvider"])
    for y, want in zip(session.run(None, arrays), expected, strict=True):
        np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-5)


@LAYERS
def test_every_operand_has_its_rank(layer: Callable[[Any], Any]) -> None:
    model, _ = gradient_in_a_branch(layer)
    after = known_ranks(model.graph)
    for node in lowest(after):
        ranks = node.op.operand_ranks(*(None if v is None else v.type for v in node.inputs))  # type: ignore[union-attr]
        assert all(v is None or v.rank == rank for v, rank in zip(node.inputs, ranks, strict=False) if rank is not None)
    assert known_ranks(after) is after


def test_a_value_is_reshaped_once() -> None:
    x = Value(TensorType("float32", None), "x")
    w = weight("w", 4, 3, 2)
    graph = known_ranks(Graph([x, w], [F.conv(x, w), F.conv(x, w, strides=(2,))]))
    assert sum(n.op.name == "Reshape" for n in graph.nodes) == 1


def test_channels_stay_where_ranks_are_unknown() -> None:
    x, w = Value(TensorType("float32", None), "x"), weight("w", 4, 3, 2)
    dy = Value(TensorType("float32", ("N", 4, "T")), "dy")
    graph = Graph([dy, w, x], [F.conv_grad_input(dy, w, x)])
    assert [n.op.name for n in channels_last(graph).nodes] == ["ConvGradInput"]
