"""The operator Gradient in files: differentiated values, evaluation points, and higher orders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from combinations import in_one_item
from onnx import TensorProto, helper

import graphkit as gk
from graphkit.errors import InvalidModel, MissingGradient, UnsupportedError
from graphkit.onnx_io import gradient
from graphkit.onnx_io.importer import import_model
from graphkit.onnx_io.outline import outline

DOMAIN = "ai.onnx.preview.training"
RNG = np.random.default_rng(0)


def node(kind: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> onnx.NodeProto:
    domain = DOMAIN if kind == "Gradient" else ""
    return helper.make_node(kind, inputs, outputs, domain=domain, **attributes)


def file(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, Sequence[int]],
    outputs: Sequence[str],
    *,
    kind: int = TensorProto.DOUBLE,
    initializers: Sequence[onnx.TensorProto] = (),
    functions: Sequence[onnx.FunctionProto] = (),
) -> bytes:
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info(name, kind, shape) for name, shape in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        list(initializers),
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, opset_imports=imports, functions=list(functions)).SerializeToString()


def draw(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape)


def test_in_some_of_the_variables_and_in_an_intermediate_one() -> None:
    """Gradients of y = (x w)^2 z in w and z, and in h = x w and z. The file exports to standard operators."""
    chain = [node("MatMul", ["x", "w"], ["h"]), node("Mul", ["h", "h"], ["s"]), node("Mul", ["s", "z"], ["y"])]
    ends = [
        node("Gradient", ["w", "z", "x"], ["dw", "dz"], xs=["w", "z"], zs=["x"], y="y"),
        node("Gradient", ["h", "z"], ["dh", ""], xs=["h", "z"], y="y"),
    ]
    net = gk.load(file(chain + ends, {"x": [2, 3], "w": [3, 2], "z": [2, 2]}, ["y", "dw", "dz", "dh"]))
    feeds = {"x": draw(2, 3), "w": draw(3, 2), "z": draw(2, 2)}
    h = feeds["x"] @ feeds["w"]
    dh = 2 * h * feeds["z"]
    results = net.run(feeds)
    np.testing.assert_allclose(results["dw"], feeds["x"].T @ dh)
    np.testing.assert_allclose(results["dz"], h**2)
    np.testing.assert_allclose(results["dh"], dh)
    assert {n.domain for n in net.to_onnx().graph.node} == {""}
    assert gk.verify(net, inputs=feeds).passed


def test_at_other_values_than_those_of_the_graph() -> None:
    """The derivative of y in h at another h. The nodes that compute h do not matter."""
    nodes = [
        node("Mul", ["x", "x"], ["h"]),
        node("Mul", ["h", "z"], ["y"]),
        node("Gradient", ["other", "z"], ["dh", "dz"], xs=["h", "z"], y="y"),
    ]
    net = gk.load(file(nodes, {"x": [2], "z": [2], "other": [2]}, ["y", "dh", "dz"]))
    feeds = {"x": draw(2), "z": draw(2), "other": draw(2)}
    results = net.run(feeds)
    np.testing.assert_allclose(results["dh"], feeds["z"])
    np.testing.assert_allclose(results["dz"], feeds["other"])
    np.testing.assert_allclose(results["y"], feeds["x"] ** 2 * feeds["z"])


def test_variables_are_independent_although_one_is_made_from_another() -> None:
    """y = h x with h = x^2: in x the derivative is h, not 3 x^2."""
    nodes = [
        node("Mul", ["x", "x"], ["h"]),
        node("Mul", ["h", "x"], ["y"]),
        node("Gradient", ["x", "h"], ["dx", "dh"], xs=["x", "h"], y="y"),
    ]
    feeds = {"x": draw(3)}
    results = gk.load(file(nodes, {"x": [3]}, ["dx", "dh"])).run(feeds)
    np.testing.assert_allclose(results["dx"], feeds["x"] ** 2)
    np.testing.assert_allclose(results["dh"], feeds["x"])


def test_of_another_gradient() -> None:
    """The example of the standard: o = sum((x w - l)^2), d o / d w, and of that the derivatives in x and w."""
    nodes = [
        # In any order: what a Gradient names comes before it.
        node("Gradient", ["x", "w", "l"], ["d2x", "d2w"], xs=["x", "w"], zs=["l"], y="dw"),
        node("Gradient", ["x", "w", "l"], ["dx", "dw"], xs=["x", "w"], zs=["l"], y="o"),
        node("MatMul", ["x", "w"], ["y"]),
        node("Sub", ["y", "l"], ["e"]),
        node("Mul", ["e", "e"], ["s"]),
        node("ReduceSum", ["s"], ["o"], keepdims=0),
    ]
    net = gk.load(file(nodes, {"x": [4, 3], "w": [3, 2], "l": [4, 2]}, ["dx", "dw", "d2x", "d2w"]))
    feeds = {"x": draw(4, 3), "w": draw(3, 2), "l": draw(4, 2)}
    x, w = feeds["x"], feeds["w"]
    error = x @ w - feeds["l"]
    results = net.run(feeds)
    np.testing.assert_allclose(results["dx"], 2 * error @ w.T)
    np.testing.assert_allclose(results["dw"], 2 * x.T @ error)
    # The gradient of the sum of the elements of 2 x^T (x w - l).
    np.testing.assert_allclose(results["d2w"], 2 * x.T @ (x @ np.ones((3, 2))))
    ones = np.ones((3, 2))
    np.testing.assert_allclose(results["d2x"], 2 * (error @ ones.T + x @ ones @ w.T))


def test_zeros_where_nothing_depends() -> None:
    nodes = [node("Exp", ["a"], ["y"]), node("Gradient", ["a", "b"], ["da", "db"], xs=["a", "b"], y="y")]
    net = gk.load(file(nodes, {"a": [2], "b": ["N", 3]}, ["da", "db"]))
    results = net.run({"a": np.zeros(2), "b": draw(4, 3)})
    np.testing.assert_array_equal(results["da"], [1, 1])
    np.testing.assert_array_equal(results["db"], np.zeros((4, 3)))


def test_in_parameters() -> None:
    """Initialisers are variables like others."""
    weight = onnx.numpy_helper.from_array(draw(3, 2), "w")
    nodes = [node("MatMul", ["x", "w"], ["y"]), node("Gradient", ["w", "x"], ["dw"], xs=["w"], zs=["x"], y="y")]
    net = gk.load(file(nodes, {"x": [2, 3]}, ["dw"], initializers=[weight]))
    x = draw(2, 3)
    np.testing.assert_allclose(net.run({"x": x})["dw"], x.T @ np.ones((2, 2)))


def test_inside_a_branch_and_inside_a_function() -> None:
    inner = [node("Gradient", ["a"], ["d"], xs=["a"], y="y")]
    branches = {
        "then_branch": helper.make_graph(inner, "then", [], [onnx.ValueInfoProto(name="d")]),
        "else_branch": helper.make_graph([node("Neg", ["a"], ["n"])], "else", [], [onnx.ValueInfoProto(name="n")]),
    }
    condition = helper.make_node("Constant", [], ["c"], value=onnx.numpy_helper.from_array(np.array(True)))
    nodes = [condition, node("Mul", ["a", "a"], ["y"]), helper.make_node("If", ["c"], ["out"], **branches)]
    a = draw(3)
    np.testing.assert_allclose(gk.load(file(nodes, {"a": [3]}, ["out"])).run({"a": a})["out"], 2 * a)
    imports = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    body = [node("Sin", ["p"], ["q"]), node("Gradient", ["p"], ["r"], xs=["p"], y="q")]
    function = helper.make_function("local", "Slope", ["p"], ["r"], body, imports)
    call = [helper.make_node("Slope", ["a"], ["out"], domain="local")]
    net = gk.load(file(call, {"a": [3]}, ["out"], functions=[function]))
    np.testing.assert_allclose(net.run({"a": a})["out"], np.cos(a))


@in_one_item()
@pytest.mark.parametrize(
    ("attributes", "inputs", "kind", "error", "message"),
    [
        ({"xs": ["a"], "y": "nowhere"}, ["a"], "Exp", InvalidModel, "'nowhere' is not defined: no node"),
        ({"xs": ["a"], "zs": ["b"], "y": "y"}, ["a"], "Exp", InvalidModel, "xs and zs name 1 and 1 inputs"),
        ({"xs": ["a", "a"], "y": "y"}, ["a", "a"], "Exp", InvalidModel, "named twice"),
        ({"xs": ["a"]}, ["a"], "Exp", InvalidModel, "attribute 'y' is required"),
        ({"y": "y"}, ["a"], "Exp", InvalidModel, "xs one name or more"),
        ({"xs": ["a"], "y": 3}, ["a"], "Exp", InvalidModel, "y must be one name"),
        ({"xs": ["a"], "y": "y"}, ["a"], "IsNaN", InvalidModel, "is not a float tensor"),
    ],
)
def test_what_cannot_be_differentiated(
    attributes: dict[str, Any], inputs: Sequence[str], kind: str, error: type[Exception], message: str
) -> None:
    nodes = [node(kind, ["a"], ["y"]), node("Gradient", inputs, ["d"], **attributes)]
    with pytest.raises(error, match=message):
        gk.load(file(nodes, {"a": [2, 2], "b": [2, 2]}, ["d"]))


def test_an_operator_without_a_gradient_is_named() -> None:
    scalars = [onnx.numpy_helper.from_array(v, n) for n, v in (("r", np.array(0.1)), ("t", np.array(0)))]
    options = {"alpha": 0.9, "beta": 1.0, "mode": "standard", "norm_coefficient": 0.0}
    step = helper.make_node("Momentum", ["r", "t", "a", "a", "a"], ["y", "v"], domain=DOMAIN, **options)
    nodes = [step, node("Gradient", ["a"], ["d"], xs=["a"], y="y")]
    with pytest.raises(MissingGradient, match=r"'d'.*Momentum ends a training step"):
        gk.load(file(nodes, {"a": [2]}, ["d"], initializers=scalars))


def test_a_cycle_through_names_is_an_error() -> None:
    nodes = [node("Gradient", ["a"], ["d"], xs=["a"], y="y"), node("Mul", ["a", "d"], ["y"])]
    with pytest.raises(InvalidModel, match="depend on each other"):
        gk.load(file(nodes, {"a": [2]}, ["y"]))


def test_gradients_of_gradients_do_not_unfold_without_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradient, "MAX_VALUES", 3000)
    nodes = [node("Tanh", ["a"], ["y0"])]
    nodes += [node("Gradient", ["a"], [f"y{i + 1}"], xs=["a"], y=f"y{i}") for i in range(30)]
    with pytest.raises(InvalidModel, match=r"y\d+.*(expand to more than|can be differentiated)"):
        gk.load(file(nodes, {"a": [2]}, ["y30"]))


def test_an_importer_alone_says_that_it_cannot(tmp_path: Any) -> None:
    nodes = [node("Exp", ["a"], ["y"]), node("Gradient", ["a"], ["d"], xs=["a"], y="y")]
    data = file(nodes, {"a": [2]}, ["d"])
    with pytest.raises(UnsupportedError, match=r"'d'.*Gradient is supported only when a whole model is loaded"):
        import_model(data)
    path = tmp_path / "net.onnx"
    path.write_bytes(data)
    assert outline(path).operators[DOMAIN, "Gradient", "rule"] == 1
