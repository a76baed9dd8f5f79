"""An operator of the user's own, with a gradient written in Python, from definition to ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphkit as gk
from graphkit.checks.gradcheck import check_gradient
from graphkit.errors import MissingGradient, UnsupportedOperator, UsageError
from graphkit.ir.graph import Node
from graphkit.ops import F, registry


@pytest.fixture
def swish() -> Iterator[type[gk.Op]]:
    @gk.op
    class ScaledSwish(gk.Op):
        """scale * x * sigmoid(beta * x), elementwise. x: float tensor of any shape; the result has its type."""

        beta: float = 1.0
        domain = "com.example"
        inputs = ("x", "scale")
        samples = (gk.Sample((2, 3), ()), gk.Sample((2, 3), (), beta=0.5))

        def infer(self, x: gk.TensorType, scale: gk.TensorType) -> gk.TensorType:
            return gk.TensorType(x.dtype, x.shape)

        def reference(self, xp: Any, x: Any, scale: Any) -> Any:
            return scale * x / (1 + xp.exp(-self.beta * x))

        def grad(self, node: Node, dy: Any) -> Any:
            x, scale = node.inputs
            gate = F.sigmoid(F.mul(x, self.beta))
            slope = gate + x * gate * (1.0 - gate) * self.beta
            return dy * scale * slope, F.reduce_sum(dy * x * gate, keepdims=False)

        def expand(self, x: Any, scale: Any) -> Any:
            return x * F.sigmoid(F.mul(x, self.beta)) * scale

    yield ScaledSwish
    registry.remove(ScaledSwish)


def network() -> gk.Model:
    x = gk.input("x", ["N", 3])
    y = gk.scaled_swish(gk.nn.linear(x, 4, name="fc"), gk.parameter("scale", (), init=1.5), beta=0.5, name="swish")
    return gk.Model({"y": y}, name="custom", seed=0)


X = np.float32([[0.5, -1.0, 2.0], [1.0, 0.0, -0.5]])


def test_runs(swish: type[gk.Op]) -> None:
    net = network()
    h = X @ net.params["fc_weight"].T + net.params["fc_bias"]
    expected = 1.5 * h / (1 + np.exp(-0.5 * h))
    np.testing.assert_allclose(net.run({"x": X})["y"], expected, rtol=1e-5)


def test_gradient(swish: type[gk.Op]) -> None:
    report = check_gradient(network(), {"x": X})
    assert report.passed, str(report)
    assert {e.name for e in report.entries} == {"x", "fc_weight", "fc_bias", "scale"}


def test_gradient_model(swish: type[gk.Op]) -> None:
    gradients = gk.grad(network(), wrt=["scale"]).run({"x": X})
    assert gradients["scale_grad"].shape == ()


def test_json(swish: type[gk.Op], tmp_path: Path) -> None:
    net = network()
    net.save(tmp_path / "net.json")
    again = gk.load(tmp_path / "net.json")
    np.testing.assert_array_equal(again.run({"x": X})["y"], net.run({"x": X})["y"])


def test_json_needs_the_operator(swish: type[gk.Op], tmp_path: Path) -> None:
    network().save(tmp_path / "net.json")
    registry.remove(swish)
    try:
        with pytest.raises(UnsupportedOperator, match=r"com.example.ScaledSwish \(node 'swish'\); import the module"):
            gk.load(tmp_path / "net.json")
    finally:
        registry.add(swish)


def test_export_and_verify(swish: type[gk.Op]) -> None:
    """The export holds the expansion: standard operators only, so that ONNX Runtime runs it."""
    net = network()
    proto = net.to_onnx()
    assert {node.domain for node in proto.graph.node} <= {"", "ai.onnx"}
    report = gk.verify(net, {"x": X})
    assert report.passed, str(report)


def test_without_gradient_or_expansion() -> None:
    @gk.op
    class Opaque(gk.Op):
        """x."""

        domain = "com.example"
        inputs = ("x",)

        def infer(self, x: gk.TensorType) -> gk.TensorType:
            return x

        def reference(self, xp: Any, x: Any) -> Any:
            return x

    try:
        x = gk.input("x", [2])
        net = gk.Model(gk.opaque(x, name="box"))
        np.testing.assert_array_equal(net.run({"x": X[0, :2]})[net.outputs[0]], X[0, :2])
        with pytest.raises(MissingGradient, match=r"com\.example\.Opaque: node 'box'"):
            gk.grad(net, wrt=["x"])
        with pytest.raises(Exception, match="Opaque"):
            net.to_onnx()
    finally:
        registry.remove(Opaque)


def test_an_attribute_may_have_the_name_of_a_parameter() -> None:
    @gk.op
    class Shifted(gk.Op):
        """x + cls."""

        cls: int = 0
        domain = "com.example"
        inputs = ("x",)

        def infer(self, x: gk.TensorType) -> gk.TensorType:
            return x

        def reference(self, xp: Any, x: Any) -> Any:
            return x + xp.asarray(self.cls, x.dtype)

    try:
        net = gk.Model(gk.shifted(gk.input("x", [2]), cls=3))
        np.testing.assert_array_equal(net.run({"x": X[0, :2]})[net.outputs[0]], X[0, :2] + 3)
    finally:
        registry.remove(Shifted)


def test_a_name_is_registered_once(swish: type[gk.Op]) -> None:
    with pytest.raises(UsageError, match="registered already"):
        gk.op(type("ScaledSwish", (gk.Op,), {"domain": "com.example"}))
