"""Branches that cannot be computed: the file loads, runs the other branch, and fails only where the branch is taken."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
from combinations import in_one_item
from onnx import TensorProto, helper, numpy_helper

import graphkit as gk
from graphkit.errors import GraphkitError, InvalidModel, TypeMismatch
from graphkit.onnx_io.importer import Builder

FLOAT, BOOL = TensorProto.FLOAT, TensorProto.BOOL
X = np.arange(6, dtype=np.float32).reshape(2, 3)

# Operator, operands, and the initialisers of the branch that makes no sense.
MISFITS = {
    "index": ("Gather", ["w", "i"], {"i": np.array(99)}),
    "elements": ("Reshape", ["w", "i"], {"i": np.array([7, 7])}),
    "axis": ("Squeeze", ["x", "i"], {"i": np.array([1])}),
    "sizes": ("Add", ["x", "i"], {"i": np.ones(4, np.float32)}),
    "rank": ("Transpose", ["x"], {}),
    "constants": ("Gather", ["v", "i"], {"v": np.arange(3), "i": np.array(7)}),
    "product": ("MatMul", ["x", "k"], {"k": np.ones((4, 5), np.float32)}),
}


def info(name, shape=None, dtype=FLOAT):
    return helper.make_tensor_value_info(name, dtype, shape)


def branch(name, nodes, output, inits=()):
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in dict(inits).items()]
    return helper.make_graph(nodes, name, [], [helper.make_empty_tensor_value_info(output)], tensors)


def model(nodes, inputs, inits=()):
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in dict(inits).items()]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_empty_tensor_value_info("y")], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def misfit(kind, constant=None):
    """A model whose then_branch has a node `bad` that cannot be computed; the other one negates x."""
    operator, operands, inits = MISFITS[kind]
    attrs = {"perm": [0, 1, 2]} if kind == "rank" else {}
    bad = [helper.make_node(operator, operands, ["b"], name="bad", **attrs)]
    bad.append(helper.make_node("Cast", ["b"], ["t"], to=FLOAT))
    other = branch("other", [helper.make_node("Neg", ["x"], ["e"])], "e")
    node = helper.make_node(
        "If", ["c"], ["y"], "choose", then_branch=branch("then", bad, "t", inits), else_branch=other
    )
    inputs, outer = [info("x", ["N", 3])], {"w": np.ones((5, 3), np.float32)}
    if constant is None:
        inputs.append(info("c", [], BOOL))
    else:
        outer["c"] = np.array(constant)
    return model([node], inputs, outer)


@in_one_item()
@pytest.mark.parametrize("kind", MISFITS)
@pytest.mark.parametrize("optimize", [True, False])
def test_the_other_branch_runs(kind, optimize):
    net = gk.load(misfit(kind))
    got = net.compile(optimize=optimize).run({"x": X, "c": np.array(False)})["y"]
    np.testing.assert_array_equal(got, -X)


@in_one_item()
@pytest.mark.parametrize("kind", MISFITS)
def test_the_taken_branch_names_node_and_branch(kind):
    net = gk.load(misfit(kind))
    with pytest.raises(GraphkitError, match=r"(?s)choose.*bad|bad.*choose") as failed:
        net.run({"x": X, "c": np.array(True)})
    assert "choose/then" in str(failed.value)


@in_one_item()
@pytest.mark.parametrize("kind", MISFITS)
def test_a_constant_condition_decides_on_import(kind):
    np.testing.assert_array_equal(gk.load(misfit(kind, constant=False)).run({"x": X})["y"], -X)
    with pytest.raises(TypeMismatch, match="bad"):
        gk.load(misfit(kind, constant=True)).run({"x": X})


def test_onnxruntime_runs_the_file_and_its_export():
    proto = misfit("index")
    net = gk.load(proto)
    feeds = {"x": X, "c": np.array(False)}
    for written in (proto, net.to_onnx()):
        np.testing.assert_array_equal(ort.InferenceSession(written.SerializeToString()).run(None, feeds)[0], -X)


@in_one_item()
@pytest.mark.parametrize("kind", MISFITS)
def test_saved_models_load_again(kind, tmp_path):
    net = gk.load(misfit(kind))
    for name in ("again.json", "again.onnx"):
        net.save(tmp_path / name)
        again = gk.load(tmp_path / name)
        np.testing.assert_array_equal(again.run({"x": X, "c": np.array(False)})["y"], -X)
        with pytest.raises(GraphkitError, match="bad"):
            again.run({"x": X, "c": np.array(True)})


@in_one_item()
@pytest.mark.parametrize("kind", MISFITS)
def test_the_gradient_passes_through_the_other_branch(kind):
    net = gk.load(misfit(kind))
    back = gk.grad(net, of="y", wrt=["x"])
    found = back.run({"x": X, "c": np.array(False)})
    np.testing.assert_array_equal(next(v for k, v in found.items() if k != "y"), -np.ones_like(X))


def test_branches_nest():
    operator, operands, inits = MISFITS["sizes"]
    bad = branch("bad", [helper.make_node(operator, operands, ["t"], name="bad")], "t", inits)
    good = branch("good", [helper.make_node("Exp", ["x"], ["f"])], "f")
    inner = helper.make_node("If", ["d"], ["u"], "inner", then_branch=bad, else_branch=good)
    neg = branch("neg", [helper.make_node("Neg", ["x"], ["e"])], "e")
    node = helper.make_node("If", ["c"], ["y"], "outer", then_branch=branch("mid", [inner], "u"), else_branch=neg)
    net = gk.load(model([node], [info("x", ["N", 3]), info("c", [], BOOL), info("d", [], BOOL)]))
    yes, no = np.array(True), np.array(False)
    np.testing.assert_array_equal(net.run({"x": X, "c": no, "d": yes})["y"], -X)
    np.testing.assert_allclose(net.run({"x": X, "c": yes, "d": no})["y"], np.exp(X), rtol=1e-6)
    with pytest.raises(GraphkitError, match="bad"):
        net.run({"x": X, "c": yes, "d": yes})


def test_nested_branches_are_built_a_few_times_each(monkeypatch):
    """Each branch has a node that only becomes valid with placeholders for constants, after the branch inside of it."""
    constants = {"v": np.arange(3), "i": np.array(7)}

    def nested(depth):
        if not depth:
            return branch("end", [helper.make_node("Neg", ["x"], ["r0"])], "r0")
        other = branch(f"other{depth}", [helper.make_node("Exp", ["x"], [f"e{depth}"])], f"e{depth}")
        inner = helper.make_node("If", ["c"], [f"r{depth}"], then_branch=nested(depth - 1), else_branch=other)
        bad = helper.make_node("Gather", ["v", "i"], [f"g{depth}"])
        return branch(f"then{depth}", [inner, bad], f"r{depth}")

    depth, built = 7, []
    node = Builder.node
    monkeypatch.setattr(Builder, "node", lambda self, raw, *more: built.append(raw) or node(self, raw, *more))
    neg = branch("neg", [helper.make_node("Neg", ["x"], ["n"])], "n")
    top = helper.make_node("If", ["c"], ["y"], "top", then_branch=nested(depth), else_branch=neg)
    gk.load(model([top], [info("x", ["N", 3]), info("c", [], BOOL)], constants))
    assert len(built) < 20 * depth * depth


def test_a_loop_in_an_untaken_branch():
    operator, operands, inits = MISFITS["sizes"]
    body = helper.make_graph(
        [
            helper.make_node(operator, operands, ["s_out"], name="bad"),
            helper.make_node("Identity", ["go"], ["go_out"]),
        ],
        "body",
        [info("n", [], TensorProto.INT64), info("go", [], BOOL), info("s")],
        [info("go_out", [], BOOL), info("s_out")],
        [numpy_helper.from_array(a, n) for n, a in inits.items()],
    )
    loop = helper.make_node("Loop", ["m", "", "x"], ["t"], "loop", body=body)
    then = branch("then", [loop], "t", {"m": np.array(3)})
    other = branch("other", [helper.make_node("Neg", ["x"], ["e"])], "e")
    node = helper.make_node("If", ["c"], ["y"], "choose", then_branch=then, else_branch=other)
    net = gk.load(model([node], [info("x", ["N", 3]), info("c", [], BOOL)]))
    np.testing.assert_array_equal(net.run({"x": X, "c": np.array(False)})["y"], -X)


def test_a_branch_in_a_loop():
    operator, operands, inits = MISFITS["sizes"]
    bad = branch("bad", [helper.make_node(operator, operands, ["t"], name="bad")], "t", inits)
    good = branch("good", [helper.make_node("Add", ["s", "x"], ["f"])], "f")
    body = helper.make_graph(
        [
            helper.make_node("If", ["c"], ["s_out"], "choose", then_branch=bad, else_branch=good),
            helper.make_node("Identity", ["go"], ["go_out"]),
        ],
        "body",
        [info("n", [], TensorProto.INT64), info("go", [], BOOL), info("s")],
        [info("go_out", [], BOOL), info("s_out")],
    )
    loop = helper.make_node("Loop", ["m", "", "x"], ["y"], "loop", body=body)
    net = gk.load(model([loop], [info("x", ["N", 3]), info("c", [], BOOL)], {"m": np.array(3)}))
    np.testing.assert_array_equal(net.run({"x": X, "c": np.array(False)})["y"], 4 * X)
    with pytest.raises(GraphkitError, match=r"loop/body/choose/then.*bad"):
        net.run({"x": X, "c": np.array(True)})


def test_a_branch_that_calls_a_function():
    call = helper.make_node("Negative", ["x"], ["n"], domain="own")
    steps = [helper.make_node("Gather", ["w", "i"], ["b"]), call, helper.make_node("Add", ["n", "b"], ["t"])]
    bad = branch("bad", steps, "t", {"i": np.array(99)})
    good = branch("good", [helper.make_node("Neg", ["x"], ["e"])], "e")
    node = helper.make_node("If", ["c"], ["y"], "choose", then_branch=bad, else_branch=good)
    proto = model([node], [info("x", ["N", 3]), info("c", [], BOOL)], {"w": np.ones((5, 3), np.float32)})
    body = [helper.make_node("Neg", ["a"], ["o"])]
    proto.functions.append(helper.make_function("own", "Negative", ["a"], ["o"], body, [helper.make_opsetid("", 17)]))
    proto.opset_import.append(helper.make_opsetid("own", 1))
    np.testing.assert_array_equal(gk.load(proto).run({"x": X, "c": np.array(False)})["y"], -X)


def test_nothing_runs_where_both_branches_cannot():
    operator, operands, inits = MISFITS["sizes"]
    branches = {
        key: branch(key, [helper.make_node(operator, operands, [key], name=f"bad_{key}")], key, inits)
        for key in ("then_branch", "else_branch")
    }
    node = helper.make_node("If", ["c"], ["y"], "choose", **branches)
    with pytest.raises(TypeMismatch, match="bad_"):
        gk.load(model([node], [info("x", ["N", 3]), info("c", [], BOOL)]))


def test_what_no_sizes_mend_is_refused_on_import():
    then = branch("then", [helper.make_node("Add", ["x", "c"], ["t"], name="bad")], "t")
    other = branch("other", [helper.make_node("Neg", ["x"], ["e"])], "e")
    node = helper.make_node("If", ["c"], ["y"], "choose", then_branch=then, else_branch=other)
    with pytest.raises(InvalidModel, match="bad"):
        gk.load(model([node], [info("x", ["N", 3]), info("c", [], BOOL)]))


def test_the_main_graph_is_still_refused_on_import():
    node = helper.make_node("Gather", ["x", "i"], ["y"], name="bad")
    with pytest.raises(TypeMismatch, match="bad"):
        gk.load(model([node], [info("x", [2, 3])], {"i": np.array(99)}))
