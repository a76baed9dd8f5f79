"""The wire format of a model file, read as far as it takes to find the large tensors in it.

The protobuf library copies a file's bytes and copies every tensor out of that copy. Here large initialisers are cut out
before it sees the file, and stay there until somebody asks for them. The format is that of
protobuf.dev/programming-guides/encoding; the field numbers are those of onnx.proto.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from graphkit.ir.stored import LARGE, StoredFile

_MODEL_GRAPH: Final = 7
_GRAPH_INITIALIZER: Final = 5
_TENSOR_NAME: Final = 8
_TENSOR_RAW_DATA: Final = 9

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

_WINDOW = 1 << 15


class _Unclear(Exception):
    """The bytes are not laid out as expected; the protobuf library will say what is wrong with them."""


class _Field(NamedTuple):
    number: int
    wire: int
    start: int  # of the tag
    body: int  # of the value
    end: int


class Place(NamedTuple):
    """Bytes of a file."""

    file: StoredFile
    offset: int
    size: int

    def read(self) -> np.ndarray:
        """The bytes (uint8, read-only). Raises FileChanged, RuntimeFailure."""
        return self.file.read(self.offset, self.size)


def cut_out(path: Path) -> tuple[bytes, dict[str, Place]] | None:
    """The file's bytes without the raw data of its large initialisers, and where these are, by name.

    None when there are none, or when the file is not laid out like a model: then it is for the parser to read it whole.
    Raises OSError.
    """
    file = StoredFile(path)
    try:
        pieces, places = _scan(_Window(file))
    except _Unclear:
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
    for field in _fields(data, 0, len(data)):
        if field.number == _MODEL_GRAPH and field.wire == _BYTES:
            graph = b"".join(_without_large(data, field, places))
            pieces += [_tag(_MODEL_GRAPH), _encoded(len(graph)), graph]
        else:
            pieces.append(data[field.start : field.end])
    return pieces, places


def _without_large(data: _Window, graph: _Field, places: dict[str, tuple[int, int]]) -> list[bytes]:
    pieces: list[bytes] = []
    copied = graph.body  # everything before has been taken over
    for field in _fields(data, graph.body, graph.end):
        if field.number != _GRAPH_INITIALIZER or field.wire != _BYTES or field.end - field.body < LARGE:
            continue
        parts = list(_fields(data, field.body, field.end))
        raw = [p for p in parts if p.number == _TENSOR_RAW_DATA and p.wire == _BYTES]
        names = [p for p in parts if p.number == _TENSOR_NAME and p.wire == _BYTES]
        if len(raw) != 1 or len(names) != 1 or raw[0].end - raw[0].body < LARGE:
            continue
        try:
            name = data[names[0].body : names[0].end].decode()
        except UnicodeDecodeError:
            raise _Unclear from None
        if name in places:
            raise _Unclear
        places[name] = (raw[0].body, raw[0].end - raw[0].body)
        tensor = b"".join(data[p.start : p.end] for p in parts if p is not raw[0])
        pieces += [data[copied : field.start], _tag(_GRAPH_INITIALIZER), _encoded(len(tensor)), tensor]
        copied = field.end
    pieces.append(data[copied : graph.end])
    return pieces


def _fields(data: _Window, position: int, end: int) -> list[_Field]:
    """The fields of the message between two positions. Raises _Unclear where it does not end where it should."""
    found: list[_Field] = []
    while position < end:
        start = position
        tag, position = _varint(data, position, end)
        wire = tag & 7
        if wire == _BYTES:
            length, position = _varint(data, position, end)
            after = position + length
        elif wire == _VARINT:
            _, after = _varint(data, position, end)
        elif wire in (_FIXED64, _FIXED32):
            after = position + (8 if wire == _FIXED64 else 4)
        else:
            raise _Unclear
        if after > end:
            raise _Unclear
        found.append(_Field(tag >> 3, wire, start, position, after))
        position = after
    return found


def _varint(data: _Window, position: int, end: int) -> tuple[int, int]:
    value = 0
    for count, byte in enumerate(data[position : min(position + 10, end)]):
        value |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return value, position + count + 1
    raise _Unclear


def _tag(number: int) -> bytes:
    return _encoded(number << 3 | _BYTES)


def _encoded(value: int) -> bytes:
    made = bytearray()
    while value >= 0x80:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)
