"""Read the wire format of a model file without the protobuf library.

That library copies a file's bytes, copies every tensor out of that copy, and makes an object of many bytes for each
message of two. Here large initialisers are cut out before it sees the file, and stay there until they are needed, and
the messages are counted first. The format is that of protobuf.dev/programming-guides/encoding; the field numbers are
those of onnx.proto.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, Protocol

import numpy as np

from graphkit.ir.stored import LARGE, StoredFile

MODEL_GRAPH: Final = 7
GRAPH_INITIALIZER: Final = 5
TENSOR_NAME: Final = 8
TENSOR_RAW_DATA: Final = 9

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
MAX_NUMBER = (1 << 29) - 1
# Of a number; and of a tag or a length, which protobuf refuses when they are longer, whatever their value.
_MAX_VARINT_BYTES, _MAX_FRAME_BYTES = 10, 5

_WINDOW = 1 << 15

# The fields of a graph: beyond, the file is for the parser to read whole, or to refuse.
_MOST_FIELDS = 1 << 23

# By message, its fields that are messages. Others, such as dimensions, are few or in these.
_MESSAGES: Final[Mapping[str, Mapping[int, str]]] = {
    "model": {7: "graph", 8: "leaf", 14: "leaf", 20: "training", 25: "function", 26: "leaf"},
    "graph": {1: "node", 5: "tensor", 11: "value", 12: "value", 13: "value", 14: "leaf", 15: "sparse", 16: "leaf"},
    "node": {5: "attribute", 9: "leaf", 10: "leaf"},
    "attribute": {
        5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 14: "type", 15: "type", 22: "sparse", 23: "sparse",
    },
    "function": {7: "node", 9: "leaf", 11: "attribute", 12: "value", 14: "leaf"},
    "training": {1: "graph", 2: "graph", 3: "leaf", 4: "leaf"},
    "tensor": {3: "leaf", 13: "leaf", 16: "leaf"},
    "sparse": {1: "tensor", 2: "tensor"},
    "value": {2: "type", 4: "leaf"},
    "type": {1: "type", 2: "type", 4: "type", 5: "type", 8: "type", 9: "type"},
    "leaf": {},
}  # fmt: skip


class Malformed(Exception):
    """The bytes are not fields one behind the other. `number`: of the field that does not end where it should, and
    `missing` bytes of it; 0 where that is not known.
    """

    def __init__(self, number: int = 0, missing: int = 0):
        super().__init__(number, missing)
        self.number = number
        self.missing = missing


class Field(NamedTuple):
    """A field, by places in the bytes that it is in."""

    number: int
    wire: int
    start: int  # of the tag
    body: int  # of the value
    end: int

    @property
    def is_bytes(self) -> bool:
        """Whether it is text, bytes, packed numbers or a message."""
        return self.wire == _BYTES


class Spans(Protocol):
    """Bytes of which parts can be had."""

    def __len__(self) -> int: ...

    def __getitem__(self, span: slice, /) -> bytes: ...


class Place(NamedTuple):
    """Bytes of a file."""

    file: StoredFile
    offset: int
    size: int

    def read(self) -> np.ndarray:
        """The bytes (uint8, read-only). Raises FileChanged, RuntimeFailure."""
        return self.file.read(self.offset, self.size)


def cut_out(file: StoredFile) -> tuple[bytes, dict[str, Place]] | None:
    """The file's bytes without the raw data of its large initialisers, and where these are, by name.

    None when there are none, or when the file is not laid out like a model: then it is for the parser to read it whole.
    Raises FileChanged, RuntimeFailure.
    """
    try:
        pieces, places = _scan(_Window(file))
    except Malformed:
        return None
    return (b"".join(pieces), {name: Place(file, *place) for name, place in places.items()}) if places else None


class _Window:
    """The bytes of a file, those around the latest position in memory."""

    def __init__(self, file: StoredFile):
        self._file = file
        self._start = 0
        self._bytes = b""

    def __len__(self) -> int:
        return self._file.size

    def __getitem__(self, span: slice) -> bytes:
        """The bytes from one position of the file to another."""
        if span.stop - span.start > _WINDOW:
            return self._file.read(span.start, span.stop - span.start).tobytes()
        if span.start < self._start or span.stop > self._start + len(self._bytes):
            self._start = span.start
            self._bytes = self._file.read(span.start, min(_WINDOW, len(self) - span.start)).tobytes()
        return self._bytes[span.start - self._start : span.stop - self._start]


def _scan(data: _Window) -> tuple[list[bytes], dict[str, tuple[int, int]]]:
    pieces: list[bytes] = []
    places: dict[str, tuple[int, int]] = {}
    for field in fields(data, 0, len(data)):
        if field.number == MODEL_GRAPH and field.is_bytes:
            graph = b"".join(_without_large(data, field, places))
            pieces += [field_tag(MODEL_GRAPH), encoded_varint(len(graph)), graph]
        else:
            pieces.append(data[field.start : field.end])
    return pieces, places


def _without_large(data: _Window, graph: Field, places: dict[str, tuple[int, int]]) -> list[bytes]:
    pieces: list[bytes] = []
    copied = graph.body  # everything before has been taken over
    for field in fields(data, graph.body, graph.end):
        if field.number != GRAPH_INITIALIZER or not field.is_bytes or field.end - field.body < LARGE:
            continue
        parts = list(fields(data, field.body, field.end))
        raw = [p for p in parts if p.number == TENSOR_RAW_DATA and p.is_bytes]
        names = [p for p in parts if p.number == TENSOR_NAME and p.is_bytes]
        if len(raw) != 1 or len(names) != 1 or raw[0].end - raw[0].body < LARGE:
            continue
        try:
            name = data[names[0].body : names[0].end].decode()
        except UnicodeDecodeError:
            raise Malformed from None
        if name in places:
            raise Malformed
        places[name] = (raw[0].body, raw[0].end - raw[0].body)
        tensor = b"".join(data[p.start : p.end] for p in parts if p is not raw[0])
        pieces += [data[copied : field.start], field_tag(GRAPH_INITIALIZER), encoded_varint(len(tensor)), tensor]
        copied = field.end
    pieces.append(data[copied : graph.end])
    return pieces


def fields(data: Spans, position: int, end: int) -> Iterator[Field]:
    """The fields of the message between two positions, at most _MOST_FIELDS. Raises Malformed when it comes to bytes
    that are none; groups, which ONNX has none of, are such.
    """
    for _ in range(_MOST_FIELDS):
        if position == end:
            return
        start = position
        tag, position = _varint(data, position, end, _MAX_FRAME_BYTES)
        number, wire = tag >> 3, tag & 7
        if not 0 < number <= MAX_NUMBER:
            raise Malformed
        if wire == _BYTES:
            length, position = _varint(data, position, end, _MAX_FRAME_BYTES)
            after = position + length
        elif wire == _VARINT:
            _, after = _varint(data, position, end)
        elif wire in (_FIXED64, _FIXED32):
            after = position + (8 if wire == _FIXED64 else 4)
        else:
            raise Malformed
        if after > end:
            raise Malformed(number, after - end)
        yield Field(number, wire, start, position, after)
        position = after
    if position != end:
        raise Malformed


def count_messages(data: Spans, most: int) -> int:
    """How many messages a model has, `most` being where counting ends. What is malformed counts as one."""
    found = 0
    pending = [("model", 0, len(data))]
    while pending and found < most:
        kind, begin, end = pending.pop()
        inside = _MESSAGES[kind]
        found += 1
        try:
            for field in fields(data, begin, end):
                if field.is_bytes and field.number in inside:
                    pending.append((inside[field.number], field.body, field.end))
                    if found + len(pending) >= most:
                        return most
        except Malformed:  # the protobuf library will say so
            continue
    return found


def _varint(data: Spans, position: int, end: int, most: int = _MAX_VARINT_BYTES) -> tuple[int, int]:
    value = 0
    for count, byte in enumerate(data[position : min(position + most, end)]):
        value |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return value, position + count + 1
    raise Malformed


def field_tag(number: int) -> bytes:
    return encoded_varint(number << 3 | _BYTES)


def encoded_varint(value: int) -> bytes:
    made = bytearray()
    while value >= 0x80:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)
