"""Small files are read without the protobuf library, with the same result."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from combinations import default_at, in_one_item
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from interrupted_imports import run_in_new_process
from onnx import AttributeProto, ModelProto, TensorProto, helper, numpy_helper

from graphkit.executor.devices.loading import load_native
from graphkit.onnx_io import codes, messages, wire
from graphkit.onnx_io.messages import _FIELDS, read, read_small


@pytest.fixture(params=["native", "python"])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which code reads messages."""
    monkeypatch.setattr(messages, "_WORTH_NATIVE", 0)
    if request.param == "python":
        monkeypatch.setattr(messages, "_native_class", lambda: None)
    elif load_native() is None:
        pytest.skip("needs the native extension")
    assert (messages._native_class() is None) == (request.param == "python")
    return str(request.param)


# Messages of onnx.proto that have other names here.
_NAMES = {
    "Tensor": "TensorTypeProto",
    "SparseTensor": "TensorTypeProto",
    "Sequence": "ElementTypeProto",
    "Optional": "ElementTypeProto",
    "Map": "MapTypeProto",
    "Dimension": "DimensionProto",
}
_SCALARS = {
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_BYTES: "bytes",
    FieldDescriptor.TYPE_INT64: "int64",
    FieldDescriptor.TYPE_INT32: "int32",
    FieldDescriptor.TYPE_UINT64: "uint64",
    FieldDescriptor.TYPE_FLOAT: "float",
    FieldDescriptor.TYPE_DOUBLE: "double",
}


def descriptors(message: Descriptor, seen: dict[str, Descriptor]) -> Iterator[tuple[str, Descriptor]]:
    """The messages that are read, by their names here."""
    name = _NAMES.get(message.name, message.name)
    if message.full_name in seen:
        return
    seen[message.full_name] = message
    yield name, message
    for field in message.fields:
        if field.message_type is not None and _FIELDS[name][field.number][1] != "-":
            yield from descriptors(field.message_type, seen)


def kind_of(field: FieldDescriptor) -> str:
    if field.message_type is not None:
        kind = _NAMES.get(field.message_type.name, field.message_type.name)
    elif field.enum_type is not None:
        kind = f"enum{max(v.number for v in field.enum_type.values)}"
    else:
        kind = _SCALARS[field.type]
    return f"{kind}*" if field.is_repeated else kind


def test_fields_are_those_of_onnx() -> None:
    known = dict(descriptors(ModelProto.DESCRIPTOR, {}))
    assert known.keys() == _FIELDS.keys()
    for name, message in known.items():
        assert {f.number for f in message.fields} == _FIELDS[name].keys(), name
        for field in message.fields:
            own, kind = _FIELDS[name][field.number]
            assert own == field.name
            assert kind in ("-", kind_of(field)), f"{name}.{own}"
        for group in message.oneofs:
            given = {f.name for f in group.fields} - {"opaque_type"}
            assert given == set(messages._ONE_OF[name])


def test_numbers_are_those_of_onnx() -> None:
    assert onnx.defs.onnx_opset_version() == codes.NEWEST_OPSET
    assert TensorProto.EXTERNAL == codes.EXTERNAL
    for ours, theirs in ((codes.AttributeType, AttributeProto), (codes.DataType, TensorProto)):
        numbers = {name: number for name, number in vars(ours).items() if name.isupper()}
        assert numbers == {name: getattr(theirs, name) for name in numbers}


def assert_same(found: Any, wanted: Any) -> None:
    for field in wanted.DESCRIPTOR.fields:
        a, b = getattr(found, field.name, ()), getattr(wanted, field.name)
        if field.is_repeated:
            assert len(a) == len(b), field.full_name
            for x, y in zip(a, b, strict=True):
                assert_same(x, y) if field.message_type else assert_equal(x, y)
        elif found.HasField(field.name) != wanted.HasField(field.name):
            raise AssertionError(field.full_name)
        elif field.message_type is None:
            assert_equal(a, b)
        elif wanted.HasField(field.name):
            assert_same(a, b)
    for group in wanted.DESCRIPTOR.oneofs:
        assert found.WhichOneof(group.name) == wanted.WhichOneof(group.name)


def assert_equal(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    assert repr(a) == repr(b)


def model() -> ModelProto:
    """A model with every kind of field."""
    branch = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["d"])], "branch", [], [helper.make_empty_tensor_value_info("d")]
    )
    numbers = [np.array([[1.5, -2.0]], np.float32), np.array([-1, 2**40]), np.array(3.5), np.array([2**63], np.uint64)]
    tensors = [numpy_helper.from_array(array, f"raw{i}") for i, array in enumerate(numbers)]
    tensors += [
        helper.make_tensor(f"field{i}", helper.np_dtype_to_tensor_dtype(array.dtype), array.shape, array.reshape(-1))
        for i, array in enumerate([*numbers, np.array([-5, 7], np.int32)])
    ]
    tensors.append(helper.make_tensor("texts", TensorProto.STRING, [2], [b"a\xff", b""]))
    node = helper.make_node(
        "If", ["c", ""], ["y"], "node", domain="ai.onnx", then_branch=branch, number=-3, real=0.1, text="t",
        numbers=[1, -2**60], reals=[0.1, float("nan")], texts=["a", "b"], tensor=tensors[0],
        kind=helper.make_tensor_type_proto(1, ["n", 2, None]),
        sparse=helper.make_sparse_tensor(tensors[0], tensors[1], [3]),
    )  # fmt: skip
    types = {
        "x": helper.make_tensor_type_proto(1, None),
        "s": helper.make_sequence_type_proto(helper.make_tensor_type_proto(7, [])),
        "o": helper.make_optional_type_proto(helper.make_tensor_type_proto(9, [-1])),
        "m": helper.make_map_type_proto(8, helper.make_tensor_type_proto(1, [])),
    }
    values = [helper.make_value_info(name, kind) for name, kind in types.items()]
    graph = helper.make_graph([node], "graph", values, values[:1], tensors, "doc", value_info=values)
    opsets = [helper.make_opsetid("", 21)]
    function = helper.make_function("my", "F", ["a"], ["b"], [helper.make_node("Neg", ["a"], ["b"])], opsets, ["k"])
    made = helper.make_model(graph, functions=[function], opset_imports=opsets, producer_name="tests", doc_string="ä")
    helper.set_model_props(made, {"key": "value"})
    return made


@pytest.mark.usefixtures("reader")
def test_reads_what_the_library_reads() -> None:
    wanted = model()
    found = read(wanted.SerializeToString())
    assert found is not None
    assert_same(found, wanted)
    assert ModelProto.FromString(found.SerializeToString()) == wanted
    node = onnx.NodeProto.FromString(found.graph.node[0].SerializeToString())
    assert node == wanted.graph.node[0]


@pytest.mark.usefixtures("reader")
def test_reads_fields_of_newer_versions() -> None:
    found = read(model().SerializeToString() + b"\xa2\x06\x03abc")
    assert found is not None
    assert found.producer_name == "tests"


def inside(*numbers: int, data: bytes) -> bytes:
    """A message that contains `data` in a field of this number, in a field of the number before, and so on."""
    for number in reversed(numbers):
        data = wire.field_tag(number) + wire.encoded_varint(len(data)) + data
    return data


@pytest.mark.usefixtures("reader")
@in_one_item()
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x08", "a number without an end"),
        (b"\x3a\x05\x0a", "a graph that is cut off"),
        (b"\x3a\x02\x0a\x05", "a node that is longer than its graph"),
        (b"\x0a\x00", "text instead of a number"),
        (b"\x12\x01\xff", "text that is not UTF-8"),
        (b"\x3a\x00\x3a\x00", "two graphs, which are merged"),
        (b"\x0b\x0c", "a group"),
        (b"\x00\x00", "field 0"),
        (b"\x3a\x08\x82\x80\x80\x80\x10\x02ab", "a field number above 2^29 - 1"),
        (b"\x3a\x05\x2a\x03\x3a\x01\xff", "a packed number without an end"),
        (b"\x3a\x10\x2a\x0e\x3a\x0c" + b"\xff" * 11 + b"\x00", "a packed number of 12 bytes"),
        (inside(7, 5, data=b"\x22\x05abcde"), "packed floats of 5 bytes"),
        (inside(7, 5, data=b"\x70" + b"\xff" * 9 + b"\x01"), "place -1 of data"),
        (inside(7, 11, 2, 1, 2, 1, data=b"\x08\x05\x12\x01N"), "a dimension with a size and a name"),
        (b"\xa2\x01\x00", "a training graph"),
        (b"\x3a\x05\x2a\x03\x70\xff\x01", "an unknown place of data"),
    ],
)
def test_leaves_unusual_bytes_to_the_library(data: bytes, reason: str) -> None:
    assert read(data) is None, reason


def nested(depth: int) -> bytes:
    """A model with an attribute of a node of a graph, `depth` times."""
    data = b""
    for tag in [*(b"\x32\x2a\x0a" * depth), 0x3A]:
        size = len(data)
        data = bytes([tag, *([size] if size < 128 else [size & 0x7F | 0x80, size >> 7])]) + data
    return data


@pytest.mark.usefixtures("reader")
def test_leaves_deep_nesting_to_the_library() -> None:
    assert read(nested(10)) is not None
    assert read(nested(30)) is None


MODELS = sorted((Path(onnx.__file__).parent / "backend" / "test" / "data").rglob("*.onnx"))
assert len(MODELS) > 100


@pytest.mark.usefixtures("reader")
@in_one_item()
@pytest.mark.parametrize("start", range(20))
def test_reads_models_of_onnx(start: int) -> None:
    for path in MODELS[start::20]:
        data = path.read_bytes()
        found = read(data)
        assert found is not None, path
        assert_same(found, ModelProto.FromString(data))


@pytest.fixture
def without_onnx(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has read nothing."""
    monkeypatch.delitem(sys.modules, "onnx")
    monkeypatch.setattr(messages, "_read_before", 0)
    monkeypatch.setattr(messages, "_native_class", lambda: None)


def test_imported_library_reads_all_files() -> None:
    assert read_small(model().SerializeToString()) is None


@pytest.mark.usefixtures("without_onnx")
def test_large_tensors_do_not_count_as_messages() -> None:
    weight = numpy_helper.from_array(np.zeros(messages.SMALL, np.float32), "w")
    node = helper.make_node("Constant", [], ["y"], value=weight)
    found = read_small(helper.make_model(helper.make_graph([node], "g", [], [], [weight])).SerializeToString())
    assert found is not None
    assert len(found.graph.initializer[0].raw_data) == 4 * messages.SMALL


@pytest.mark.usefixtures("without_onnx")
def test_many_tensors_count_as_messages() -> None:
    weights = [numpy_helper.from_array(np.zeros(512, np.float32), f"w{i}") for i in range(messages.SMALL // 256)]
    few, many = (helper.make_model(helper.make_graph([], "g", [], [], part)) for part in (weights[::2], weights))
    assert read_small(few.SerializeToString()) is not None
    assert read_small(many.SerializeToString()) is None


@pytest.mark.usefixtures("without_onnx")
@pytest.mark.parametrize("dtype", [TensorProto.INT8, TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64])
def test_library_reads_large_tensors_of_single_numbers(dtype: int) -> None:
    weight = helper.make_tensor("w", dtype, [messages.SMALL], np.ones(messages.SMALL), raw=False)
    assert read_small(helper.make_model(helper.make_graph([], "g", [], [], [weight])).SerializeToString()) is None


@pytest.mark.usefixtures("reader")
@in_one_item()
@pytest.mark.parametrize(
    ("field", "numbers"),
    [
        ("int64_data", [0, 127, 128, -1, 2**62, -(2**63), 2**63 - 1]),
        ("int32_data", [-1, 5, -(2**31), 2**31 - 1, 300]),
        ("uint64_data", [2**64 - 1, 1, 2**63]),
        ("int32_data", [1, 2, 127]),
        ("int64_data", [-7]),
    ],
)
def test_packed_integers(field: str, numbers: list[int]) -> None:
    model = ModelProto(graph=onnx.GraphProto(initializer=[TensorProto(name="w", **{field: numbers})]))
    found = read(model.SerializeToString())
    assert found is not None
    assert getattr(found.graph.initializer[0], field) == numbers


def test_native_reader_reads_larger_files(monkeypatch: pytest.MonkeyPatch) -> None:
    if load_native() is None:
        pytest.skip("needs the native extension")
    monkeypatch.delitem(sys.modules, "onnx")
    monkeypatch.setattr(messages, "_read_before", 0)
    monkeypatch.setattr(messages, "SMALL", 100)
    # Only the native extension reads this: the other reader fails.
    monkeypatch.setattr(messages, "_message", None)
    data = model().SerializeToString()
    assert read_small(data) is not None
    monkeypatch.setattr(messages, "_native_class", lambda: None)
    assert read_small(data) is None


@pytest.mark.parametrize(("nodes", "loaded"), [(100, False), (4000, True)])
def test_large_messages_load_the_native_extension(tmp_path: Path, nodes: int, loaded: bool) -> None:
    path = tmp_path / "chain.onnx"
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "y"))
    graph = helper.make_graph([*many_nodes(nodes).node, helper.make_node("Neg", ["x"], ["y"])], "chain", [x], [y])
    onnx.save(helper.make_model(graph), path)
    run_in_new_process(f"""
import graphkit as gk

gk.load({str(path)!r})
assert ("graphkit._native" in sys.modules) == {loaded}
""")


def many_nodes(count: int) -> onnx.GraphProto:
    return helper.make_graph([helper.make_node("Neg", ["x"], [f"y{i}"]) for i in range(count)], "many", [], [])


@pytest.mark.usefixtures("without_onnx")
@default_at(0)
@pytest.mark.parametrize("nested", [False, True])
def test_library_reads_files_of_many_nodes(nested: bool) -> None:
    graph = many_nodes(messages.SMALL // 10)
    if nested:
        graph = helper.make_graph([helper.make_node("If", ["c"], ["y"], then_branch=graph)], "outer", [], [])
    assert read_small(helper.make_model(graph).SerializeToString()) is None


@pytest.mark.usefixtures("without_onnx")
def test_library_reads_later_files_of_many() -> None:
    data = helper.make_model(many_nodes(1000)).SerializeToString()
    found = [read_small(data) is not None for _ in range(2 * messages.SMALL // len(data))]
    assert found[0]
    assert not found[-1]


@pytest.mark.usefixtures("without_onnx")
def test_library_reads_damaged_files() -> None:
    assert read_small(b"\x3a\x05\x0a") is None
