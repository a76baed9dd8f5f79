"""Delta debugging: the smallest part of a model that still fails."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphkit as gk
from graphkit.checks.reduction import reduce_message, reduce_model
from graphkit.errors import UsageError

POINTWISE = ("Relu", "Tanh", "Sigmoid", "Abs", "Neg", "Floor")


def info(name, shape, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def chain(length, special, shape=("N", 4)):
    """A chain of pointwise nodes, with other operators at some places."""
    nodes = []
    for i in range(length):
        kind = special.get(i, POINTWISE[i % len(POINTWISE)])
        nodes.append(helper.make_node(kind, ["x" if i == 0 else f"v{i - 1}"], [f"v{i}"], name=f"n{i}"))
    graph = helper.make_graph(nodes, "g", [info("x", shape)], [info(f"v{length - 1}", shape)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def operators(model):
    return [node.op.name for node in model.graph.nodes if node.op.name != "Constant"]


def contains(*kinds):
    return lambda part: all(kind in operators(part) for kind in kinds)


def test_one_node_of_500(tmp_path):
    onnx.save(chain(500, {317: "Sin"}), tmp_path / "net.onnx")
    small = gk.reduce_model(tmp_path / "net.onnx", contains("Sin"))
    assert operators(small) == ["Sin"]
    x = np.ones((2, 4), np.float32)
    np.testing.assert_allclose(small.run({small.inputs[0]: x})[small.outputs[0]], np.sin(x), rtol=1e-6)


def test_two_nodes_together():
    found = reduce_message(chain(100, {11: "Sin", 83: "Cos"}), lambda part: contains("Sin", "Cos")(part.model))
    assert sorted(found.smallest.operators) == ["Cos", "Sin"]
    assert found.is_complete
    assert found.nodes == 100
    onnxruntime.InferenceSession(found.smallest.message.SerializeToString(), providers=["CPUExecutionProvider"])


def test_two_nodes_of_which_one_must_read_the_other():
    """The nodes between them are bypassed."""

    def fails(model):
        return any(
            node.op.name == "Cos" and node.inputs[0].node is not None and node.inputs[0].node.op.name == "Sin"
            for node in model.graph.nodes
        )

    whole = chain(12, {3: "Sin", 4: "Cos"})
    assert sorted(operators(gk.reduce_model(gk.load(whole), fails))) == ["Cos", "Sin"]


def test_recorded_values_reproduce_a_nan():
    """The logarithm gets negative numbers only from the nodes before it."""
    made = chain(60, {29: "Neg", 30: "Log", 27: "Exp", 28: "Exp"})

    def fails(part):
        if not part.model.inputs or any(name not in part.feeds for name in part.model.inputs):
            return False
        results = part.model.run(part.feeds)
        return any(np.isnan(array).any() for array in results.values() if array.dtype.kind == "f")

    found = reduce_message(made, fails)
    assert found.recorded == "ONNX Runtime"
    assert len(found.smallest.operators) == 1
    with np.errstate(all="ignore"):
        expected = onnxruntime.InferenceSession(
            found.smallest.message.SerializeToString(), providers=["CPUExecutionProvider"]
        ).run(None, dict(found.smallest.feeds))
    assert np.isnan(expected[0]).any()


def test_cut_values_have_their_shapes():
    """The target of the Reshape is computed by nodes that are left out: it becomes a constant."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Slice", ["s", "zero", "one"], ["n"]),
        helper.make_node("Concat", ["n", "rest"], ["t"], axis=0),
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Reshape", ["r", "t"], ["y"]),
    ]
    constants = {"zero": np.array([0]), "one": np.array([1]), "rest": np.array([-1])}
    graph = helper.make_graph(
        nodes, "g", [info("x", ["N", 3, 4])], [info("y", None)],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    small = reduce_model(gk.load(made), contains("Reshape"))
    assert operators(small) == ["Reshape"]
    assert len(small.inputs) == 1


def test_outputs_and_operands_are_dropped():
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["h"], name="c"),
        helper.make_node("Relu", ["h"], ["y"]),
        helper.make_node("Sin", ["h"], ["z"]),
    ]
    weights = {"w": np.ones((5, 3, 1, 1), np.float32), "b": np.ones(5, np.float32)}
    graph = helper.make_graph(
        nodes, "g", [info("x", ["N", 3, 8, 8])], [info("y", None), info("z", None)],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    found = reduce_message(made, lambda part: "Conv" in part.operators)
    assert found.smallest.operators == ["Conv"]
    assert list(found.smallest.message.graph.node[0].input) == ["x", "w"]
    assert [t.name for t in found.smallest.message.graph.initializer] == ["w"]


def test_branches_read_cut_values():
    then = helper.make_graph([helper.make_node("Sin", ["h"], ["t"])], "t", [], [info("t", None)])
    other = helper.make_graph([helper.make_node("Cos", ["h"], ["e"])], "e", [], [info("e", None)])
    nodes = [
        helper.make_node("Relu", ["x"], ["h"]),
        helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other),
    ]
    inputs = [info("x", [3]), info("c", [], TensorProto.BOOL)]
    made = helper.make_model(
        helper.make_graph(nodes, "g", inputs, [info("y", None)]),
        opset_imports=[helper.make_opsetid("", 17)], ir_version=8,
    )  # fmt: skip
    found = reduce_message(made, lambda part: "If" in part.operators)
    assert found.smallest.operators[0] == "If"
    assert "c" in found.smallest.model.inputs
    assert set(found.smallest.feeds) == set(found.smallest.model.inputs)


def test_the_order_is_deterministic_and_no_part_is_tried_twice():
    def tried():
        seen = []

        def fails(part):
            seen.append(part.message.SerializeToString(deterministic=True))
            return {"Sin", "Cos"} <= set(part.operators)

        reduce_message(chain(40, {7: "Sin", 30: "Cos"}), fails)
        return seen

    first = tried()
    assert first == tried()
    assert len(first) == len(set(first)) + 1  # the whole model, which has no constants, is tried twice


def test_the_limit_of_tries_keeps_the_smallest_so_far():
    found = reduce_message(chain(64, {5: "Sin"}), lambda part: "Sin" in part.operators, max_tries=4)
    assert found.tries == 4
    assert not found.is_complete
    assert "Sin" in found.smallest.operators
    assert len(found.smallest.operators) < 64


def test_each_improvement_is_reported():
    sizes = []
    reduce_message(
        chain(64, {5: "Sin"}), lambda part: "Sin" in part.operators, on_smaller=lambda p: sizes.append(len(p.operators))
    )
    assert sizes[:2] == [64, 64]
    assert sizes[-1] == 1
    assert sizes == sorted(sizes, reverse=True)


def test_a_model_that_does_not_fail_is_an_error():
    with pytest.raises(UsageError, match="does not fail"):
        gk.reduce_model(gk.load(chain(5, {})), lambda part: False)
    with pytest.raises(UsageError, match="max_tries"):
        gk.reduce_model(gk.load(chain(5, {})), lambda part: True, max_tries=0)
