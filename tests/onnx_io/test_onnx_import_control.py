"""Import of If, Loop and Scan: captures at any depth, initialisers inside subgraphs, growing state."""

from __future__ import annotations

import numpy as np
import pytest
from combinations import in_one_item
from onnx import TensorProto, helper, numpy_helper

from graphkit.errors import InvalidModel
from graphkit.onnx_io import scopes
from graphkit.onnx_io.exporter import export
from graphkit.onnx_io.importer import import_model
from graphkit.ops.evaluate import evaluate

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def info(name, shape=None, dtype=FLOAT):
    return helper.make_tensor_value_info(name, dtype, shape)


def subgraph(name, nodes, inputs, outputs, inits=()):
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in dict(inits).items()]
    return helper.make_graph(nodes, name, inputs, outputs, tensors)


def model(graph, opset=21):
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def results(proto, **feeds):
    """Outputs after import, and after export and import again."""
    found = import_model(proto)
    again = import_model(export(found.graph, found.params).SerializeToString())
    both = []
    for imported in (found, again):
        arrays = [imported.params.get(n) if n in imported.params else feeds[n] for n in imported.graph.input_names]
        both.append(evaluate(imported.graph, arrays))
    for one, other in zip(*both, strict=True):
        np.testing.assert_array_equal(one, other)
    return both[0]


def nested_if():
    innermost = subgraph("deep", [helper.make_node("Mul", ["h", "w"], ["r"])], [], [info("r")])
    plain = subgraph("plain", [helper.make_node("Identity", ["x"], ["s"])], [], [info("s")])
    then = subgraph(
        "then",
        [
            helper.make_node("Add", ["x", "x"], ["h"]),
            helper.make_node("If", ["q"], ["t"], then_branch=innermost, else_branch=plain, name="inner"),
        ],
        [],
        [info("t")],
        {"w": np.array([10.0, 20.0], np.float32)},
    )
    other = subgraph("else", [helper.make_node("Neg", ["z"], ["u"])], [], [info("u")])
    return model(
        subgraph(
            "g",
            [
                helper.make_node("Relu", ["x"], ["z"]),
                helper.make_node("If", ["p"], ["y"], then_branch=then, else_branch=other, name="outer"),
            ],
            [info("x", [2]), info("p", [], BOOL), info("q", [], BOOL)],
            [info("y")],
        )
    )


@in_one_item()
@pytest.mark.parametrize(
    ("p", "q", "expected"), [(True, True, [20, -80]), (True, False, [1, -2]), (False, True, [-1, 0])]
)
def test_if_captures_at_any_depth(p, q, expected):
    (y,) = results(nested_if(), x=np.array([1, -2], np.float32), p=np.array(p), q=np.array(q))
    np.testing.assert_array_equal(y, expected)


def test_branches_share_one_list_of_captures():
    graph = import_model(nested_if()).graph
    node = next(n for n in graph.nodes if n.op.name == "If")
    then, other = node.op.subgraphs().values()
    assert len(then.inputs) == len(other.inputs) == len(node.inputs) - 1
    assert "w" in [v.name for v in graph.inputs]  # an initialiser of a subgraph is a parameter of the model


def test_branches_that_only_pass_on_outer_values():
    then = subgraph("t", [], [], [info("x")])
    other = subgraph("e", [], [], [info("w")], {"w": np.array([7.0], np.float32)})
    proto = model(
        subgraph(
            "g", [helper.make_node("If", ["p"], ["y"], then_branch=then, else_branch=other)],
            [info("x", [1]), info("p", [], BOOL)], [info("y")],
        )
    )  # fmt: skip
    x = np.array([3], np.float32)
    assert results(proto, x=x, p=np.array(True))[0] == 3
    assert results(proto, x=x, p=np.array(False))[0] == 7


def loop_model(grow):
    step = ("Concat", {"axis": 0}) if grow else ("Add", {})
    body = subgraph(
        "body",
        [
            helper.make_node(step[0], ["s_in", "x"], ["s_out"], **step[1]),
            helper.make_node("Identity", ["c_in"], ["c_out"]),
            helper.make_node("Cast", ["i"], ["n"], to=FLOAT),
        ],
        [info("i", [], INT64), info("c_in", [], BOOL), info("s_in")],
        [info("c_out", [], BOOL), info("s_out"), info("n")],
    )
    return model(
        subgraph(
            "g", [helper.make_node("Loop", ["m", "", "x"], ["s", "all"], body=body, name="loop")],
            [info("x", ["K"]), info("m", [], INT64)], [info("s"), info("all")],
        )
    )  # fmt: skip


@pytest.mark.parametrize("grow", [False, True])
def test_loop_with_fixed_and_growing_state(grow):
    x = np.array([1, 2], np.float32)
    state, numbers = results(loop_model(grow), x=x, m=np.array(3))
    np.testing.assert_array_equal(state, np.tile(x, 4) if grow else x * 4)
    np.testing.assert_array_equal(numbers, [0, 1, 2])


def test_scan_with_a_capture():
    body = subgraph(
        "body",
        [helper.make_node("Add", ["s", "e"], ["t"]), helper.make_node("Mul", ["t", "k"], ["o"])],
        [info("s", [2]), info("e", [2])],
        [info("t", [2]), info("o", [2])],
    )
    proto = model(
        subgraph(
            "g", [helper.make_node("Scan", ["s0", "x"], ["end", "all"], body=body, num_scan_inputs=1)],
            [info("s0", [2]), info("x", ["T", 2]), info("k", [2])], [info("end"), info("all")],
        )
    )  # fmt: skip
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    end, out = results(proto, s0=np.zeros(2, np.float32), x=x, k=np.array([1, 2], np.float32))
    np.testing.assert_array_equal(end, x.sum(0))
    np.testing.assert_array_equal(out, x.cumsum(0) * [1, 2])


def test_a_condition_of_one_element_in_several_axes():
    then, other = (subgraph(n, [helper.make_node(n, ["x"], [f"{n}_y"])], [], [info(f"{n}_y")]) for n in ("Neg", "Abs"))
    proto = model(
        subgraph(
            "g", [helper.make_node("If", ["p"], ["y"], then_branch=then, else_branch=other)],
            [info("x", [1]), info("p", [1, 1], BOOL)], [info("y")],
        )
    )  # fmt: skip
    assert results(proto, x=np.array([2], np.float32), p=np.array([[True]]))[0] == -2


def test_undefined_names_inside_a_branch_are_found():
    then, other = (subgraph(n, [helper.make_node(n, ["nowhere"], [f"{n}_y"], name=n)], [], [info(f"{n}_y")])
                   for n in ("Neg", "Abs"))  # fmt: skip
    graph = subgraph("g", [helper.make_node("If", ["p"], ["y"], then_branch=then, else_branch=other, name="choice")],
                     [info("p", [], BOOL)], [info("y")])  # fmt: skip
    with pytest.raises(InvalidModel, match=r"node 'choice' .*'nowhere' is not defined"):
        import_model(model(graph))


def test_subgraphs_nested_too_deeply(monkeypatch):
    monkeypatch.setattr(scopes, "MAX_DEPTH", 4)
    graph = subgraph("leaf", [helper.make_node("Neg", ["x"], ["y0"])], [], [info("y0")])
    for i in range(6):
        node = helper.make_node("If", ["p"], [f"y{i + 1}"], then_branch=graph, else_branch=graph)
        graph = subgraph(f"level{i}", [node], [], [info(f"y{i + 1}")])
    graph.input.extend([info("x", [1]), info("p", [], BOOL)])
    with pytest.raises(InvalidModel, match="nested deeper than 4"):
        import_model(model(graph))
