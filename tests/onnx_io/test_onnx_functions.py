"""Model-local functions, compared with ONNX Runtime: overloads, defaults, subgraphs, domains of operators, opsets."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from combinations import in_one_item
from onnx import TensorProto, helper

from graphkit.errors import InvalidModel
from graphkit.onnx_io.compare import OnnxRuntimeModel
from graphkit.onnx_io.importer import import_model
from graphkit.ops.evaluate import evaluate

X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)


def function(name, nodes, *, domain="mine", opset=21, attributes=(), defaults=(), overload="", imports=()):
    found = helper.make_function(
        domain, name, ["a"], ["b"], nodes, [helper.make_opsetid("", opset), *imports], list(attributes), list(defaults)
    )
    found.overload = overload
    return found


def model(nodes, functions, domains=("mine",), opset=21, outputs=("y",)):
    infos = [helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)]
    graph = helper.make_graph(nodes, "g", infos, [onnx.ValueInfoProto(name=name) for name in outputs])
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=10)


def run(proto):
    found = import_model(proto)
    return evaluate(found.graph, [X])


def agree(proto):
    for found, expected in zip(run(proto), OnnxRuntimeModel(proto).run({"x": X}).values(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def referring(op, attribute, refers, kind=onnx.AttributeProto.FLOAT, **more):
    node = helper.make_node(op, ["a"], ["b"], **more)
    node.attribute.add(name=attribute, ref_attr_name=refers, type=kind)
    return node


def test_overloads():
    functions = [
        function("Act", [helper.make_node("Relu", ["a"], ["b"])], overload="relu"),
        function("Act", [helper.make_node("Neg", ["a"], ["b"])], overload="neg"),
    ]
    calls = [helper.make_node("Act", ["x"], [name], domain="mine", overload=name) for name in ("relu", "neg")]
    proto = model(calls, functions, outputs=("relu", "neg"))
    relu, neg = run(proto)
    np.testing.assert_array_equal(relu, np.maximum(X, 0))
    np.testing.assert_array_equal(neg, -X)
    agree(proto)


def test_defaults_references_and_attributes_that_stay_away():
    leaky = function(
        "Leaky", [referring("LeakyRelu", "alpha", "slope")], defaults=[helper.make_attribute("slope", 0.25)]
    )
    # An attribute without a value leaves the operator its own default.
    plain = function("Plain", [referring("LeakyRelu", "alpha", "slope")], attributes=["slope"])
    outer = function(
        "Outer", [referring("Leaky", "slope", "steep", domain="mine")], attributes=["steep"],
        imports=[helper.make_opsetid("mine", 1)],
    )  # fmt: skip
    calls = [
        helper.make_node("Leaky", ["x"], ["y0"], domain="mine"),
        helper.make_node("Leaky", ["x"], ["y1"], domain="mine", slope=0.5),
        helper.make_node("Plain", ["x"], ["y2"], domain="mine"),
        helper.make_node("Outer", ["x"], ["y3"], domain="mine", steep=0.75),
    ]
    agree(model(calls, [leaky, plain, outer], outputs=("y0", "y1", "y2", "y3")))


def test_subgraphs_inside_of_functions_that_call_functions():
    inner = function("Inner", [referring("LeakyRelu", "alpha", "slope")], attributes=["slope"])
    call = helper.make_node("Inner", ["a"], ["t"], domain="mine")
    call.attribute.add(name="slope", ref_attr_name="steep", type=onnx.AttributeProto.FLOAT)
    branches = {
        "then_branch": helper.make_graph([call], "then", [], [helper.make_tensor_value_info("t", 1, None)]),
        "else_branch": helper.make_graph(
            [helper.make_node("Neg", ["a"], ["e"])], "else", [], [helper.make_tensor_value_info("e", 1, None)]
        ),
    }
    nodes = [
        helper.make_node("ReduceSum", ["a"], ["total"], keepdims=0),
        helper.make_node("Constant", [], ["limit"], value_float=0.5),
        helper.make_node("Less", ["total", "limit"], ["c"]),
        helper.make_node("If", ["c"], ["b"], **branches),
    ]
    outer = function("Outer", nodes, attributes=["steep"], imports=[helper.make_opsetid("mine", 1)])
    calls = [helper.make_node("Outer", ["x"], ["y"], domain="mine", steep=0.5)]
    proto = model(calls, [inner, outer])
    np.testing.assert_allclose(run(proto)[0], np.where(X < 0, X * np.float32(0.5), X), rtol=1e-6)
    agree(proto)


def test_an_opset_of_its_own():
    # Axes became an operand in 13; a Softmax before that coerces to a matrix.
    old = function("Old", [helper.make_node("Softmax", ["a"], ["b"])], opset=11)
    proto = model([helper.make_node("Old", ["x"], ["y"], domain="mine")], [old])
    flat = np.exp(X - X.max(-1, keepdims=True))
    np.testing.assert_allclose(run(proto)[0], flat / flat.sum(-1, keepdims=True), rtol=1e-5)
    squeezed = function("Old", [helper.make_node("ReduceSum", ["a"], ["b"], axes=[0])], opset=11)
    proto = model([helper.make_node("Old", ["x"], ["y"], domain="mine")], [squeezed])
    np.testing.assert_allclose(run(proto)[0], X.sum(0, keepdims=True), rtol=1e-5)


@in_one_item()
@pytest.mark.parametrize(("domain", "op"), [("", "Relu"), ("", "Gelu"), ("com.microsoft", "QuickGelu")])
def test_an_operator_wins_over_a_function_of_its_name(domain, op):
    body = function(op, [helper.make_node("Neg", ["a"], ["b"])], domain=domain)
    domains = (domain,) if domain else ()
    agree(model([helper.make_node(op, ["x"], ["y"], domain=domain)], [body], domains))


def test_a_function_in_the_domain_of_operators():
    body = function("Doubled", [helper.make_node("Add", ["a", "a"], ["b"])], domain="com.microsoft")
    agree(model([helper.make_node("Doubled", ["x"], ["y"], domain="com.microsoft")], [body], ("com.microsoft",)))


def test_an_attribute_that_a_function_lacks():
    body = function("Plain", [helper.make_node("Neg", ["a"], ["b"])])
    with pytest.raises(InvalidModel, match=r"function mine\.Plain has no attribute 'colour'"):
        run(model([helper.make_node("Plain", ["x"], ["y"], domain="mine", colour=1)], [body]))
