"""The reader of the wire format: valid files are read as by protobuf, and all others are rejected immediately."""

from __future__ import annotations

import contextlib
import random

import numpy as np
import onnx
import pytest
from combinations import in_one_item
from onnx import TensorProto, helper

from graphkit.errors import GraphkitError, InvalidModel, UnsupportedError
from graphkit.onnx_io import validate, wire
from graphkit.onnx_io.importer import import_model
from graphkit.onnx_io.validate import parse


def small(name="x"):
    info = helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])
    made = helper.make_tensor_value_info(f"{name}y", TensorProto.FLOAT, [2])
    graph = helper.make_graph([helper.make_node("Relu", [name], [f"{name}y"])], "g", [info], [made])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])


def test_fields_are_those_that_protobuf_writes():
    data = small().SerializeToString()
    found = list(wire.fields(data, 0, len(data)))
    assert [f.number for f in found] == [1, 7, 8]
    graph = next(f for f in found if f.number == 7)
    assert onnx.GraphProto.FromString(data[graph.body : graph.end]) == small().graph


@in_one_item()
@pytest.mark.parametrize(
    "data",
    [b"\xff" * 11, b"\x08" + b"\x80" * 10 + b"\x01", b"\x0b\x0c", b"\x0c", b"\x00\x00", b"\x3a\xff\xff\xff\xff\x7f",
     b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x09\x00", b"\x0d\x00\x00", b"\x3a", b"\x80", b"\x0e", b"\x0f"],
)  # fmt: skip
def test_what_is_no_field_is_refused(data):
    with pytest.raises(wire.Malformed):
        list(wire.fields(data, 0, len(data)))
    with pytest.raises(InvalidModel):
        parse(data, "net.onnx")


def test_long_fields_are_those_of_all_fields() -> None:
    """Random fields. Some are damaged."""
    rng = random.Random(0)
    sizes = [0, 1, 127, 128, 300, 16383, 16384, wire.LARGE, wire.LARGE + 5]
    damaged = 0
    for _ in range(100):
        pieces = []
        for _ in range(rng.randrange(12)):
            size = rng.choice(sizes)
            pieces.append(wire.field_tag(rng.choice([1, 5, 15, 16, 3000])) + wire.encoded_varint(size) + bytes(size))
            pieces.append(rng.choice([b"", b"\x08\x05", b"\x0d1234", b"\x09" + bytes(8)]))
        data = b"".join(pieces)
        if rng.random() < 0.5:
            data = data[: rng.randrange(len(data) + 1)] + rng.choice([b"", b"\0", b"\x2a\x7f", b"\x2a\xff", b"\x0b"])
        try:
            expected = [field for field in wire.fields(data, 0, len(data)) if field.end - field.body >= wire.LARGE]
        except wire.Malformed:
            damaged += 1
            with pytest.raises(wire.Malformed):
                list(wire._long_fields(data, 0, len(data)))
            continue
        found = list(wire._long_fields(data, 0, len(data)))
        assert [field for field in found if field.end - field.body >= wire.LARGE] == expected
    assert 10 < damaged < 90


def test_overlong_numbers_are_those_of_protobuf():
    data = b"\x08\x8a\x80\x80\x80\x80\x80\x80\x80\x80\x00" + small().SerializeToString()[2:]
    assert parse(data, "net.onnx").ir_version == onnx.ModelProto.FromString(data).ir_version == 10


@pytest.mark.parametrize("of", ["tag", "length"])
def test_tags_and_lengths_have_five_bytes_as_in_protobuf(tmp_path, of):
    """This holds for any value. Reading from a path, which leaves large weights in the file, gives the same result."""
    model = small()
    weight = helper.make_tensor("w", TensorProto.FLOAT, [1 << 15], np.ones(1 << 15, np.float32).tobytes(), raw=True)
    model.graph.initializer.append(weight)
    model.graph.node.append(helper.make_node("Neg", ["w"], ["v"]))
    model.graph.output.append(helper.make_tensor_value_info("v", TensorProto.FLOAT, None))
    graph = model.graph.SerializeToString()
    model.ClearField("graph")

    def overlong(value, size):
        return bytes([value >> 7 * i & 0x7F | (0x80 if i < size - 1 else 0) for i in range(size)])

    for size in (5, 6):
        tag = overlong(7 << 3 | 2, size) if of == "tag" else wire.field_tag(7)
        length = overlong(len(graph), size) if of == "length" else wire.encoded_varint(len(graph))
        data = model.SerializeToString() + tag + length + graph
        path = tmp_path / f"{size}.onnx"
        path.write_bytes(data)
        for source in (data, path):
            if size == 5:
                assert import_model(source).graph.output_names == ("xy", "v")
            else:
                with pytest.raises(InvalidModel):
                    import_model(source)


def test_a_file_cut_off_anywhere_is_an_error():
    data = small().SerializeToString()
    for end in range(len(data)):
        with pytest.raises(GraphkitError):
            import_model(data[:end])


def test_a_graph_given_twice_is_merged_as_protobuf_does(tmp_path):
    weight = helper.make_tensor("w", TensorProto.FLOAT, [1 << 16], np.ones(1 << 16, np.float32).tobytes(), raw=True)
    one, other = small("a"), small("b")
    one.graph.initializer.append(weight)
    one.graph.node.append(helper.make_node("Neg", ["w"], ["v"]))
    one.graph.output.append(helper.make_tensor_value_info("v", TensorProto.FLOAT, None))
    added = other.graph.SerializeToString()
    data = one.SerializeToString() + b"\x3a" + wire.encoded_varint(len(added)) + added
    path = tmp_path / "twice.onnx"
    path.write_bytes(data)
    for found in (import_model(path), import_model(data)):
        assert found.graph.output_names == ("ay", "v", "by")
        assert found.params["w"].shape == (1 << 16,)


def test_unknown_fields_are_passed_over():
    unknown = wire.field_tag(1000) + b"\x03abc" + wire.encoded_varint(2000 << 3) + b"\x05"
    assert import_model(unknown + small().SerializeToString()).graph.output_names == ("xy",)


@pytest.mark.filterwarnings("ignore::graphkit.errors.DeclarationWarning")
def test_random_damage_is_an_error_or_a_model():
    data, rng = small().SerializeToString(), random.Random(0)
    for _ in range(2000):
        made = bytearray(data)
        for _ in range(rng.randrange(1, 4)):
            made[rng.randrange(len(made))] = rng.randrange(256)
        with contextlib.suppress(InvalidModel, UnsupportedError):
            import_model(bytes(made))


def test_a_file_of_empty_messages_is_refused_before_it_takes_memory(monkeypatch):
    monkeypatch.setattr(validate, "_MANY_BYTES", 1 << 10)
    monkeypatch.setattr(validate, "_MOST_MESSAGES", 1 << 10)
    nodes = b"\x0a\x00" * (1 << 10)
    data = b"\x08\x0a\x3a" + wire.encoded_varint(len(nodes)) + nodes
    with pytest.raises(InvalidModel, match="messages or more"):
        parse(data, "net.onnx")


@pytest.mark.parametrize("opened", [7, 5000])
def test_messages_are_counted_however_they_are_nested(opened):
    graph = b""
    for _ in range(opened):
        attribute = b"\x32" + wire.encoded_varint(len(graph)) + graph
        node = b"\x2a" + wire.encoded_varint(len(attribute)) + attribute
        graph = b"\x0a" + wire.encoded_varint(len(node)) + node
    data = b"\x3a" + wire.encoded_varint(len(graph)) + graph
    assert wire.count_messages(data, 1 << 20) == 2 + 3 * opened
    with pytest.raises(InvalidModel):
        import_model(b"\x08\x0a" + data)
