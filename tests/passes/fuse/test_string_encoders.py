"""Columns of strings that one operator encodes: which are joined, and that the results stay the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from combinations import in_one_item
from onnx import TensorProto, helper

import graphkit as gk
from graphkit.ir.graph import Value
from graphkit.onnx_io.compare import OnnxRuntimeModel
from graphkit.ops import F
from graphkit.ops._base import constant
from graphkit.passes.fuse.string_encoders import fuse_string_encoders

WORDS = np.array([["a", "b", "c"], ["b", "", "a"], ["č", "a", "b"], ["a", "z", "c"]], object)


def columns(width: int | None = 3) -> Value:
    return gk.input("x", ["N", width or "C"], "string")


def column(x: Value, index: int) -> Value:
    return F.gather(x, constant(np.array([index])), axis=1)


def one_hot(x: Value, *words: str, **options: Any) -> Value:
    return F.one_hot_encoder(x, cats_strings=list(words), **options)


def label(x: Value, *words: str, **options: Any) -> Value:
    return F.label_encoder(x, keys_strings=list(words), values_int64s=[10 + i for i in range(len(words))], **options)


def names(net: gk.Model) -> list[str]:
    return [node.op.name for node in fuse_string_encoders(net.graph).nodes if node.op.name != "Constant"]


def check(net: gk.Model, feeds: dict[str, Any]) -> None:
    """The same with and without passes, and as ONNX Runtime computes it."""
    theirs = OnnxRuntimeModel(net.to_onnx()).run(feeds)
    for optimize in (True, False):
        ours = net.compile(optimize=optimize).run(feeds)
        for name, array in theirs.items():
            np.testing.assert_array_equal(ours[name], array, err_msg=name)
            assert ours[name].dtype == array.dtype


def test_columns_of_one_matrix_are_one_operator() -> None:
    x = columns()
    parts = [one_hot(column(x, 0), "a", "b"), one_hot(column(x, -1), "c"), one_hot(column(x, 1), "b", "z", "a", "z")]
    net = gk.Model({"y": F.concat(*parts, axis=2)})
    assert names(net) == ["EncodedColumns"]
    executor = net.compile()
    executor.run({"x": WORDS})
    assert [step.op for step in executor.plan.steps if step.kernel == "native"] == ["ai.graphkit.EncodedColumns"]
    for rows in (4, 1, 0):
        check(net, {"x": WORDS[:rows]})


def test_columns_of_several_matrices_are_one_operator() -> None:
    x, y = columns(), gk.input("y", ["N", 1], "string")
    parts = [label(y, "a", "b"), label(column(x, 2), "c", "a", "c", default_int64=-5), label(column(x, 0), "č")]
    net = gk.Model({"z": F.concat(*parts, axis=-1)})
    assert names(net) == ["EncodedColumns"]
    check(net, {"x": WORDS, "y": WORDS[:, 1:2]})


def test_values_of_any_numeric_type() -> None:
    x = columns()
    tables = {"values_floats": [1.5, -2.5], "values_tensor": np.array([2.5, 1e300])}
    for key, values in tables.items():
        parts = [
            F.label_encoder(column(x, i), keys_strings=["a", "b"], **{key: values}, **_default(key)) for i in (0, 1)
        ]
        net = gk.Model({"z": F.concat(*parts, axis=1)})
        assert names(net) == ["EncodedColumns"]
        check(net, {"x": WORDS})


def _default(key: str) -> dict[str, Any]:
    return {"default_tensor": np.array([-1.5])} if key == "values_tensor" else {"default_float": 0.25}


def test_runs_between_other_operands_are_joined() -> None:
    x, n = columns(), gk.input("n", ["N", 2], "int64")
    parts = [label(column(x, 0), "a"), label(column(x, 1), "b"), n, label(column(x, 2), "c")]
    net = gk.Model({"z": F.concat(*parts, axis=1)})
    assert sorted(names(net)) == ["Concat", "EncodedColumns", "Gather", "LabelEncoder"]
    check(net, {"x": WORDS, "n": np.arange(8).reshape(4, 2)})


def test_names_of_results_stay() -> None:
    x = columns()
    net = gk.Model({"z": F.concat(label(column(x, 0), "a"), label(column(x, 1), "b"), axis=1)})
    (before,), (after,) = net.graph.outputs, fuse_string_encoders(net.graph).outputs
    assert after is not before
    assert after.name == before.name


def others() -> dict[str, gk.Model]:
    x = columns()
    zero, one = column(x, 0), column(x, 1)
    shared = label(zero, "a")
    return {
        "along rows": gk.Model({"z": F.concat(label(zero, "a"), label(one, "b"), axis=0)}),
        "read elsewhere": gk.Model({"y": shared, "z": F.concat(shared, label(one, "b"), axis=1)}),
        "one alone": gk.Model({"z": F.concat(label(zero, "a"), F.cast(label(one, "b"), to="int64"), axis=1)}),
        "unknown words fail": gk.Model(
            {"z": F.concat(one_hot(zero, "a", zeros=0), one_hot(one, "b", zeros=0), axis=2)}
        ),
        "whole matrices": gk.Model({"z": F.concat(label(x, "a"), label(x, "b"), axis=1)}),
        "to strings": gk.Model(
            {
                "z": F.concat(
                    *(F.label_encoder(c, keys_strings=["a"], values_strings=["q"]) for c in (zero, one)), axis=1
                )
            }
        ),
    }


@in_one_item()
@pytest.mark.parametrize("name", others())
def test_others_stay(name: str) -> None:
    net = others()[name]
    assert "EncodedColumns" not in names(net)


def test_columns_of_a_matrix_of_unknown_width_are_selected_before() -> None:
    x = columns(None)
    net = gk.Model({"z": F.concat(label(column(x, -1), "c"), label(column(x, 0), "a"), axis=1)})
    assert names(net) == ["Gather", "Gather", "EncodedColumns"]
    check(net, {"x": WORDS})


def test_what_selects_a_column_may_be_read_elsewhere() -> None:
    x = columns()
    zero = column(x, 0)
    net = gk.Model({"y": zero, "z": F.concat(label(zero, "a"), label(column(x, 1), "b"), axis=1)})
    assert sorted(names(net)) == ["EncodedColumns", "Gather"]
    check(net, {"x": WORDS})


def test_rows_that_differ_are_an_error() -> None:
    """Their dimensions have different names, so the sizes are compared in the run."""
    a, b = (gk.input(name, [name.upper(), 1], "string") for name in "ab")
    net = gk.Model({"z": F.concat(label(a, "a"), label(b, "b"), axis=1)})
    for optimize in (True, False):
        with pytest.raises(gk.errors.GraphkitError):
            net.compile(optimize=optimize).run({"a": WORDS[:2, :1], "b": WORDS[:3, :1]})


def test_a_pipeline_as_scikit_learn_writes_it(tmp_path: Any) -> None:
    """An ArrayFeatureExtractor and an encoder for each column, then a Concat and a Reshape."""
    nodes, parts = [], []
    inits = [helper.make_tensor("shape", TensorProto.INT64, [2], [-1, 6])]
    for i, words in enumerate((["a", "b"], ["b", "z", ""], ["c"])):
        inits.append(helper.make_tensor(f"i{i}", TensorProto.INT64, [1], [i]))
        nodes.append(helper.make_node("ArrayFeatureExtractor", ["x", f"i{i}"], [f"c{i}"], domain="ai.onnx.ml"))
        nodes.append(
            helper.make_node("OneHotEncoder", [f"c{i}"], [f"h{i}"], domain="ai.onnx.ml", cats_strings=words, zeros=1)
        )
        parts.append(f"h{i}")
    nodes.append(helper.make_node("Concat", parts, ["all"], axis=2))
    nodes.append(helper.make_node("Reshape", ["all", "shape"], ["y"]))
    graph = helper.make_graph(
        nodes, "pipeline", [helper.make_tensor_value_info("x", TensorProto.STRING, [None, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 6])], inits,
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    path = tmp_path / "pipeline.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    executor = gk.load(path).compile()
    theirs = OnnxRuntimeModel(path).run({"x": WORDS})
    np.testing.assert_array_equal(executor.run({"x": WORDS})["y"], theirs["y"])
    assert [step.op for step in executor.plan.steps if step.kernel == "native"] == ["ai.graphkit.EncodedColumns"]
