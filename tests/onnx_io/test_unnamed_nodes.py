"""Nodes of a file that have no name are named by their first result, or by their place in the file."""

import gc

import onnx
import pytest
from onnx import TensorProto, helper

from graphkit.errors import GraphkitError, InvalidModel, UnsupportedOperator
from graphkit.onnx_io.importer import import_model
from graphkit.onnx_io.outline import outline
from graphkit.onnx_io.scopes import RawNode, Region


def _model(nodes, name="main", outputs=("y",), functions=()):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    c = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    given = [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs]
    graph = helper.make_graph(nodes, name, [x, c], given)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=functions)


def _message(model, kind=GraphkitError):
    with pytest.raises(kind) as error:
        import_model(model)
    assert "unnamed node" not in str(error.value)
    assert "''" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("name", ["main", ""])
def test_node_without_results_is_named_by_index(name):
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("MatMul", ["x", "x"], [""])]
    place = "graph 'main'" if name else "the file's graph"
    assert f"node 1 (MatMul) of {place}: " in _message(_model(nodes, name))


def test_node_with_named_result_is_named_by_it() -> None:
    assert "node of 'y' MatMul(x: " in _message(_model([helper.make_node("MatMul", ["x", "x"], ["y"])]))


def test_a_named_node_is_named_once() -> None:
    message = _message(_model([helper.make_node("MatMul", ["x", "x"], ["y"], name="product")]))
    assert message.startswith("main: node 'product' MatMul(x: ")
    assert message.count("'product'") == 1


def test_absent_operands_are_called_absent() -> None:
    message = _message(_model([helper.make_node("Clip", ["x", "", "x"], ["y"], name="clip")]))
    assert "Clip(x: float32[2, 3], absent, x: float32[2, 3])" in message


def test_index_is_that_of_the_file_not_of_the_order() -> None:
    nodes = [
        helper.make_node("Relu", ["late"], ["y"]),
        helper.make_node("Neg", ["x"], ["late"]),
        helper.make_node("MatMul", ["x", "x"], [""]),
    ]
    assert "node 2 (MatMul) of graph 'main'" in _message(_model(nodes))


@pytest.mark.parametrize("named", [True, False])
def test_node_in_a_branch_names_branch_and_outer_node(named):
    typed = helper.make_tensor_value_info("t", TensorProto.FLOAT, None)
    bad = [helper.make_node("Relu", ["x"], ["t"]), helper.make_node("Add", ["x", "c"], [""])]
    branches = {
        "then_branch": helper.make_graph(bad, "a", [], [typed]),
        "else_branch": helper.make_graph([helper.make_node("Relu", ["x"], ["t"])], "b", [], [typed]),
    }
    node = helper.make_node("If", ["c"], ["y"], name="choose" if named else "", **branches)
    outer = "node 'choose' (If)" if named else "node of 'y' (If)"
    assert f"node 1 (Add) of the then_branch of {outer}: " in _message(_model([node]))


def test_node_in_a_function_names_the_function() -> None:
    body = [helper.make_node("Relu", ["a"], ["b"]), helper.make_node("MatMul", ["a", "a"], [""])]
    function = helper.make_function("own", "F", ["a"], ["b"], body, [helper.make_opsetid("", 18)])
    call = helper.make_node("F", ["x"], ["y"], domain="own")
    assert "node 1 (MatMul) of function own.F" in _message(_model([call], functions=[function]))


def test_unknown_operators_list_places_of_unnamed_nodes() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Nope", ["x"], [""], domain="own")]
    assert "own.Nope: node 1 (own.Nope) of graph 'main'" in _message(_model(nodes), UnsupportedOperator)


def test_attribute_given_twice_names_the_unnamed_node() -> None:
    node = helper.make_node("Relu", ["x"], [""])
    node.attribute.extend([helper.make_attribute("a", 1), helper.make_attribute("a", 2)])
    nodes = [helper.make_node("Relu", ["x"], ["y"]), node]
    assert "node 1 (Relu) of graph 'main': attribute 'a' is given twice" in _message(_model(nodes), InvalidModel)


def test_undefined_name_in_an_unnamed_graph_is_located() -> None:
    assert "the file's graph: node of 'y' (Relu): input 'gone' is not" in _message(
        _model([helper.make_node("Relu", ["gone"], ["y"])], ""), InvalidModel
    )
    with pytest.raises(InvalidModel, match="the file's graph: node of 'y'"):
        outline(_model([helper.make_node("Relu", ["gone"], ["y"])], ""))


def test_nodes_that_import_makes_name_the_file_node() -> None:
    nodes = [helper.make_node("Softplus", ["x"], ["s"], name="soft"), helper.make_node("HardSwish", ["s"], ["y"])]
    model = onnx.version_converter.convert_version(_model(nodes), 18)
    graph = import_model(model).graph
    for node in graph.nodes:
        assert node.name or any(v.name for v in node.outputs) or "made by" in node.describe()


def test_imported_file_is_freed_without_a_collection() -> None:
    branches = {
        key: helper.make_graph(
            [helper.make_node("Relu", ["x"], ["t"])],
            "",
            [],
            [helper.make_tensor_value_info("t", TensorProto.FLOAT, None)],
        )
        for key in ("then_branch", "else_branch")
    }
    model = _model([helper.make_node("If", ["c"], ["y"], **branches)])
    gc.collect()
    gc.disable()
    try:
        import_model(model)
        assert not [held for held in gc.get_objects() if type(held) in (RawNode, Region)]
    finally:
        gc.enable()
