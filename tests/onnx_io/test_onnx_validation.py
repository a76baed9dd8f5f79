"""Files that are not models, and models that are not well formed: each with its own message."""

from __future__ import annotations

import contextlib
import gzip
import random

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from combinations import in_one_item
from onnx import TensorProto, helper, numpy_helper

from graphkit.errors import GraphkitError, InvalidModel, TypeMismatch, UnsupportedError, UsageError
from graphkit.onnx_io.codes import NEWEST_OPSET
from graphkit.onnx_io.importer import import_model

FLOAT = TensorProto.FLOAT


def info(name, shape=None):
    return helper.make_tensor_value_info(name, FLOAT, shape)


def model(nodes=None, opset=21, inits=()):
    nodes = nodes or [helper.make_node("MatMul", ["x", "w"], ["y"], name="project")]
    inits = inits or [numpy_helper.from_array(np.ones((3, 2), np.float32), "w")]
    graph = helper.make_graph(nodes, "g", [info("x", ["N", 3])], [info("y")], inits)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


GOOD = model().SerializeToString()


@in_one_item()
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (GOOD[:-20], r"truncated: \d+ bytes are missing"),
        (GOOD[: len(GOOD) // 2], "truncated"),
        (b"<!DOCTYPE html><html><body>404</body></html>", "HTML"),
        (b"\n  <html>", "HTML"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "git-lfs pointer"),
        (b"PK\x03\x04 archive/data.pkl", "zip archive"),
        (gzip.compress(GOOD), "gzip"),
        (b'{"graph": {}}', "JSON"),
        (b"hello, this is some text", "not an ONNX model; graphkit also reads its own .json files and run folders"),
        (bytes(range(7, 200)), "not an ONNX model|damaged|truncated"),
        (b"\x08\x08", "has no graph"),
    ],
)
def test_files_that_are_not_models(tmp_path, content, message):
    path = tmp_path / "some.onnx"
    path.write_bytes(content)
    with pytest.raises(InvalidModel, match=message) as caught:
        import_model(path)
    assert str(path) in str(caught.value)
    assert caught.value.exit_code == 4


def test_missing_files_and_directories(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        import_model(tmp_path / "none.onnx")
    with pytest.raises(InvalidModel, match="is a directory"):
        import_model(tmp_path)


@pytest.mark.parametrize(("opset", "message"), [(0, "older than 1"), (NEWEST_OPSET + 1, "newer")])
def test_opsets_outside_the_range(opset, message):
    with pytest.raises(UnsupportedError, match=message):
        import_model(model(opset=opset))


@in_one_item()
@pytest.mark.parametrize("version", [1 << 40, -(1 << 40), 1 << 31])
def test_versions_that_no_domain_has(version):
    proto = model()
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", version))
    with pytest.raises(InvalidModel, match=f"version {version} of domain 'ai.onnx.ml'"):
        import_model(proto)


def test_no_opset():
    proto = model()
    del proto.opset_import[:]
    with pytest.raises(InvalidModel, match="does not say which opset"):
        import_model(proto)


def test_a_kernel_larger_than_its_input_names_the_node():
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="conv")
    weight = numpy_helper.from_array(np.zeros((4, 1, 9, 9), np.float32), "w")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 1, 8, 8))
    graph = helper.make_graph([node], "g", [x], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], [weight])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    with pytest.raises(TypeMismatch, match=r"node 'conv' Conv\(.*the kernel is larger than the padded input"):
        import_model(proto)
    with pytest.raises(Exception, match="Invalid input shape"):
        ort.InferenceSession(proto.SerializeToString()).run(None, {"x": np.zeros((1, 1, 8, 8), np.float32)})


def test_undefined_inputs_and_outputs():
    with pytest.raises(InvalidModel, match=r"node 'n' \(Relu\): input 'ghost' is not defined"):
        import_model(model([helper.make_node("Relu", ["ghost"], ["y"], name="n")]))
    with pytest.raises(InvalidModel, match="output 'y' is not defined"):
        import_model(model([helper.make_node("Relu", ["x"], ["z"])]))


def test_single_assignment():
    nodes = [helper.make_node("Relu", ["x"], ["y"], name="a"), helper.make_node("Neg", ["x"], ["y"], name="b")]
    with pytest.raises(InvalidModel, match=r"node 'b' .*output 'y' is defined already, by node 'a'"):
        import_model(model(nodes))
    with pytest.raises(InvalidModel, match="defined already, as an input"):
        import_model(model([helper.make_node("Relu", ["w"], ["x"]), helper.make_node("Neg", ["x"], ["y"])]))


def test_cycles_name_their_nodes():
    nodes = [
        helper.make_node("Add", ["x", "b"], ["a"], name="one"),
        helper.make_node("Neg", ["a"], ["b"], name="two"),
        helper.make_node("Relu", ["b"], ["y"], name="three"),
    ]
    with pytest.raises(InvalidModel, match=r"depend on each other: .*'one'.*'two'|'two'.*'one'"):
        import_model(model(nodes))


def tensor(**fields):
    return TensorProto(name="w", **{"data_type": FLOAT, "dims": [3, 2], **fields})


@in_one_item()
@pytest.mark.parametrize(
    ("proto", "message"),
    [
        (tensor(raw_data=b"\0" * 20), r"float32\[3, 2\] needs 24 bytes, but 20 are stored"),
        (tensor(float_data=[1.0] * 7), "needs 6 entries in float_data, but 7 are stored"),
        (tensor(dims=[-3, 2], raw_data=b""), r"negative dimension in \[-3, 2\]"),
        (tensor(dims=[0, 2**62, 2**62], raw_data=b""), "too large for an array"),
        (tensor(dims=[1 << 40, 1 << 40], raw_data=b"\0" * 8), "are stored"),
        (tensor(dims=[1] * 100, raw_data=b"\0" * 4), "rank 100"),
        (tensor(data_type=999, raw_data=b""), "unknown tensor element type 999"),
        (tensor(data_type=TensorProto.STRING, string_data=[b"\xff"] * 6), "not UTF-8"),
        (tensor(data_type=TensorProto.STRING, raw_data=b"x"), "strings cannot be stored as raw data"),
    ],
)
def test_tensors_are_checked_before_they_are_allocated(proto, message):
    with pytest.raises(InvalidModel, match=message):
        import_model(model(inits=[proto]))


def test_declared_dimensions_below_minus_one():
    proto = model()
    proto.graph.input[0].type.tensor_type.shape.dim[1].dim_value = -7
    with pytest.raises(InvalidModel, match="negative dimension -7"):
        import_model(proto)


def test_attributes_that_do_not_fit_are_invalid_models():
    nodes = [helper.make_node("Transpose", ["x"], ["y"], perm=[0, 5], name="turn")]
    with pytest.raises(InvalidModel, match="node 'turn'"):
        import_model(model(nodes))


@pytest.mark.filterwarnings("ignore::graphkit.errors.FileWarning")
def test_damaged_files_raise_only_graphkit_errors():
    generator = random.Random(0)
    for _ in range(400):
        data = bytearray(GOOD)
        for _ in range(generator.randint(1, 4)):
            data[generator.randrange(len(data))] = generator.randrange(256)
        with contextlib.suppress(GraphkitError):
            import_model(bytes(data))


def test_onnx_checker_is_not_the_gate():
    nodes = [helper.make_node("Relu", ["h"], ["y"]), helper.make_node("MatMul", ["x", "w"], ["h"])]
    with pytest.raises(onnx.checker.ValidationError):
        onnx.checker.check_model(model(nodes))
    assert len(import_model(model(nodes)).graph.nodes) == 2
