"""GELU, layer normalisation, softmax and activations from the nodes that exporters write for them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F
from graphkit.passes.fuse.activation import fuse_activation
from graphkit.passes.fuse.gelu import fuse_gelu
from graphkit.passes.fuse.layer_norm import fuse_layer_norm
from graphkit.passes.fuse.recognise import recognise
from graphkit.passes.fuse.softmax import fuse_softmax, fuse_softmax_grad


def data(*shape: Any, name: str = "x") -> Value:
    return Value(TensorType("float32", shape), name)


def parameter(*shape: int, name: str = "w") -> Value:
    return Value(TensorType("float32", shape), name, role="parameter")


K, C = math.sqrt(2.0 / math.pi), 0.044715
ROOT = math.sqrt(2.0)


@in_one_item()
@pytest.mark.parametrize(
    "gelu",
    [
        lambda x: F.mul(F.mul(x, F.add(F.erf(F.div(x, ROOT)), 1.0)), 0.5),
        lambda x: F.mul(x, F.mul(0.5 * np.ones((), np.float32), F.add(1.0 * np.ones((), np.float32), F.erf(x / ROOT)))),
        lambda x: F.mul(F.mul(x, 0.5), F.add(F.erf(F.mul(x, 1.0 / ROOT)), 1.0)),
        lambda x: F.mul(x, F.add(F.mul(F.erf(F.div(x, ROOT)), 0.5), 0.5)),
        lambda x: F.div(F.mul(F.add(F.erf(F.div(x, ROOT)), 1.0), x), 2.0),
        lambda x: F.mul(F.mul(0.5, x), F.sum(np.ones((), np.float32), F.erf(F.div(x, ROOT)))),
    ],
)
def test_gelu(apply: Any, gelu: Callable[[Any], Value]) -> None:
    x, b = data("N", 3), parameter(3)
    assert apply([x, b], gelu(x + b), fuse_gelu, N=4) == {"Add": 1, "Gelu": 1}


@in_one_item()
@pytest.mark.parametrize(
    "gelu",
    [
        lambda x: 0.5 * x * (1.0 + F.tanh(K * (x + C * F.pow(x, np.float32(3.0))))),
        lambda x: x * (0.5 * (1.0 + F.tanh(K * (x + C * (x * x * x))))),
        lambda x: 0.5 * x * (1.0 + F.tanh(x * K * (1.0 + C * x * x))),
        lambda x: x * 0.5 * (F.tanh((x + F.pow(x, np.float32(3.0)) * C) * K) + 1.0),
        lambda x: x * 0.5 * F.sum(F.tanh(F.sum(x, F.pow(x, np.float32(3.0)) * C) * K), np.ones((), np.float32)),
    ],
)
def test_gelu_with_tanh(apply: Any, gelu: Callable[[Any], Value]) -> None:
    x, b = data("N", 3), parameter(3)
    kept: list[Graph] = []
    assert apply([x, b], gelu(x + b), fuse_gelu, N=4, keep=kept) == {"Add": 1, "Gelu": 1}
    assert kept[0].nodes[-1].op.approximate == "tanh"


def test_formulas_that_are_not_gelu(apply: Any) -> None:
    x = data("N", 3)
    for y in (
        x * (F.erf(x / 1.5) + 1.0) * 0.5,
        x * (F.erf(x / ROOT) + 1.0),
        x * (F.erf(x / ROOT) - 1.0) * 0.5,
        0.5 * x * (1.0 + F.tanh(K * (x + 0.05 * x * x * x))),
    ):
        assert apply([x], y, fuse_gelu, N=4)["Gelu"] == 0
    curve = F.erf(x / ROOT)
    assert apply([x], [x * (curve + 1.0) * 0.5, curve], fuse_gelu, N=4)["Gelu"] == 0


def rms_norm(x: Any, axes: tuple[int, ...], form: str, epsilon: float = 1e-5) -> Any:
    square = x * x if form == "square" else F.pow(x, np.float32(2.0))
    mean_square = F.reduce_mean(square, np.array(axes, np.int64)) + epsilon
    if form == "reciprocal":
        return x * F.reciprocal(F.sqrt(mean_square))
    if form == "power":
        return x * F.pow(mean_square, np.float32(-0.5))
    if form == "quotient":
        return x * F.div(np.float32(1.0), F.sqrt(mean_square))
    return x / F.sqrt(mean_square)


def layer_norm(x: Any, axes: tuple[int, ...], form: str, epsilon: float = 1e-5) -> Any:
    return rms_norm(x - F.reduce_mean(x, np.array(axes, np.int64)), axes, form, epsilon)


FORMS = ["divide", "square", "reciprocal", "power", "quotient"]


@in_one_item()
@pytest.mark.parametrize("form", FORMS)
def test_rms_norm(apply: Any, form: str) -> None:
    x, w = data("N", "T", 6), parameter(6)
    kept: list[Graph] = []
    y = F.mul(w, rms_norm(x, (-1,), form))
    # Unlike that of a layer normalisation, the operand is also read elsewhere.
    assert apply([x, w], [F.add(x, y), x], fuse_layer_norm, N=2, T=3, keep=kept) == {"RMSNormalization": 1, "Add": 1}
    norm = next(node for node in kept[0].nodes if node.op.name == "RMSNormalization")
    assert norm.op.epsilon == pytest.approx(1e-5)
    assert norm.inputs[1].name == w.name
    assert apply([x], rms_norm(x, (-1,), form), fuse_layer_norm, N=2, T=3) == {"RMSNormalization": 1}


def test_rms_norm_over_several_axes(apply: Any) -> None:
    x, w, v = data("N", 4, 6), parameter(4, 6), parameter(4, 1, name="v")
    assert apply([x, w], rms_norm(x, (1, 2), "divide") * w, fuse_layer_norm, N=2) == {"RMSNormalization": 1}
    found = apply([x, v], rms_norm(x, (1, 2), "divide") * v, fuse_layer_norm, N=2)
    assert found == {"RMSNormalization": 1, "Mul": 1}


def test_formulas_that_are_not_rms_norms(apply: Any) -> None:
    x, z, named = data("N", 4, 6), data("N", 4, 6, name="z"), data("N", "C")
    along = np.array([2])
    root = F.sqrt(F.reduce_mean(x * x, along) + 1e-5)
    inverse = F.reciprocal(root)
    for inputs, outputs in (
        ([x], rms_norm(x, (1,), "divide")),
        ([named], rms_norm(named, (1,), "divide")),
        ([x, z], z / root),
        ([x], F.mul(x, root)),
        ([x], x / F.sqrt(F.reduce_sum(x * x, along) + 1e-5)),
        ([x], x / (root + 1.0)),
        # A gradient reads the root, too.
        ([x], [x / root, root]),
        ([x], [x * inverse, inverse]),
        ([x], [x * inverse, root]),
    ):
        assert apply(inputs, outputs, fuse_layer_norm, N=2, C=3)["RMSNormalization"] == 0


@in_one_item()
@pytest.mark.parametrize("form", FORMS)
def test_layer_norm(apply: Any, form: str) -> None:
    x, w, b = data("N", "T", 6), parameter(6), parameter(6, name="b")
    kept: list[Graph] = []
    y = F.add(b, F.mul(layer_norm(x, (-1,), form), w))
    assert apply([x, w, b], y, fuse_layer_norm, N=2, T=3, keep=kept) == {"LayerNormalization": 1}
    assert kept[0].nodes[-1].op.epsilon == pytest.approx(1e-5)
    assert len(kept[0].nodes[-1].inputs) == 3
    assert apply([x], layer_norm(x, (-1,), form), fuse_layer_norm, N=2, T=3) == {"LayerNormalization": 1}


def test_layer_norm_over_several_axes(apply: Any) -> None:
    x, w = data("N", 4, 6), parameter(4, 6)
    assert apply([x, w], layer_norm(x, (1, 2), "divide") * w, fuse_layer_norm, N=2) == {"LayerNormalization": 1}
    # A factor of another shape stays behind it.
    v = parameter(4, 1)
    found = apply([x, v], layer_norm(x, (1, 2), "divide") * v, fuse_layer_norm, N=2)
    assert found == {"LayerNormalization": 1, "Mul": 1}


def test_what_is_no_layer_norm(apply: Any) -> None:
    x = data("N", 4, 6)
    assert apply([x], layer_norm(x, (1,), "divide"), fuse_layer_norm, N=2)["LayerNormalization"] == 0
    named = data("N", "C")
    assert apply([named], layer_norm(named, (1,), "divide"), fuse_layer_norm, N=2, C=3)["LayerNormalization"] == 0
    mean = F.reduce_mean(x, np.array([2]))
    centred = x - mean
    y = centred / F.sqrt(F.reduce_mean(centred * centred, np.array([2])) + 1e-5)
    assert apply([x], [y, mean], fuse_layer_norm, N=2)["LayerNormalization"] == 0
    assert apply([x], [y, centred], fuse_layer_norm, N=2)["LayerNormalization"] == 0


def softmax(x: Any, axis: int) -> Any:
    along = np.array([axis], np.int64)
    raised = F.exp(x - F.reduce_max(x, along))
    return raised / F.reduce_sum(raised, along)


def test_softmax(apply: Any) -> None:
    x = data("N", 4, 6)
    for axis in (0, 1, -1):
        assert apply([x], softmax(x, axis), fuse_softmax, N=2) == {"Softmax": 1}
    assert apply([x], F.log(softmax(x, 1)), fuse_softmax, N=2) == {"LogSoftmax": 1}
    y = F.softmax(x)
    assert apply([x], [F.log(y), y], fuse_softmax, N=2) == {"Softmax": 1, "Log": 1}
    raised = F.exp(x)
    assert apply([x], raised / F.reduce_sum(raised, np.array([1])), fuse_softmax, N=2)["Softmax"] == 0


def test_gradients_of_softmax(apply: Any) -> None:
    x, dy = data("N", 4, 6), data("N", 4, 6)
    for axis in (0, 1, -1):
        for op in (F.softmax, F.log_softmax):
            y = op(x, axis=axis)
            gradient = y.node.op.grad(y.node, dy)
            left = {op.__name__.title().replace("_", ""): 1, "SoftmaxGrad": 1}
            assert apply([x, dy], [gradient, y], fuse_softmax_grad, N=2) == left
    along = np.array([1])
    weighted = dy * x
    total = F.reduce_sum(weighted, along)
    assert apply([x, dy], [weighted - x * total, total], fuse_softmax_grad, N=2)["SoftmaxGrad"] == 0
    assert apply([x, dy], x * total - weighted, fuse_softmax_grad, N=2)["SoftmaxGrad"] == 0
    assert apply([x, dy], weighted - dy * total, fuse_softmax_grad, N=2)["SoftmaxGrad"] == 1  # it is symmetric
    both = F.reduce_sum(weighted, np.array([0, 1]))
    assert apply([x, dy], weighted - x * both, fuse_softmax_grad, N=2)["SoftmaxGrad"] == 0
    row = data("N", 1, 6)
    assert apply([x, row], row - F.exp(x) * F.reduce_sum(row, along), fuse_softmax_grad, N=2)["SoftmaxGrad"] == 0


@in_one_item()
@pytest.mark.parametrize(
    ("build", "left"),
    [
        (lambda x: x * F.sigmoid(x), ["Swish"]),
        (lambda x: F.sigmoid(x * 1.702) * x, ["Swish"]),
        (lambda x: x * F.tanh(F.softplus(x)), ["Mish"]),
        (lambda x: x * F.clip(x + 3.0, np.float32(0), np.float32(6)) / 6.0, ["HardSwish"]),
        (lambda x: x * (F.clip(x + 3.0, np.float32(0), np.float32(6)) / 6.0), ["HardSwish"]),
        (lambda x: (x / 6.0) * F.clip(x + 3.0, np.float32(0), np.float32(6)), ["HardSwish"]),
        (lambda x: x * F.hard_sigmoid(x, alpha=1 / 6, beta=0.5), ["HardSwish"]),
        (lambda x: F.clip(x + 3.0, np.float32(0), np.float32(6)) * (1.0 / 6.0), ["HardSigmoid"]),
        (lambda x: F.clip(x + 2.0, np.float32(0), np.float32(4)) / 4.0, ["HardSigmoid"]),
        (lambda x: F.max(x, np.float32(0)), ["Clip"]),
        (lambda x: F.min(F.max(x, np.float32(-1)), np.float32(1)), ["Clip"]),
        (lambda x: F.clip(x, np.float32(0)), ["Relu"]),
        (lambda x: F.clip(F.relu(x), np.float32(0), np.float32(6)), ["Clip"]),
        # Not these.
        (lambda x: x * F.sigmoid(x + 1.0), ["Add", "Mul", "Sigmoid"]),
        (lambda x: x * F.hard_sigmoid(x), ["HardSigmoid", "Mul"]),
        (lambda x: x * F.clip(x + 2.0, np.float32(0), np.float32(6)) / 6.0, ["Add", "Clip", "Div", "Mul"]),
        (lambda x: F.clip(x + 3.0, np.float32(1), np.float32(6)) / 6.0, ["Add", "Clip", "Div"]),
        (lambda x: F.clip(F.relu(x), np.float32(-1), np.float32(6)), ["Clip", "Relu"]),
    ],
)
def test_activation(apply: Any, build: Callable[[Any], Value], left: list[str]) -> None:
    x = data("N", 7)
    assert sorted(apply([x], build(x), fuse_activation, N=5).elements()) == left


def test_an_activation_whose_parts_are_read_stays(apply: Any) -> None:
    x = data("N", 7)
    s = F.sigmoid(x)
    assert apply([x], [x * s, s], fuse_activation, N=5) == {"Sigmoid": 1, "Mul": 1}


def test_bounds_that_are_to_stay_stay(apply: Any) -> None:
    x = data("N", 7)
    formulas = fuse_activation.with_options(bounds=False)
    assert apply([x], F.max(x, np.float32(0)), formulas, N=5) == {"Max": 1}
    assert apply([x], F.clip(x, np.float32(0)), formulas, N=5) == {"Clip": 1}
    assert apply([x], x * F.clip(x + 3.0, np.float32(0), np.float32(6)) / 6.0, formulas, N=5) == {"HardSwish": 1}


@pytest.mark.parametrize("nested", [False, True])
def test_recognition_keeps_markers_of_gradients(nested: bool) -> None:
    """Graphs are recognised before they are differentiated, so the markers must still be there."""

    def marked(x: Value) -> Value:
        return F.straight_through(F.stop_gradient(F.sigmoid(F.identity(x))), F.round(x))

    x, flag = data(3), Value(TensorType("bool", ()), "flag")
    if nested:
        inner = [Value(TensorType("float32", (3,))) for _ in range(2)]
        y = F.if_(flag, x, then_branch=Graph(inner[:1], [marked(inner[0])]), else_branch=Graph(inner[1:], [inner[1]]))
    else:
        y = marked(x)
    found = recognise(Graph([x, flag], [y]))
    kept = found if not nested else next(iter(found.nodes[0].op.subgraphs().values()))
    assert [node.op.name for node in kept.nodes if node.op.domain] == ["StopGradient", "StraightThrough"]
    assert not any(node.op.name == "Identity" for node in kept.nodes)
