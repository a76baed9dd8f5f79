"""Half floats are float32 inside: results are rounded where somebody sees them, as ONNX Runtime does it."""

from __future__ import annotations

import numpy as np
import pytest
from cases import each_case
from combinations import in_one_item

import graphkit as gk
from graphkit.checks.rounding import in_double_precision
from graphkit.checks.samples import dtypes_of, make_case, samples_of
from graphkit.checks.verify import compare_outputs
from graphkit.executor.run.params import ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir.types import DType
from graphkit.onnx_io.compare import OnnxRuntimeModel
from graphkit.ops import F, registry
from graphkit.ops.evaluate import evaluate
from graphkit.passes.layout.float16 import HALVES, widen_halves

AXES = np.array([1])


def convolutions(x):
    for name in "abc":
        x = gk.relu(gk.nn.conv2d(x, 8, kernel=3, pad=1, name=name))
    return x


def residual(x):
    for i in range(4):
        x = x + gk.relu(gk.nn.conv2d(x, 8, kernel=3, pad=1, name=f"c{i}"))
    return gk.reduce_mean(x, np.array([2, 3]))


def attention(x):
    q, k, v = (gk.nn.linear(x, 32, name=name) for name in "qkv")
    return gk.softmax(q @ gk.transpose(k, perm=(1, 0)), axis=-1) @ v


def pooled(x):
    return gk.average_pool(gk.max_pool(convolutions(x), kernel_shape=(2, 2))[0], kernel_shape=(2, 2))


def moved(x):
    """Operators that only move data keep elements unrounded."""
    parts = gk.concat(gk.relu(x) * 1.75, gk.sigmoid(x) * 0.375, axis=1)
    return gk.transpose(gk.reshape(parts, np.array([-1, 8])), perm=(1, 0)) @ gk.reshape(x * x, np.array([-1, 4]))[::-1]


IMAGE, ROWS = (2, 8, 9, 9), (16, 32)
CASES = {
    "convolutions": (convolutions, IMAGE),
    "residual": (residual, IMAGE),
    "pooled": (pooled, IMAGE),
    "attention": (attention, ROWS),
    "pointwise": (lambda x: gk.tanh(gk.exp(x * 0.5) + x * x - gk.sigmoid(x)) * gk.sqrt(gk.abs(x) + 1.0), ROWS),
    "sums": (lambda x: gk.reduce_sum(x * x, AXES) + gk.reduce_sum(gk.exp(x), AXES) - gk.reduce_mean(x, AXES), ROWS),
    "norm": (lambda x: gk.nn.linear(gk.nn.layer_norm(gk.nn.linear(x, 32, name="l"), name="n"), 8, name="o"), ROWS),
    "resize": (lambda x: gk.resize(convolutions(x), None, None, np.array([2, 8, 12, 12]), mode="linear"), IMAGE),
    "moved": (moved, ROWS),
}


def made(name, dtype="float16"):
    build, shape = CASES[name]
    x = gk.input("x", shape, dtype=dtype)
    net = gk.Model({"y": build(x)}, seed=1)
    values = np.random.default_rng(3).standard_normal(shape).astype(x.dtype.numpy)
    return net, {"x": values}


def error(array, truth):
    return abs(array.astype(np.float64) - truth).max()


@pytest.mark.onednn
@in_one_item()
@pytest.mark.parametrize("name", CASES)
def test_no_further_from_double_precision_than_onnx_runtime(name):
    net, feeds = made(name)
    truth = in_double_precision(net, feeds)["y"]
    executor = net.compile()
    found, other = executor.run(feeds)["y"], OnnxRuntimeModel(net.to_onnx()).run(feeds)["y"]
    assert found.dtype == np.float16
    # Half a last digit of the largest element: the one rounding at the end, which a tie may send either way.
    step = np.spacing(np.float16(abs(truth).max())) / 2
    assert error(found, truth) <= max(1.1 * error(other, truth), 1.02 * step)
    assert executor.plan.fallbacks == ()


@in_one_item()
@pytest.mark.parametrize("name", CASES)
def test_the_result_is_that_of_float32_rounded_once(name):
    """The graph is the same as one that was float32 from the start."""
    net, feeds = made(name)
    build, shape = CASES[name]
    wide = gk.Model({"y": build(gk.input("x", shape))}, seed=1)
    for key, array in net.params.items():
        wide.params[key] = array.astype(np.float32)
    expected = wide.run({"x": feeds["x"].astype(np.float32)})["y"].astype(np.float16)
    np.testing.assert_array_equal(net.run(feeds)["y"], expected)


@in_one_item()
@pytest.mark.parametrize("name", ["convolutions", "attention", "sums"])
def test_bfloat16(name):
    net, feeds = made(name, "bfloat16")
    truth = in_double_precision(net, feeds)["y"]
    found = net.run(feeds)["y"]
    assert str(found.dtype) == "bfloat16"
    assert error(found, truth) <= 0.02 * abs(truth).max()
    widened = widen_halves(net.graph)
    computing = [n for n in widened.nodes if n.op.name in ("Conv", "Gemm", "MatMul", "Relu", "ReduceSum")]
    assert {v.dtype for n in computing for v in n.outputs} == {DType.FLOAT32}


def test_what_the_file_rounds_is_rounded():
    """A Cast in the file is intended: its rounding is kept."""
    x = gk.input("x", [1000])
    net = gk.Model({"y": gk.cast(gk.cast(gk.exp(x), to="float16"), to="float32") * 3.0})
    values = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    expected = np.float32(3) * np.exp(values).astype(np.float16).astype(np.float32)
    # Apart from ties that another last digit of float32 sends the other way.
    assert (net.run({"x": values})["y"] == expected).mean() > 0.99


def test_movement_alone_stays_in_half_precision():
    x = gk.input("x", [4, 6], dtype="float16")
    graph = gk.Model({"y": gk.transpose(gk.concat(x, x, axis=1), perm=(1, 0))}).graph
    assert {v.dtype for v in widen_halves(graph).values} == {DType.FLOAT16}


def test_graphs_without_halves_are_left_alone():
    graph = gk.models.build("mlp").graph
    assert widen_halves(graph) is graph


HALF_SAMPLES = [
    make_case(cls, number, "float16")
    for cls in registry
    for number, sample in enumerate(samples_of(cls))
    if DType.FLOAT16 in dtypes_of(cls, sample) and not cls.random
]


@each_case(enumerate(HALF_SAMPLES), group=lambda c: "all", name=lambda c: c[1].name, full=lambda c: c[0] % 5 > 0)
def test_operators_give_what_their_references_give(numbered):
    _, case = numbered
    graph = case.graph()
    executor = Executor(graph, ParamStore({}), threads=1)
    found = executor.run(dict(zip(graph.input_names, case.feeds(), strict=True)))
    for report in compare_outputs(found, dict(zip(found, evaluate(graph, case.feeds()), strict=True))):
        assert report.passed, str(report)


def test_chosen_types_alone_are_widened():
    x = gk.input("x", [4], dtype="bfloat16")
    graph = gk.Model({"y": gk.exp(x)}).graph
    assert widen_halves(graph, HALVES - {DType.BFLOAT16}) is graph


def test_types_and_names_at_the_borders_stay():
    net, feeds = made("residual")
    executor = net.compile()
    assert executor.outputs == net.outputs
    assert executor.run(feeds)["y"].dtype == np.float16
    widened = widen_halves(net.graph)
    assert [v.type for v in widened.outputs] == [v.type for v in net.graph.outputs]
    assert [v.type for v in widened.inputs] == [v.type for v in net.graph.inputs]
    assert widened.output_names == net.graph.output_names


def test_carried_values_are_rounded_in_every_iteration():
    """The body of a loop declares the type of its state."""
    x = gk.input("x", [8], dtype="float16")

    def body(state):
        i, total = state
        return i + 1, total + gk.exp(total * 0.01) / 3.0

    zero = gk.constant(value=np.int64(0))
    _, total = gk.while_loop(lambda state: state[0] < 20, body, (zero, x))
    net = gk.Model({"y": total})
    feeds = {"x": np.linspace(0, 1, 8).astype(np.float16)}
    found = net.run(feeds)["y"]
    assert found.dtype == np.float16
    assert error(found, in_double_precision(net, feeds)["y"]) < 0.05


@pytest.mark.onednn
def test_gradients_in_half_precision():
    net, feeds = made("residual")
    gradient = gk.grad(net, of="y", wrt=["x", "c0_weight"])
    truth = in_double_precision(gradient, feeds)
    executor = gradient.compile()
    for name, array in executor.run(feeds).items():
        assert array.dtype == np.float16
        assert error(array, truth[name]) <= 1.02 * np.spacing(np.float16(abs(truth[name]).max())) / 2
    assert executor.plan.fallbacks == ()


def test_training_in_half_precision():
    x = gk.input("x", ["N", 16], dtype="float16")
    net = gk.Model({"y": gk.nn.linear(gk.relu(gk.nn.linear(x, 32, name="a")), 1, name="b")}, seed=0)
    trainer = gk.Trainer(net, "mse", gk.optim.SGD(0.05))
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((64, 16)).astype(np.float16)
    targets = inputs[:, :1] * np.float16(0.5)
    losses = [float(trainer.step(inputs, targets)) for _ in range(60)]
    assert losses[-1] < 0.3 * losses[0]
    assert {v.dtype for v in net.params.values()} == {np.dtype(np.float16)}


@pytest.mark.parametrize(("reduction", "computes"), [("none", False), ("add", True)])
def test_scattered_elements_are_rounded_only_if_they_are_combined(reduction, computes):
    x, updates = gk.input("x", [5, 3], dtype="float16"), gk.input("u", [2, 3], dtype="float16")
    places = np.array([[3], [0]])
    y = F.scatter_nd(x, places, updates, reduction=reduction)
    z = F.scatter_elements(x, np.array([[1, 0, 2]]), F.slice(updates, *map(np.array, ([0], [1]))), reduction=reduction)
    graph = widen_halves(gk.Model({"y": y, "z": z}).graph)
    assert any(node.op.name == "Cast" for node in graph.nodes) == computes
