"""Large initialisers are cut out of a file before parsing. Errors are the same as for a file that is read whole."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphkit.errors import FileChanged, GraphkitError, InvalidModel
from graphkit.ir.stored import StoredArray, StoredFile
from graphkit.ir.types import FLOATS, DType
from graphkit.onnx_io import wire
from graphkit.onnx_io.importer import import_model
from graphkit.onnx_io.outline import outline
from graphkit.onnx_io.tensors import CODES, to_proto
from graphkit.onnx_io.validate import read_model

rng = np.random.default_rng(0)
WEIGHTS = {
    "w": rng.standard_normal((200, 130)).astype(np.float32),
    "half": rng.standard_normal((300, 130)).astype(np.float16),
    "small": rng.standard_normal((1, 130)).astype(np.float32),
    "ids": np.arange(20_000),
}


def model(**changed: TensorProto) -> onnx.ModelProto:
    tensors = {name: numpy_helper.from_array(a, name) for name, a in WEIGHTS.items()} | changed
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Cast", ["half"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["wide"], ["total"], keepdims=0),
        helper.make_node("Add", ["a", "small"], ["b"]),
        helper.make_node("Add", ["b", "total"], ["c"]),
        helper.make_node("ReduceMax", ["ids"], ["m"], keepdims=0),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 200])]
    outputs = [
        helper.make_tensor_value_info("c", TensorProto.FLOAT, ["N", 130]),
        helper.make_tensor_value_info("m", TensorProto.INT64, []),
    ]
    graph = helper.make_graph(nodes, "large", inputs, outputs, list(tensors.values()))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "net.onnx"
    made.write_bytes(model().SerializeToString())
    return made


def test_the_parser_sees_everything_else(path: Path) -> None:
    parts = wire.cut_out(StoredFile(path))
    assert parts is not None
    data, places = parts
    skeleton, whole = onnx.ModelProto.FromString(data), model()
    cut = [t for t in whole.graph.initializer if t.name in places]
    assert {t.name for t in cut} == {"w", "half", "ids"}
    for tensor in cut:
        np.testing.assert_array_equal(places[tensor.name].read(), np.frombuffer(tensor.raw_data, np.uint8))
        tensor.ClearField("raw_data")
    assert skeleton == whole


def test_the_same_model_as_from_bytes(path: Path) -> None:
    from_file, from_bytes = import_model(path), import_model(path.read_bytes())
    assert str(from_file.graph) == str(from_bytes.graph)
    assert list(from_file.params) == list(from_bytes.params)
    assert {n for n, a in from_file.params.items() if isinstance(a, StoredArray)} == {"w", "half"}
    for name, stored in from_file.params.items():
        array = np.asarray(stored)
        np.testing.assert_array_equal(array, from_bytes.params[name])
        assert not array.flags.writeable
        assert array.flags.aligned
    assert outline(path) == outline(path.read_bytes())


def test_a_file_of_small_tensors_is_read_whole(tmp_path: Path) -> None:
    small = tmp_path / "small.onnx"
    tensors = {n: numpy_helper.from_array(a[:1].astype(a.dtype), n) for n, a in WEIGHTS.items()}
    small.write_bytes(model(**tensors).SerializeToString())
    assert wire.cut_out(StoredFile(small)) is None


@pytest.mark.parametrize("size", [0, 1, 10, 1000, -1000, -1])
def test_a_truncated_file_says_so(path: Path, size: int) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:size])
    with pytest.raises(InvalidModel, match=r"empty|truncated|damaged|not an ONNX model"):
        import_model(path)


def test_a_file_that_becomes_shorter(path: Path) -> None:
    parsed = read_model(path)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(FileChanged, match=r"net.onnx was overwritten while it was in use"):
        parsed.large["w"].read()


def test_data_that_do_not_fit_their_shape(tmp_path: Path) -> None:
    wrong = numpy_helper.from_array(WEIGHTS["w"], "w")
    wrong.dims[0] = 201
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(model(w=wrong).SerializeToString())
    with pytest.raises(InvalidModel, match=r"'w': float32\[201, 130\] needs 104520 bytes, but 104000 are stored"):
        import_model(bad)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::graphkit.errors.FileWarning")
def test_damaged_bytes_are_judged_as_when_read_whole(path: Path) -> None:
    data = bytearray(path.read_bytes())
    # Damage between the tensors and in the structure around them. Damage inside a tensor's data is not an error.
    heads = [i for i in range(len(data)) if i < 400 or i > len(data) - 400]
    for _ in range(300):
        position, old = int(rng.choice(heads)), 0
        old, data[position] = data[position], int(rng.integers(256))
        path.write_bytes(data)
        os.utime(path, (0, 0))  # old enough to be opened at once
        outcomes: list[object] = []
        for source in (path, bytes(data)):
            try:
                made = import_model(source)
                outcomes.append((str(made.graph), {n: np.asarray(a).tobytes() for n, a in made.params.items()}))
            except GraphkitError as error:
                outcomes.append(type(error))
        assert outcomes[0] == outcomes[1], position
        data[position] = old


@pytest.mark.parametrize("default", [False, True], ids=["initializer", "default of an input"])
@pytest.mark.parametrize("external", [False, True], ids=["inside", "external"])
@pytest.mark.parametrize("dtype", [d for d in CODES if d is not DType.STRING], ids=str)
def test_every_element_type(tmp_path: Path, dtype: DType, external: bool, default: bool) -> None:
    """Parameters and constants are read correctly at positions that are not a multiple of an element's size."""
    limit = {DType.INT4: 16, DType.UINT4: 16, DType.INT2: 4, DType.UINT2: 4, DType.FLOAT4E2M1: 16, DType.BOOL: 2}
    raw = rng.integers(0, limit.get(dtype, 256), 300_002 * dtype.itemsize).astype(np.uint8)
    array = raw.view(dtype.numpy).reshape(2, -1)
    if dtype in (DType.INT4, DType.INT2):
        array = (raw.astype(np.int8) - limit[dtype] // 2).astype(dtype.numpy).reshape(2, -1)
    weight = to_proto(array, "w")
    inputs = [helper.make_tensor_value_info("w", weight.data_type, array.shape)] if default else []
    outputs = [helper.make_tensor_value_info("y", weight.data_type, array.shape)]
    graph = helper.make_graph([helper.make_node("Identity", ["w"], ["y"])], "g", inputs, outputs, [weight])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=12)
    path = tmp_path / "net.onnx"
    found = []
    if external:
        (tmp_path / "w.data").write_bytes(b"abc" + weight.raw_data)
        weight = proto.graph.initializer[0]
        weight.ClearField("raw_data")
        weight.data_location = TensorProto.EXTERNAL
        for key, text in (("location", "w.data"), ("offset", "3")):
            weight.external_data.add(key=key, value=text)
    else:
        found.append(import_model(proto.SerializeToString()))
    path.write_bytes(proto.SerializeToString())
    found.append(import_model(path))
    for imported in found:
        held = imported.params.get("w")
        kept = np.asarray(held if held is not None else imported.graph.outputs[0].node.inputs[0].node.op.value.array)
        assert kept.dtype == array.dtype
        assert kept.tobytes() == array.tobytes()
        assert (held is None) == (dtype not in FLOATS and not default)
    stays = bool(found[-1].params) and dtype not in limit
    assert isinstance(found[-1].params.get("w"), StoredArray) == stays
