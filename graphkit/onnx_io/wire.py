"""Read the wire format of a model file without the protobuf library.

That library copies a file's bytes, copies every tensor out of this copy, and allocates an object of 100 bytes or more
even for messages of two bytes. So here the data of large initialisers are removed before the library parses the rest;
they stay in the file until they are needed. Messages are counted first. The format is described at
protobuf.dev/programming-guides/encoding; the field numbers are those of onnx.proto.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from graphkit.ir.stored import LARGE, StoredFile
from graphkit.named_tuples import NamedTuple

MODEL_GRAPH: Final = 7
GRAPH_INITIALIZER: Final = 5
TENSOR_NAME: Final = 8
TENSOR_RAW_DATA: Final = 9

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
MAX_NUMBER = (1 << 29) - 1
# Maximum length of a number; and of a tag or a length: protobuf rejects longer ones, whatever their value is.
_MAX_VARINT_BYTES, _MAX_FRAME_BYTES = 10, 5
# Maximum length of a tag, and a number or a length after it.
_MAX_HEAD_BYTES = _MAX_FRAME_BYTES + _MAX_VARINT_BYTES

_WINDOW = 1 << 14

# Maximum number of fields of a message. If there are more, the protobuf library parses the whole file, or rejects it.
_MOST_FIELDS = 1 << 23

# Message -> its fields that are messages, and are counted. Others, such as dimensions, are few, or inside of these.
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
    """The bytes are not a sequence of fields.

    number: field whose end is missing. missing: number of missing bytes. Both are 0 if they are unknown.
    """

    def __init__(self, number: int = 0, missing: int = 0):
        super().__init__(number, missing)
        self.number = number
        self.missing = missing


class Field(NamedTuple):
    """A field. start, body, end: positions in the bytes that contain it."""

    number: int
    wire: int
    start: int  # of the tag
    body: int  # of the value
    end: int

    @property
    def is_bytes(self) -> bool:
        """Whether it is text, bytes, packed numbers or a message."""
        return self.wire == _BYTES


if TYPE_CHECKING:

    class Spans(Protocol):
        """Bytes that can be sliced."""

        def __len__(self) -> int: ...

        def __getitem__(self, span: slice, /) -> bytes: ...


class Place(NamedTuple):
    """A range of bytes in a file."""

    file: StoredFile
    offset: int
    size: int

    def read(self) -> np.ndarray:
        """The bytes (uint8, read-only). Raises FileChanged, RuntimeFailure."""
        return self.file.read(self.offset, self.size)


def cut_out(file: StoredFile) -> tuple[bytes, dict[str, Place]] | None:
    """The file's bytes without the raw data of large initialisers, and the places of these data by name.

    Returns None if there are no large initialisers, or if the library must parse the whole file because it is unusual.
    Raises FileChanged, RuntimeFailure.
    """
    try:
        pieces, places = _scan(_Window(file))
    except Malformed:
        return None
    return (b"".join(pieces), {name: Place(file, *place) for name, place in places.items()}) if places else None


class _Window:
    """The bytes of a file. Only those around the latest position are in memory."""

    def __init__(self, file: StoredFile):
        self._file = file
        self._start = 0
        self._bytes = b""

    def __len__(self) -> int:
        return self._file.size

    def __getitem__(self, span: slice) -> bytes:
        """The bytes from one position of the file to another."""
        if span.stop - span.start > _WINDOW:
            return self._file.read_bytes(span.start, span.stop - span.start)
        if span.start < self._start or span.stop > self._start + len(self._bytes):
            self._start = span.start
            self._bytes = self._file.read_bytes(span.start, min(_WINDOW, len(self) - span.start))
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
    copied = graph.body  # everything before this position was copied
    for field in _long_fields(data, graph.body, graph.end):
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


def _long_fields(data: Spans, position: int, end: int) -> Iterator[Field]:
    """Yield the fields of a message of LARGE bytes or more, and perhaps shorter ones. Raises as `fields` does."""
    window, start = b"", 0  # bytes from `start`
    for _ in range(_MOST_FIELDS):
        if position == end:
            return
        if position + 3 > start + len(window):
            window, start = data[position : min(position + _WINDOW, end)], position
        # The most frequent fields: bytes with a tag of one byte, and a length of one or two.
        head = window[position - start : position - start + 3]
        if len(head) == 3 and 8 <= head[0] < 0x80 and head[0] & 7 == _BYTES:
            if head[1] < 0x80:
                after = position + 2 + head[1]
            elif head[2] < 0x80:
                after = position + 3 + (head[1] & 0x7F) + (head[2] << 7)
            else:
                after = end + 1
            if after <= end:
                position = after
                continue
        field = next(fields(data, position, end))
        yield field
        position = field.end
    if position != end:
        raise Malformed


def fields(data: Spans, position: int, end: int) -> Iterator[Field]:
    """Yield the fields of the message between two positions, at most _MOST_FIELDS.

    Raises Malformed for bytes that are not a field, and for groups, which ONNX does not use.
    """
    for _ in range(_MOST_FIELDS):
        if position == end:
            return
        start = position
        head = data[position : min(position + _MAX_HEAD_BYTES, end)]
        tag, size = head[0], 1
        if tag >= 0x80:
            tag, size = _varint(head, 0, _MAX_FRAME_BYTES)
        number, wire = tag >> 3, tag & 7
        if not 0 < number <= MAX_NUMBER:
            raise Malformed
        if wire == _BYTES:
            length, size = _varint(head, size, _MAX_FRAME_BYTES)
            position += size
            after = position + length
        elif wire == _VARINT:
            position += size
            after = start + _varint(head, size, _MAX_VARINT_BYTES)[1]
        elif wire in (_FIXED64, _FIXED32):
            position += size
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
    """Count the messages of a model, up to `most`. A malformed message counts as one."""
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
        except Malformed:  # the protobuf library will raise the error
            continue
    return found


def _varint(data: bytes, start: int, most: int) -> tuple[int, int]:
    """Return a number of at most `most` bytes, and the position after it. Raises Malformed."""
    value = shift = 0
    for position in range(start, min(start + most, len(data))):
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
        shift += 7
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
