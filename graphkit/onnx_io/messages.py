"""Read the messages of small model files in Python, because importing the protobuf library takes longer.

The objects have the attributes and methods of onnx's classes, as far as the import reads them: absent fields have their
default values, repeated ones are lists. `read` refuses everything that is unusual, and the library parses it instead.
The native extension reads the messages of larger files into the same objects, four times as fast, if it is loaded or
`load_extension` loads it. The format is that of `wire`; the field numbers are those of onnx.proto.
"""

from __future__ import annotations

import functools
import struct
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from graphkit.onnx_io.wire import MAX_NUMBER, Malformed

if TYPE_CHECKING:
    from onnx import ModelProto

# Maximum bytes to read here in total, without raw data of tensors. Beyond, importing and using the library is faster:
# its import takes 170 ms, and reading a MB here takes 50.
SMALL = 3 << 19
# The same if the native extension reads.
_SMALL_NATIVE = 1 << 24
# Minimum bytes of a file that the native extension reads. Preparing it takes 0.1 ms, as long as reading 2 KB here.
_WORTH_NATIVE = 1 << 12
# Minimum bytes, without raw data, for which it is loaded. That takes 4 ms, as long as reading 80 KB here, but a program
# that compiles the model needs it in any case.
_WORTH_LOADING = 3 << 14
# Raw data count as at most this number of bytes, because they are copied at once.
_RAW = 1 << 8
# By message, the fields that may contain raw data.
_WITH_RAW_DATA = {
    "model": {7: "graph"},
    "graph": {1: "node", 5: "tensor"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph"},
    "tensor": {9: "raw"},
}
_LONG = 1 << 10

_VARINT, _BYTES, _FIXED32, _FIXED64 = 0, 2, 5, 1
# Maximum bytes of a tag or a length. Longer ones are left to the library, which rejects them.
_MAX_FRAME_BYTES = 5
_MAX_VARINT_BYTES = 10
_MAX_DEPTH = 64

# Message -> field number -> name, and kind: a scalar, or another message; * marks repeated fields. Files that have a
# field of the kind "-" are read by the library.
_FIELDS: dict[str, dict[int, tuple[str, str]]] = {
    "ModelProto": {
        1: ("ir_version", "int64"), 2: ("producer_name", "string"), 3: ("producer_version", "string"),
        4: ("domain", "string"), 5: ("model_version", "int64"), 6: ("doc_string", "string"),
        7: ("graph", "GraphProto"), 8: ("opset_import", "OperatorSetIdProto*"),
        14: ("metadata_props", "StringStringEntryProto*"), 20: ("training_info", "-"),
        25: ("functions", "FunctionProto*"), 26: ("configuration", "-"),
    },
    "GraphProto": {
        1: ("node", "NodeProto*"), 2: ("name", "string"), 5: ("initializer", "TensorProto*"),
        10: ("doc_string", "string"), 11: ("input", "ValueInfoProto*"), 12: ("output", "ValueInfoProto*"),
        13: ("value_info", "ValueInfoProto*"), 14: ("quantization_annotation", "TensorAnnotation*"),
        15: ("sparse_initializer", "SparseTensorProto*"), 16: ("metadata_props", "StringStringEntryProto*"),
    },
    "NodeProto": {
        1: ("input", "string*"), 2: ("output", "string*"), 3: ("name", "string"), 4: ("op_type", "string"),
        5: ("attribute", "AttributeProto*"), 6: ("doc_string", "string"), 7: ("domain", "string"),
        8: ("overload", "string"), 9: ("metadata_props", "StringStringEntryProto*"),
        10: ("device_configurations", "-"),
    },
    "AttributeProto": {
        1: ("name", "string"), 2: ("f", "float"), 3: ("i", "int64"), 4: ("s", "bytes"), 5: ("t", "TensorProto"),
        6: ("g", "GraphProto"), 7: ("floats", "float*"), 8: ("ints", "int64*"), 9: ("strings", "bytes*"),
        10: ("tensors", "TensorProto*"), 11: ("graphs", "GraphProto*"), 13: ("doc_string", "string"),
        14: ("tp", "TypeProto"), 15: ("type_protos", "TypeProto*"), 20: ("type", "enum14"),
        21: ("ref_attr_name", "string"), 22: ("sparse_tensor", "SparseTensorProto"),
        23: ("sparse_tensors", "SparseTensorProto*"),
    },
    "FunctionProto": {
        1: ("name", "string"), 4: ("input", "string*"), 5: ("output", "string*"), 6: ("attribute", "string*"),
        7: ("node", "NodeProto*"), 8: ("doc_string", "string"), 9: ("opset_import", "OperatorSetIdProto*"),
        10: ("domain", "string"), 11: ("attribute_proto", "AttributeProto*"), 12: ("value_info", "ValueInfoProto*"),
        13: ("overload", "string"), 14: ("metadata_props", "StringStringEntryProto*"),
    },
    "TensorProto": {
        1: ("dims", "int64*"), 2: ("data_type", "int32"), 3: ("segment", "-"), 4: ("float_data", "float*"),
        5: ("int32_data", "int32*"), 6: ("string_data", "bytes*"), 7: ("int64_data", "int64*"), 8: ("name", "string"),
        9: ("raw_data", "bytes"), 10: ("double_data", "double*"), 11: ("uint64_data", "uint64*"),
        12: ("doc_string", "string"), 13: ("external_data", "StringStringEntryProto*"), 14: ("data_location", "enum1"),
        16: ("metadata_props", "StringStringEntryProto*"),
    },
    "SparseTensorProto": {1: ("values", "TensorProto"), 2: ("indices", "TensorProto"), 3: ("dims", "int64*")},
    "TensorAnnotation": {
        1: ("tensor_name", "string"), 2: ("quant_parameter_tensor_names", "StringStringEntryProto*"),
    },
    "ValueInfoProto": {
        1: ("name", "string"), 2: ("type", "TypeProto"), 3: ("doc_string", "string"),
        4: ("metadata_props", "StringStringEntryProto*"),
    },
    "TypeProto": {
        1: ("tensor_type", "TensorTypeProto"), 4: ("sequence_type", "ElementTypeProto"),
        5: ("map_type", "MapTypeProto"), 6: ("denotation", "string"), 7: ("opaque_type", "-"),
        8: ("sparse_tensor_type", "TensorTypeProto"), 9: ("optional_type", "ElementTypeProto"),
    },
    "TensorTypeProto": {1: ("elem_type", "int32"), 2: ("shape", "TensorShapeProto")},
    "ElementTypeProto": {1: ("elem_type", "TypeProto")},
    "MapTypeProto": {1: ("key_type", "int32"), 2: ("value_type", "TypeProto")},
    "TensorShapeProto": {1: ("dim", "DimensionProto*")},
    "DimensionProto": {1: ("dim_value", "int64"), 2: ("dim_param", "string"), 3: ("denotation", "string")},
    "OperatorSetIdProto": {1: ("domain", "string"), 2: ("version", "int64")},
    "StringStringEntryProto": {1: ("key", "string"), 2: ("value", "string")},
}  # fmt: skip
# Message -> alternative fields: at most one may be set.
_ONE_OF = {
    "TypeProto": ("tensor_type", "sequence_type", "map_type", "sparse_tensor_type", "optional_type"),
    "DimensionProto": ("dim_value", "dim_param"),
}


class Message:
    """A message: the fields that the file has are in the object, the defaults of the others in its class."""

    # Field number -> name, wire type, function that reads a value, whether the field is repeated.
    _fields: ClassVar[dict[int, tuple[str, int, Callable[..., Any], bool]]] = {}
    _one_of: ClassVar[tuple[str, ...]] = ()

    def HasField(self, name: str) -> bool:  # noqa: N802 - protobuf's name
        """Whether the file has this field. Not for repeated fields."""
        return name in self.__dict__

    def WhichOneof(self, group: str) -> str | None:  # noqa: N802
        """The field of the message's only group that the file has."""
        return next((name for name in self._one_of if name in self.__dict__), None)

    def SerializeToString(self) -> bytes:  # noqa: N802
        """The bytes that the message was read from."""
        data, start, end = self.__dict__.get("", (b"", 0, 0))
        return bytes(data[start:end])


# Number of bytes that were read here so far, without raw data of the files that were read in Python.
_read_before = 0

# Loads the native extension, if there is one; None: unknown. This package is below the one that knows how to.
load_extension: Callable[[], object] | None = None


def read_small(data: bytes) -> ModelProto | None:
    """Like `read`, but also None if the library is already imported, or if importing it is faster."""
    global _read_before
    if "onnx" in sys.modules:
        return None
    try:
        if (
            load_extension is not None
            and len(data) > _WORTH_LOADING
            and _native_class() is None
            and _message_bytes(data, _WORTH_LOADING) > _WORTH_LOADING
        ):
            load_extension()
        native = _native_class() is not None
        most = _SMALL_NATIVE if native else SMALL
        size = len(data)
        if not native or size > most - _read_before:  # counting takes as long as reading in the extension
            size = _message_bytes(data, most - _read_before)
    except (Malformed, IndexError):
        return None
    _read_before += size
    return read(data) if _read_before <= most else None


def read(data: bytes) -> ModelProto | None:
    """The model, with the attributes of a ModelProto; None if the library must parse the bytes."""
    native = _native_class()
    if native is not None and (len(data) >= _WORTH_NATIVE or _read_before > SMALL):
        return cast("ModelProto | None", _native_reader(native).read(data))
    try:
        return cast("ModelProto", _message(_classes()["ModelProto"], data, 0, len(data), 0))
    except (Malformed, IndexError, UnicodeDecodeError, struct.error):
        return None


def _message_bytes(data: bytes, most: int) -> int:
    """Bytes of a model without the raw data of tensors; counting ends above `most`. Raises Malformed, IndexError."""
    found = 0
    waiting = [("model", 0, len(data))]
    while waiting:
        kind, at, end = waiting.pop()
        inside = _WITH_RAW_DATA[kind]
        while at < end:
            start = at
            tag, begin = _varint(data, at, _MAX_FRAME_BYTES)
            begin, at = _span(data, begin, tag & 7)
            size, inner = at - begin, inside.get(tag >> 3)
            if inner == "raw":
                found += min(size, _RAW)
            elif inner is not None and size > _LONG:
                waiting.append((inner, begin, min(at, end)))
            else:
                found += at - start
            if found > most:
                return found
    return found


def _message(cls: type[Message], data: bytes, start: int, end: int, depth: int) -> Message:
    if depth > _MAX_DEPTH:
        raise Malformed
    message = cls()
    found = message.__dict__
    found[""] = data, start, end
    fields, one_of = cls._fields, cls._one_of
    at = start
    while at < end:
        tag = data[at]
        at += 1
        if tag >= 0x80:
            tag, at = _varint(data, at - 1, _MAX_FRAME_BYTES)
        wire = tag & 7
        if wire == _BYTES and data[at] < 0x80:  # the most frequent case of `_span`
            begin = at + 1
            at = begin + data[at]
        else:
            begin, at = _span(data, at, wire)
        if at > end or not 0 < tag >> 3 <= MAX_NUMBER:
            raise Malformed
        field = fields.get(tag >> 3)
        if field is None:
            continue
        name, own, value_of, repeated = field
        if own != wire:
            if not repeated or wire != _BYTES:
                raise Malformed
            found.setdefault(name, []).extend(_packed(data[begin:at], own, value_of))
        elif repeated:
            value = data[begin:at].decode() if value_of is _text else value_of(data, begin, at, depth + 1)
            if name in found:
                found[name].append(value)
            else:
                found[name] = [value]
        elif name in found or (name in one_of and any(other in found for other in one_of)):
            raise Malformed  # the library merges them
        else:
            found[name] = data[begin:at].decode() if value_of is _text else value_of(data, begin, at, depth + 1)
    return message


def _span(data: bytes, at: int, wire: int) -> tuple[int, int]:
    """Begin and end of the value of a field. at: end of its tag."""
    if wire == _BYTES:
        size = data[at]
        begin = at + 1
        if size >= 0x80:
            size, begin = _varint(data, at, _MAX_FRAME_BYTES)
        return begin, begin + size
    if wire == _VARINT:
        return at, at + 1 if data[at] < 0x80 else _varint(data, at, _MAX_VARINT_BYTES)[1]
    if wire == _FIXED32:
        return at, at + 4
    if wire == _FIXED64:
        return at, at + 8
    raise Malformed


def _packed(data: bytes, wire: int, value_of: Callable[..., Any]) -> list[Any]:
    """The values of a packed repeated field."""
    if wire != _VARINT:
        size, code = (4, "f") if wire == _FIXED32 else (8, "d")
        return list(struct.unpack(f"<{len(data) // size}{code}", data))
    if data.isascii():  # each byte is a number
        return list(data)
    found = np.frombuffer(data, np.uint8)
    lasts = np.flatnonzero(found < 0x80)
    starts = np.append(0, lasts[:-1] + 1)
    lengths = lasts + 1 - starts
    if not lasts.size or lasts[-1] + 1 != found.size or lengths.max() > _MAX_VARINT_BYTES:
        raise Malformed
    places = np.arange(found.size) - np.repeat(starts, lengths)
    parts = (found & 0x7F).astype(np.uint64) << (7 * places).astype(np.uint64)
    numbers: list[int] = np.bitwise_or.reduceat(parts, starts).astype(_INTEGERS[value_of]).tolist()
    return numbers


def _varint(data: bytes, at: int, most: int) -> tuple[int, int]:
    value = shift = 0
    for position in range(at, at + most):
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
        shift += 7
    raise Malformed


def _unsigned(data: bytes, at: int, end: int, depth: int) -> int:
    if end == at + 1:
        return data[at]
    return _varint(data, at, _MAX_VARINT_BYTES)[0] & 0xFFFF_FFFF_FFFF_FFFF


def _int64(data: bytes, at: int, end: int, depth: int) -> int:
    value = _unsigned(data, at, end, depth)
    return value - (1 << 64) if value >> 63 else value


def _int32(data: bytes, at: int, end: int, depth: int) -> int:
    value = _unsigned(data, at, end, depth) & 0xFFFF_FFFF
    return value - (1 << 32) if value >> 31 else value


def _enum(most: int) -> Callable[[bytes, int, int, int], int]:
    def value_of(data: bytes, at: int, end: int, depth: int) -> int:
        value = _int32(data, at, end, depth)
        if not 0 <= value <= most:
            raise Malformed  # the library drops unknown values
        return value

    return value_of


def _float(data: bytes, at: int, end: int, depth: int) -> float:
    value: float = struct.unpack_from("<f", data, at)[0]
    return value


def _double(data: bytes, at: int, end: int, depth: int) -> float:
    value: float = struct.unpack_from("<d", data, at)[0]
    return value


def _text(data: bytes, at: int, end: int, depth: int) -> str:
    return data[at:end].decode()


def _raw(data: bytes, at: int, end: int, depth: int) -> bytes:
    return data[at:end]


def _unusual(data: bytes, at: int, end: int, depth: int) -> Any:
    raise Malformed


# Kind -> wire type, function that reads a value from its bytes, default.
_SCALARS: dict[str, tuple[int, Callable[[bytes, int, int, int], Any], Any]] = {
    "int64": (_VARINT, _int64, 0),
    "int32": (_VARINT, _int32, 0),
    "uint64": (_VARINT, _unsigned, 0),
    "enum1": (_VARINT, _enum(1), 0),
    "enum14": (_VARINT, _enum(14), 0),
    "float": (_FIXED32, _float, 0.0),
    "double": (_FIXED64, _double, 0.0),
    "string": (_BYTES, _text, ""),
    "bytes": (_BYTES, _raw, b""),
    "-": (_BYTES, _unusual, ()),
}

# Kind -> its number in the native reader, and the largest value of an enum.
_NATIVE_KINDS = {
    "int64": (0, 0), "int32": (1, 0), "uint64": (2, 0), "enum1": (3, 1), "enum14": (3, 14), "float": (4, 0),
    "double": (5, 0), "string": (6, 0), "bytes": (7, 0),
}  # fmt: skip
_NESTED = 8

# Function that reads an integer -> numpy type of repeated ones.
_INTEGERS: dict[Callable[..., Any], type[np.integer[Any]]] = {
    _int64: np.int64, _int32: np.int32, _unsigned: np.uint64,
}  # fmt: skip

_known: dict[str, type[Message]] = {}


def _classes() -> dict[str, type[Message]]:
    """The classes of messages, by name."""
    if _known:
        return _known
    made: dict[str, type[Message]] = {
        name: type(name, (Message,), {"_one_of": _ONE_OF.get(name, ())}) for name in _FIELDS
    }
    for name, fields in _FIELDS.items():
        cls = made[name]
        cls._fields = {}
        for number, (field, kind) in fields.items():
            single = kind.removesuffix("*")
            if single in _SCALARS:
                wire, value_of, default = _SCALARS[single]
            else:
                wire, value_of, default = _BYTES, _reader(made[single]), made[single]()
            cls._fields[number] = field, wire, value_of, kind != single
            setattr(cls, field, () if kind != single else default)
    _known.update(made)
    return _known


def _native_class() -> Any:
    """The class of the native extension that reads messages; None if the extension is not loaded."""
    # Another thread may be importing the extension.
    return getattr(sys.modules.get("graphkit._native"), "MessageReader", None)


@functools.cache
def _native_reader(cls: Callable[..., Any]) -> Any:
    classes, order = _classes(), list(_FIELDS)
    read: list[tuple[type[Message], list[tuple[int, str, int, bool, bool, int]]]] = []
    unusual: list[tuple[int, int]] = []
    for index, (message, fields) in enumerate(_FIELDS.items()):
        own: list[tuple[int, str, int, bool, bool, int]] = []
        for number, (name, kind) in fields.items():
            single = kind.removesuffix("*")
            if single == "-":
                unusual.append((index, number))
                continue
            code, detail = _NATIVE_KINDS[single] if single in _NATIVE_KINDS else (_NESTED, order.index(single))
            own.append((number, name, code, single != kind, name in _ONE_OF.get(message, ()), detail))
        read.append((classes[message], own))
    return cls(read, unusual)


def _reader(cls: type[Message]) -> Callable[[bytes, int, int, int], Message]:
    return lambda data, at, end, depth: _message(cls, data, at, end, depth)
