"""Networks with NaN and infinities in inputs and weights, compared with ONNX Runtime; and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.ops.evaluate import evaluate

ACTIVATIONS: dict[str, Any] = {
    "relu": gk.relu,
    "clip": lambda x: gk.clip(x, np.float32(-1), np.float32(1)),
    "relu6": lambda x: gk.clip(x, np.float32(0), np.float32(6)),
    "leaky_relu": gk.leaky_relu,
    "elu": gk.elu,
    "selu": gk.selu,
    "hard_sigmoid": gk.hard_sigmoid,
    "hard_swish": gk.hard_swish,
    "sigmoid": gk.sigmoid,
    "tanh": gk.tanh,
    "softplus": gk.softplus,
    "gelu": gk.gelu,
    "silu": lambda x: x * gk.sigmoid(x),
    "relu of relu": lambda x: gk.relu(gk.relu(x)),
    "clip of relu": lambda x: gk.clip(gk.relu(x), np.float32(0), np.float32(2)),
    "max": lambda x: gk.max(x, np.float32(0)),
    "min": lambda x: gk.min(x, np.float32(1)),
    "times zero": lambda x: x * 0.0,
    "minus itself": lambda x: x - x,
}
# With NaN operands, ONNX Runtime returns numbers for some elements of these functions.
NUMBERS_IN_ONNX_RUNTIME = {"hard_sigmoid", "max", "min"}


def perceptron(name: str, loss: bool = False) -> gk.Model:
    x = gk.input("x", ["N", 12])
    h = ACTIVATIONS[name](gk.nn.linear(x, 33, name="first"))
    y = gk.nn.linear(h, 5, name="last")
    return gk.Model({"loss": gk.reduce_sum(y * y, keepdims=False)} if loss else {"y": y})


def image_network(name: str, loss: bool = False) -> gk.Model:
    """Convolutions, dense and depthwise, a residual, pooling."""
    act = ACTIVATIONS[name]
    x = gk.input("x", ["N", 3, 12, 12])
    h = act(gk.nn.conv2d(x, 16, kernel=3, pad=1, name="first"))
    inner = act(gk.nn.conv2d(h, 16, kernel=3, pad=1, groups=16, name="depthwise"))
    h = act(gk.nn.conv2d(inner, 16, kernel=1, name="point") + h)
    y = gk.nn.linear(gk.reduce_mean(h, np.array([2, 3]), keepdims=False), 5, name="last")
    return gk.Model({"loss": gk.reduce_sum(y * y, keepdims=False)} if loss else {"map": h, "y": y})


def spoiled(net: gk.Model, where: str, value: float) -> np.ndarray:
    """Write the value into a parameter of the network, or into the input. Return the input."""
    shape = [3 if not isinstance(d, int) else d for d in net.input_types["x"].shape]
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    if where == "x":
        x.reshape(-1)[[5, -1]] = value
    else:
        weights = np.array(net.params[where])
        weights.reshape(-1)[[0, weights.size // 2]] = value
        net.params[where] = weights
    return x


@in_one_item("pairs")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["x", "first_weight", "first_bias"])
@pytest.mark.parametrize("name", [n for n in ACTIVATIONS if n not in NUMBERS_IN_ONNX_RUNTIME])
def test_perceptron_beside_onnx_runtime(name: str, where: str, value: float) -> None:
    net = perceptron(name)
    x = spoiled(net, where, value)
    report = gk.verify(net, {"x": x}, threads=1)
    assert report.verdict != "FAILED", str(report)  # "NOT TESTED" if all values are NaN in both
    if np.isnan(value):
        assert np.isnan(net.compile(threads=1).run({"x": x})["y"]).any()


@in_one_item("pairs")
@pytest.mark.parametrize("network", [perceptron, image_network])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["x", "first_bias"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_network_beside_its_reference(name: str, where: str, value: float, network: Any) -> None:
    net = network(name)
    x = spoiled(net, where, value)
    with np.errstate(all="ignore"):
        expected = evaluate(net.graph, [x, *(net.params[n] for n in net.graph.input_names[1:])])
    for threads in (1, 2):
        for optimize in (True, False):
            results = net.compile(threads=threads, optimize=optimize).run({"x": x})
            for got, wanted in zip(results.values(), expected, strict=True):
                np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=2e-5)


@in_one_item("values")
@pytest.mark.parametrize("network", [perceptron, image_network])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gradients(name: str, network: Any) -> None:
    """A NaN in a bias makes the loss and the gradients of all layers NaN, in native and interpreted programs."""
    net = network(name, loss=True)
    x = spoiled(net, "first_bias", np.nan)
    gradient = gk.grad(net, of="loss", wrt=["first_weight", "first_bias", "last_weight"])
    values = {**{n: net.params[n] for n in net.params}, "x": x}
    given = [values.get(n, np.ones((), np.float32)) for n in gradient.graph.input_names]
    with np.errstate(all="ignore"):
        expected = evaluate(gradient.graph, given)
    results = gradient.compile(threads=1).run(dict(zip(gradient.graph.input_names, given, strict=True)))
    for got, wanted in zip(results.values(), expected, strict=True):
        np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
        assert np.isnan(got).any()


ZOO: dict[str, dict[str, Any]] = {
    "resnet": dict(layers=18, image=(3, 32, 32), classes=7),
    "mobilenetv2": dict(image=(3, 32, 32), classes=7),
    "mlp": dict(),
}


@pytest.mark.full
@in_one_item("values")
@pytest.mark.parametrize("where", ["input", "weight"])
@pytest.mark.parametrize("name", ZOO)
def test_zoo_beside_onnx_runtime(name: str, where: str) -> None:
    net = gk.models.build(name, **ZOO[name])
    (value,) = net.inputs
    shape = [2 if not isinstance(d, int) else d for d in net.input_types[value].shape]
    x = np.random.default_rng(0).random(shape, np.float32)
    if where == "input":
        x.reshape(-1)[7] = np.nan
    else:
        first = next(n for n in net.params if n.endswith("weight"))
        weights = np.array(net.params[first])
        weights.reshape(-1)[0] = np.nan
        net.params[first] = weights
    report = gk.verify(net, {value: x}, threads=1)
    assert report.verdict != "FAILED", str(report)  # "NOT TESTED" if all values are NaN in both
    assert all(np.isnan(y).any() for y in net.compile(threads=1).run({value: x}).values())
