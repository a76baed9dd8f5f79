"""Files that break a rule of the format where other runtimes take them: read as those do, with a warning."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from combinations import in_one_item
from onnx import TensorProto, helper, numpy_helper

import graphkit as gk
from graphkit.errors import FileWarning, InvalidModel, UnsupportedError
from graphkit.onnx_io.compare import OnnxRuntimeModel
from graphkit.onnx_io.importer import import_model
from graphkit.ops.evaluate import evaluate

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4) - 7


def single(op, inits=(), outputs=1, opset=21, x=X, ir=8, domain="", imports=None, **attrs):
    tensors = [t if isinstance(t, TensorProto) else numpy_helper.from_array(t, f"c{i}") for i, t in enumerate(inits)]
    node = helper.make_node(op, ["x", *(t.name for t in tensors)], [f"y{i}" for i in range(outputs)], name="node")
    node.domain = domain
    node.attribute.extend(helper.make_attribute(name, value) for name, value in attrs.items())
    infos = [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)]
    untyped = [onnx.ValueInfoProto(name=name) for name in node.output]
    graph = helper.make_graph([node], "g", infos, untyped, tensors)
    return helper.make_model(graph, opset_imports=imports or [helper.make_opsetid("", opset)], ir_version=ir)


def run(proto, x=X):
    found = import_model(proto)
    return evaluate(found.graph, [found.params.get(n, x) for n in found.graph.input_names])


def test_an_attribute_that_no_version_has():
    vectors = [np.array([1, 2, 0.5], np.float32)] * 4
    with pytest.warns(FileWarning, match=r"node 'node' \(BatchNormalization\): .* no attribute 'epsion'"):
        (found,) = run(single("BatchNormalization", vectors, epsion=0.5))
    np.testing.assert_array_equal(found, run(single("BatchNormalization", vectors))[0])
    # One of an operator that a rule builds, and of one that the standard's own function defines.
    with pytest.warns(FileWarning, match="'colour'"):
        run(single("Softmax", opset=11, axis=1, colour=3))
    with pytest.warns(FileWarning, match="'colour'"):
        import_model(single("NegativeLogLikelihoodLoss", [np.array([[0] * 4] * 2)], colour=3))


def test_an_attribute_that_another_version_has():
    # It would change the result.
    with pytest.raises(UnsupportedError, match="attribute axes"):
        run(single("ReduceSum", axes=[1]))


def test_an_attribute_of_an_operator_that_is_not_the_standards():
    with pytest.raises(UnsupportedError, match="colour"):
        run(single("Gelu", domain="com.microsoft", colour=3))


def test_a_domain_that_is_imported_twice():
    # ReduceMax has its axes as an attribute up to 17: the last import counts.
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx", 13)]
    proto = single("ReduceMax", axes=[1], imports=imports)
    with pytest.warns(FileWarning, match="imported in versions 21 and 13"):
        (found,) = run(proto)
    np.testing.assert_array_equal(found, OnnxRuntimeModel(proto).run({"x": X})["y0"])


def test_the_same_version_twice_is_no_matter():
    (found,) = run(single("Relu", imports=[helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx", 21)]))
    np.testing.assert_array_equal(found, np.maximum(X, 0))


def test_an_initialiser_that_is_given_twice(tmp_path):
    proto = single("Mul", [np.array([2], np.float32)])
    proto.graph.initializer.append(numpy_helper.from_array(np.array([3], np.float32), "c0"))
    with pytest.warns(FileWarning, match="initializer 'c0' is given twice"):
        (found,) = run(proto)
    np.testing.assert_array_equal(found, OnnxRuntimeModel(proto).run({"x": X})["y0"])


@pytest.mark.parametrize("large_first", [False, True])
def test_large_and_small_initialisers_of_one_name(tmp_path, large_first):
    # Large ones are left in the file, by name.
    x = np.ones((2, 1 << 17), np.float32)
    large, small = np.full(1 << 17, 5, np.float32), np.array([3], np.float32)
    pair = (large, small) if large_first else (small, large)
    proto = single("Mul", [numpy_helper.from_array(a, "c0") for a in pair], x=x)
    del proto.graph.node[0].input[2:]
    onnx.save(proto, tmp_path / "twice.onnx")
    with pytest.warns(FileWarning, match="given twice"):
        net = gk.load(tmp_path / "twice.onnx")
    np.testing.assert_array_equal(net.compile(threads=1).run({"x": x})["y0"], x * pair[-1])


def test_an_initialiser_without_a_name():
    proto = single("Relu")
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(2, np.float32), ""))
    with pytest.warns(FileWarning, match="no name"):
        np.testing.assert_array_equal(run(proto)[0], np.maximum(X, 0))


@pytest.mark.parametrize("bounds", [([-0.5], [2.0]), (-0.5, [2.0])])
def test_bounds_of_one_element(bounds):
    proto = single("Clip", [np.array(b, np.float32) for b in bounds])
    np.testing.assert_array_equal(run(proto)[0], OnnxRuntimeModel(proto).run({"x": X})["y0"])


@in_one_item()
@pytest.mark.parametrize("condition", [[True], [[False]], False])
def test_conditions_of_one_element(condition):
    branches = {
        f"{key}_branch": helper.make_graph(
            [helper.make_node(op, ["x"], ["b"])], key, [], [onnx.ValueInfoProto(name="b")]
        )
        for key, op in (("then", "Relu"), ("else", "Neg"))
    }
    proto = single("Relu", [np.array(condition)])
    proto.graph.node[0].CopyFrom(helper.make_node("If", ["c0"], ["y0"], **branches))
    np.testing.assert_array_equal(run(proto)[0], OnnxRuntimeModel(proto).run({"x": X})["y0"])


def test_an_if_without_a_condition():
    branch = helper.make_graph([helper.make_node("Relu", ["x"], ["b"])], "b", [], [onnx.ValueInfoProto(name="b")])
    proto = single("Relu")
    for given in ([], [""]):
        proto.graph.node[0].CopyFrom(helper.make_node("If", given, ["y0"], then_branch=branch, else_branch=branch))
        with pytest.raises(InvalidModel, match="input 0 is missing"):
            import_model(proto)


@in_one_item()
@pytest.mark.parametrize(
    ("op", "opset", "attrs", "outputs"),
    [
        ("Concat", 4, {"axis": -1}, 1),
        ("Softmax", 9, {"axis": -2}, 1),
        ("LogSoftmax", 9, {"axis": -1}, 1),
        ("Unsqueeze", 9, {"axes": [-1]}, 1),
        ("ReduceSum", 9, {"axes": [-1]}, 1),
        ("ReduceMean", 7, {"axes": [-2]}, 1),
        ("ArgMax", 9, {"axis": -1}, 1),
        ("Split", 9, {"axis": -1}, 2),
        ("Slice", 9, {"axes": [-1], "starts": [0], "ends": [2]}, 1),
        ("TopK", 9, {"axis": -2, "k": 1}, 2),
    ],
)
def test_negative_axes_where_the_version_had_none(op, opset, attrs, outputs):
    proto = single(op, opset=opset, outputs=outputs, **attrs)
    expected = OnnxRuntimeModel(proto, optimize=False).run({"x": X}).values()
    for found, wanted in zip(run(proto), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@in_one_item()
@pytest.mark.parametrize("version", range(1, 15))
def test_every_version_of_the_format(version):
    np.testing.assert_array_equal(run(single("Relu", ir=version, opset=7))[0], np.maximum(X, 0))


def odd(change):
    proto = single("Relu")
    change(proto.graph)
    return proto


@in_one_item()
@pytest.mark.parametrize(
    "change",
    [
        lambda g: g.ClearField("name"),
        lambda g: g.node[0].input.extend(["", ""]),
        lambda g: g.node[0].output.extend(["", ""]),
        lambda g: g.value_info.extend([helper.make_tensor_value_info("y0", 1, [2, 3, 4])] * 2),
        lambda g: g.value_info.add(name="nobody"),
        lambda g: g.initializer.add(name="unused", data_type=1, dims=[4], float_data=[1.0]),
        lambda g: g.initializer.add(name="unused", data_type=99, dims=[-4]),
        lambda g: g.output.add(name="x"),
    ],
)
def test_what_says_nothing(change):
    np.testing.assert_array_equal(run(odd(change))[0], np.maximum(X, 0))


def test_operators_of_microsoft_need_no_import():
    proto = single("QuickGelu", domain="com.microsoft")
    np.testing.assert_allclose(run(proto)[0], OnnxRuntimeModel(proto).run({"x": X})["y0"], rtol=1e-5, atol=1e-6)


@in_one_item()
@pytest.mark.parametrize(
    ("code", "field", "dtype"),
    [
        (TensorProto.FLOAT16, "int32_data", np.float16),
        (TensorProto.UINT8, "int32_data", np.uint8),
        (TensorProto.UINT32, "uint64_data", np.uint32),
    ],
)
def test_fields_that_hold_other_types(code, field, dtype):
    values = np.array([1, 2, 3, 4], dtype)
    stored = values.view(np.uint16) if dtype is np.float16 else values
    tensor = TensorProto(name="c0", data_type=code, dims=[4])
    getattr(tensor, field).extend(stored.tolist())
    x = np.ones((2, 4), dtype)
    np.testing.assert_array_equal(run(single("Mul", [tensor], x=x), x)[0], x * values)


@in_one_item()
@pytest.mark.parametrize(
    ("code", "field"),
    [(TensorProto.FLOAT16, "float_data"), (TensorProto.INT64, "int32_data"), (TensorProto.DOUBLE, "float_data")],
)
def test_fields_that_hold_no_such_type(code, field):
    # ONNX Runtime refuses these files too.
    tensor = TensorProto(name="c0", data_type=code, dims=[4])
    getattr(tensor, field).extend([1, 2, 3, 4])
    with pytest.raises(InvalidModel, match=r"initializer 'c0'.*0 are stored"):
        run(single("Mul", [tensor], x=np.ones(4, helper.tensor_dtype_to_np_dtype(code))))
