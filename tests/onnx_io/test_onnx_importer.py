"""Import: names, roles, types, order, functions, constants, and the errors that name file and node."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from combinations import in_one_item
from onnx import TensorProto, helper, numpy_helper

from graphkit.errors import DeclarationWarning, InvalidModel, UnsupportedOperator
from graphkit.ir import dims
from graphkit.ir.types import DType, TensorType
from graphkit.onnx_io.importer import Imported, import_model
from graphkit.ops.evaluate import evaluate

FLOAT = TensorProto.FLOAT


def info(name, shape=None, dtype=FLOAT):
    return helper.make_tensor_value_info(name, dtype, shape)


def model(nodes, inputs, outputs, inits=(), opset=21, functions=(), domains=(), ir=10, **graph):
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in dict(inits).items()]
    proto = helper.make_graph(nodes, "g", inputs, outputs, tensors, **graph)
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(proto, opset_imports=imports, functions=functions, ir_version=ir)


def run(imported: Imported, **feeds):
    graph = imported.graph
    arrays = [imported.params[n] if n in imported.params else feeds[n] for n in graph.input_names]
    return evaluate(graph, arrays)


W = np.arange(6, dtype=np.float32).reshape(3, 2)


def test_names_roles_types_and_params():
    proto = model(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"], name="project"),
            helper.make_node("Reshape", ["h", "shape"], ["y"], name="flat"),
        ],
        [info("x", ["N", 3])],
        [info("y")],
        {"w": W, "shape": np.array([-1])},
    )
    found = import_model(proto)
    assert found.graph.input_names == ("x", "w")
    assert [v.role for v in found.graph.inputs] == ["data", "parameter"]
    assert found.graph.output_names == ("y",)
    assert [n.name for n in found.graph.nodes if n.op.name != "Constant"] == ["project", "flat"]
    assert found.graph.outputs[0].type == TensorType("float32", [2 * dims.symbol("N")])
    x = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(run(found, x=x)[0], (x @ W).reshape(-1))


def test_nodes_in_any_order():
    nodes = [helper.make_node("Relu", [f"v{i}"], [f"v{i + 1}"], name=f"n{i}") for i in range(50)]
    found = import_model(model(nodes[::-1], [info("v0", [2])], [info("v50", [2])]))
    assert [n.name for n in found.graph.nodes] == [f"n{i}" for i in range(50)]


def test_a_long_chain_in_reverse_order():
    count = 20_000
    nodes = [helper.make_node("Neg", [f"v{i}"], [f"v{i + 1}"]) for i in range(count)]
    found = import_model(model(nodes[::-1], [info("v0", [2])], [info(f"v{count}")]))
    assert len(found.graph.nodes) == count


def test_batch_statistics_are_states_and_scalars_constants():
    vector = np.ones(3, np.float32)
    proto = model(
        [
            helper.make_node("BatchNormalization", ["x", "s", "b", "m", "v"], ["n"]),
            helper.make_node("Mul", ["n", "half"], ["c"]),
            helper.make_node("Clip", ["c", "low"], ["y"]),
        ],
        [info("x", [2, 3])],
        [info("y")],
        {"s": vector, "b": vector, "m": vector, "v": vector, "half": np.float32(0.5), "low": np.float32(0)},
    )
    graph = import_model(proto).graph
    assert {graph.name_of(v): v.role for v in graph.inputs} == {
        "x": "data", "s": "parameter", "b": "parameter", "m": "state", "v": "state",
    }  # fmt: skip


def test_an_initialiser_that_is_an_input_is_a_default():
    nodes = [helper.make_node("Mul", ["x", "k"], ["y"])]
    found = import_model(model(nodes, [info("x", [2]), info("k", [])], [info("y")], {"k": np.float32(3)}))
    assert found.params.keys() == {"k"}
    assert found.graph.inputs[1].role == "parameter"
    integers = model(
        [helper.make_node("Reshape", ["x", "k"], ["y"])],
        [info("x", [2]), info("k", [1], TensorProto.INT64)], [info("y")], {"k": np.array([2])},
    )  # fmt: skip
    assert [v.role for v in import_model(integers).graph.inputs] == ["data", "state"]
    integers.ir_version = 3
    assert import_model(integers).graph.outputs[0].shape == (2,)


def test_unused_initialisers_are_left_out():
    inits = {"w": W, "spare": W}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    assert import_model(model(nodes, [info("x", [1, 3])], [info("y")], inits)).params.keys() == {"w"}


def test_absent_operands_and_unnamed_outputs():
    proto = model(
        [
            helper.make_node("Clip", ["x", "", "high"], ["c"]),
            helper.make_node("MaxPool", ["c"], ["y", ""], kernel_shape=[2]),
        ],
        [info("x", [1, 1, 4])],
        [info("y")],
        {"high": np.float32(1)},
    )
    x = np.array([[[-3, 5, 0.5, -1]]], np.float32)
    np.testing.assert_array_equal(run(import_model(proto), x=x)[0], [[[1, 1, 0.5]]])


@in_one_item()
@pytest.mark.parametrize(
    ("attribute", "expected"),
    [
        ({"value_float": 1.5}, np.float32(1.5)),
        ({"value_floats": [1.0, 2.0]}, np.array([1, 2], np.float32)),
        ({"value_int": 3}, np.int64(3)),
        ({"value_ints": [3, 4]}, np.array([3, 4])),
        ({"value_string": "a"}, np.array("a", object)),
        ({"value_strings": ["a", "b"]}, np.array(["a", "b"], object)),
        (
            {
                "sparse_value": helper.make_sparse_tensor(
                    numpy_helper.from_array(np.array([5.0, 6.0], np.float32)),
                    numpy_helper.from_array(np.array([[0, 1], [1, 2]])),
                    [2, 3],
                )
            },
            np.array([[0, 5, 0], [0, 0, 6]], np.float32),
        ),
    ],
)
def test_forms_of_constants(attribute, expected):
    nodes = [helper.make_node("Constant", [], ["c"], **attribute), helper.make_node("Identity", ["c"], ["y"])]
    result = run(import_model(model(nodes, [], [info("y", dtype=TensorProto.UNDEFINED)])))[0]
    assert result.dtype == np.asarray(expected).dtype
    np.testing.assert_array_equal(result, expected)


def test_sparse_initialiser_is_densified():
    sparse = helper.make_sparse_tensor(
        numpy_helper.from_array(np.array([2.0], np.float32), "w"), numpy_helper.from_array(np.array([3])), [2, 2]
    )
    proto = model([helper.make_node("Add", ["x", "w"], ["y"])], [info("x", [2, 2])], [info("y")])
    proto.graph.sparse_initializer.append(sparse)
    np.testing.assert_array_equal(import_model(proto).params["w"], [[0, 0], [0, 2]])
    proto.graph.sparse_initializer[0].dims[:] = [1 << 40, 1 << 40]
    with pytest.raises(InvalidModel, match=r"dense shape .* takes more than"):
        import_model(proto)


def test_dimension_parameters():
    shape = ["N", "2*N + 1", "past sequence", "?", "", "-1", 4]
    proto = model([helper.make_node("Relu", ["x"], ["y"])], [info("x", shape)], [info("y")])
    proto.graph.input[0].type.tensor_type.shape.dim[4].dim_param = ""
    n = dims.symbol("N")
    found = import_model(proto).graph.inputs[0].shape
    assert found[:3] == (n, 2 * n + 1, dims.symbol("past sequence"))
    assert len({*found[3:6]}) == 3
    assert found[6] == 4


def test_declared_shapes_decide_nothing():
    nodes = [helper.make_node("NonZero", ["x"], ["i"]), helper.make_node("Relu", ["x"], ["y"])]
    proto = model(nodes, [info("x", [4])], [info("i", [1, "found"], TensorProto.INT64), info("y", [7])])
    with pytest.warns(DeclarationWarning, match=r"tensor 'y' is declared as \[7\], but is \[4\]"):
        indices, y = import_model(proto).graph.outputs
    assert indices.shape[0] == 1
    assert indices.shape[1] != dims.symbol("found")
    assert y.shape == (4,)


def test_metadata_and_doc_strings():
    proto = model([helper.make_node("Relu", ["x"], ["y"])], [info("x", [1])], [info("y")])
    proto.producer_name, proto.doc_string, proto.model_version = "somebody", "about", 3
    helper.set_model_props(proto, {"author": "me"})
    meta = import_model(proto).meta
    assert meta["author"] == "me"
    assert meta["onnx.producer_name"] == "somebody"
    assert meta["onnx.doc_string"] == "about"
    assert meta["onnx.model_version"] == "3"


def test_duplicate_names_get_a_suffix_that_metadata_keep():
    nodes = [helper.make_node("Relu", ["x"], ["a"], name="n"), helper.make_node("Neg", ["a"], ["y"], name="n")]
    found = import_model(model(nodes, [info("x", [1])], [info("y"), info("y")]))
    assert found.graph.output_names == ("y", "y_1")
    assert json.loads(found.meta["onnx.renamed"]) == {"y_1": "y", "n_1": "n"}


def test_the_last_of_several_constants_with_one_name_counts():
    values = [helper.make_node("Constant", [], ["c"], value_float=float(v)) for v in (1, 2)]
    found = import_model(
        model([values[0], helper.make_node("Add", ["x", "c"], ["y"]), values[1]], [info("x", [1])], [info("y")])
    )
    assert run(found, x=np.zeros(1, np.float32))[0] == 2
    assert json.loads(found.meta["onnx.replaced"]) == ["c"]


# --- functions ------------------------------------------------------------------------------------


def function(name, nodes, inputs, outputs, attributes=(), opset=21, **more):
    return helper.make_function(
        "mine", name, inputs, outputs, nodes, [helper.make_opsetid("", opset), helper.make_opsetid("mine", 1)],
        attributes, **more,
    )  # fmt: skip


def reference(node, name, to):
    node.attribute.add(name=name, type=onnx.AttributeProto.FLOAT, ref_attr_name=to)
    return node


def test_functions_are_inlined_with_attributes_and_defaults():
    leaky = reference(helper.make_node("LeakyRelu", ["a"], ["b"]), "alpha", "slope")
    inner = function("Inner", [leaky], ["a"], ["b"], attribute_protos=[helper.make_attribute("slope", 0.5)])
    call = reference(helper.make_node("Inner", ["a"], ["b"], domain="mine"), "slope", "steep")
    outer = function("Outer", [call], ["a"], ["b"], ["steep"])
    nodes = [
        helper.make_node("Outer", ["x"], ["y"], domain="mine", steep=0.25, name="call"),
        helper.make_node("Inner", ["x"], ["z"], domain="mine"),
    ]
    proto = model(nodes, [info("x", [1])], [info("y"), info("z")], functions=[inner, outer], domains=["mine"])
    found = import_model(proto)
    assert [float(r[0]) for r in run(found, x=np.array([-1], np.float32))] == [-0.25, -0.5]
    assert found.graph.output_names == ("y", "z")


def test_functions_have_their_own_opset_and_may_lack_operands():
    squeeze = helper.make_node("Squeeze", ["a"], ["s"], axes=[0])  # an attribute until opset 13
    clip = helper.make_node("Clip", ["s"], ["b"], min=0.0)
    body = function("Old", [squeeze, clip], ["a", "unused"], ["b"], opset=10)
    nodes = [helper.make_node("Old", ["x"], ["y"], domain="mine")]
    found = import_model(model(nodes, [info("x", [1, 2])], [info("y")], functions=[body], domains=["mine"]))
    np.testing.assert_array_equal(run(found, x=np.array([[-1, 2]], np.float32))[0], [0, 2])


def test_a_function_that_calls_itself_is_refused():
    body = function("Again", [helper.make_node("Again", ["a"], ["b"], domain="mine")], ["a"], ["b"])
    nodes = [helper.make_node("Again", ["x"], ["y"], domain="mine")]
    with pytest.raises(InvalidModel, match=r"mine\.Again calls itself"):
        import_model(model(nodes, [info("x", [1])], [info("y")], functions=[body], domains=["mine"]))


def test_functions_that_unfold_exponentially_are_refused(monkeypatch):
    monkeypatch.setenv("GRAPHKIT_MAX_NODES", "1000")
    levels = [function("F0", [helper.make_node("Relu", ["a"], ["b"])], ["a"], ["b"])]
    for i in range(1, 20):
        calls = [helper.make_node(f"F{i - 1}", ["a"], ["t"], domain="mine"),
                 helper.make_node(f"F{i - 1}", ["t"], ["b"], domain="mine")]  # fmt: skip
        levels.append(function(f"F{i}", calls, ["a"], ["b"]))
    nodes = [helper.make_node("F19", ["x"], ["y"], domain="mine")]
    with pytest.raises(InvalidModel, match="more than the limit of 1000"):
        import_model(model(nodes, [info("x", [1])], [info("y")], functions=levels, domains=["mine"]))


# --- errors ---------------------------------------------------------------------------------------


def test_unknown_operators_are_listed_all_at_once(tmp_path):
    nodes = [
        helper.make_node("Frobnicate", ["x"], ["a"], name="first"),
        helper.make_node("Frobnicate", ["a"], ["b"], name="second"),
        helper.make_node("Secret", ["b"], ["y"], domain="com.example", name="third"),
    ]
    path = tmp_path / "odd.onnx"
    onnx.save(model(nodes, [info("x", [1])], [info("y")], domains=["com.example"]), path)
    with pytest.raises(UnsupportedOperator) as caught:
        import_model(path)
    text = str(caught.value)
    assert "odd.onnx: 2 operators" in text
    assert "ai.onnx.Frobnicate: 'first', 'second'" in text
    assert "com.example.Secret: 'third'" in text
    assert text.endswith("and import it before you load the file (docs/operators.md)")


def test_operators_of_onnxruntime_alone_have_their_own_hint():
    node = helper.make_node("Conv", ["x"], ["y"], domain="com.microsoft.nchwc")
    with pytest.raises(UnsupportedOperator, match=r"ORT_ENABLE_EXTENDED or lower$"):
        import_model(model([node], [info("x", [1])], [info("y")], domains=["com.microsoft.nchwc"]))


def test_shape_conflicts_name_node_and_both_shapes():
    nodes = [helper.make_node("Add", ["x", "w"], ["y"], name="sum")]
    proto = model(nodes, [info("x", [4, 5])], [info("y")], {"w": W})
    with pytest.raises(InvalidModel, match=r"node 'sum'.*\[4, 5\] and \[3, 2\]"):
        import_model(proto)


def test_input_without_a_type():
    proto = model([helper.make_node("Relu", ["x"], ["y"])], [info("x", [1])], [info("y")])
    proto.graph.input[0].ClearField("type")
    with pytest.raises(InvalidModel, match="input 'x' has no type"):
        import_model(proto)


def test_random_operators_share_one_state_with_streams_of_their_own():
    nodes = [
        helper.make_node("RandomNormal", [], ["a"], shape=[3]),
        helper.make_node("RandomNormal", [], ["b"], shape=[3]),
    ]
    graph = import_model(model(nodes, [], [info("a"), info("b")])).graph
    assert [v.role for v in graph.inputs] == ["rng"]
    a, b = evaluate(graph, [np.array([1, 0], np.uint64)])
    assert a.dtype == DType.FLOAT32.numpy
    assert not np.array_equal(a, b)
