"""Random nodes as standard operators: ONNX Runtime draws the numbers of graphkit."""

import numpy as np
import onnx
import pytest

from graphkit.errors import UnsupportedError
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.onnx_io.compare import OnnxRuntimeModel
from graphkit.onnx_io.exporter import export
from graphkit.ops import F
from graphkit.ops.evaluate import evaluate
from graphkit.passes.training.randomness import bind_rng
from graphkit.passes.training.standard_random import standard_random


def graph_of(make):
    x = Value(TensorType("float32", ["N", 5]), "x")
    outputs = make(x)
    return bind_rng(Graph([x], outputs.values(), output_names=outputs))


def dropouts(x):
    always, mask = F.dropout(x, np.float32(0.3), np.asarray(True))
    half, _ = F.dropout(F.cast(x, to="float16"), None, np.asarray(True))
    everything, _ = F.dropout(x, np.float32(1), np.asarray(True))
    mode = F.greater(F.reduce_sum(x, keepdims=False), np.float32(0))
    sometimes, kept = F.dropout(x, np.float32(0.3), mode)
    return {"always": always, "mask": mask, "half": half, "all": everything, "sometimes": sometimes, "kept": kept}


def numbers(x):
    return {
        "uniform": F.random_uniform(shape=(3, 7), low=-2.0, high=5.0),
        "uniform64": F.random_uniform(shape=(3,), dtype="float64"),
        "normal": F.random_normal(shape=(5,), mean=1.0, scale=2.0),
        "normal64": F.random_normal(shape=(4,), dtype="float64"),
        "like": F.random_uniform_like(x),
        "half": F.random_normal_like(x, dtype="float16"),
        "bernoulli": F.bernoulli(F.sigmoid(x)),
        "multinomial": F.multinomial(x, sample_size=6),
        "nothing": F.random_uniform(shape=(0, 3)),
        "scalar": F.random_normal(shape=()),
    }


@pytest.mark.parametrize(("make", "state", "rows"), [
    (dropouts, [2**64 - 1, 2**33 + 5], 7),
    *(pytest.param(make, state, rows, marks=pytest.mark.full)
      for make, state, rows in [(dropouts, [3, 0], 0), (numbers, [3, 0], 7), (numbers, [2**64 - 1, 2**33 + 5], 0)]),
])  # fmt: skip
def test_runtime_draws_the_same_numbers(make, state, rows):
    graph = graph_of(make)
    feeds = {"x": np.random.default_rng(0).standard_normal((rows, 5)).astype(np.float32) + 0.5,
             "rng": np.array(state, np.uint64)}  # fmt: skip
    proto = export(standard_random(graph), {}, opset=18)
    assert {n.op_type for n in proto.graph.node}.isdisjoint({"Dropout", "RandomUniform", "RandomNormal", "Bernoulli"})
    onnx.checker.check_model(proto)
    theirs = OnnxRuntimeModel(proto, threads=1).run(feeds)
    ours = dict(zip(graph.output_names, evaluate(graph, [feeds["x"], feeds["rng"]]), strict=True))
    for name, array in ours.items():
        assert theirs[name].dtype == array.dtype
        np.testing.assert_allclose(
            theirs[name].astype(np.float64), array.astype(np.float64), rtol=1e-12 if "64" in name else 1e-6,
            err_msg=name,
        )  # fmt: skip


@pytest.mark.full
def test_iterations_of_loops_draw_different_numbers():
    def body():
        number, going = (Value(TensorType(t, ()), n) for t, n in (("int64", "i"), ("bool", "c")))
        state = Value(TensorType("float32", ()), "s")
        drawn = F.random_uniform(shape=())
        return Graph([number, going, state], [F.identity(going), F.add(state, drawn), drawn])

    x = Value(TensorType("float32", ()), "x")
    total, drawn = F.loop(np.asarray(4), None, x, body=body())
    graph = bind_rng(Graph([x], [total, drawn], output_names=["total", "drawn"]))
    feeds = {"x": np.zeros((), np.float32), "rng": np.array([5, 9], np.uint64)}
    theirs = OnnxRuntimeModel(export(standard_random(graph), {}), threads=1).run(feeds)
    ours = evaluate(graph, list(feeds.values()))
    np.testing.assert_allclose(theirs["drawn"], ours[1])
    assert len(set(theirs["drawn"].tolist())) == 4


def test_a_node_with_a_seed_of_its_own_is_an_error():
    graph = graph_of(lambda x: {"y": F.dropout(x, None, np.asarray(True), seed=5)[0]})
    with pytest.raises(UnsupportedError, match="seed of its own"):
        standard_random(graph)
