"""The wire format of a model file, read as far as it takes to find the large tensors in it.

The protobuf library copies a file's bytes and copies every tensor out of that copy. Here large initialisers are cut out
before it sees the file, and are read from there straight into arrays when somebody asks for them. The format is that of
protobuf.dev/programming-guides/encoding; the field numbers are those of onnx.proto.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from graphkit.errors import InvalidModel

# Initialisers of at least so many bytes are cut out.
LARGE = 1 << 16

_MODEL_GRAPH: Final = 7
_GRAPH_INITIALIZER: Final = 5
_TENSOR_NAME: Final = 8
_TENSOR_RAW_DATA: Final = 9

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class _Unclear(Exception):
    """The bytes are not laid out as expected; the protobuf library will say what is wrong with them."""


class _Field(NamedTuple):
    number: int
    wire: int
    start: int  # of the tag
    body: int  # of the value
    end: int


class LargeTensors:
    """Data of initialisers, by name, in a file that stays open until `close`."""

    def __init__(self, path: Path, descriptor: int, places: dict[str, tuple[int, int]]):
        self._path = path
        self._descriptor = descriptor
        self._places = places

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def read(self, name: str) -> np.ndarray:
        """The bytes (uint8, read-only) of an initialiser; raises InvalidModel when they are gone."""
        offset, size = self._places[name]
        made = np.empty(size, np.uint8)
        rest = made.data
        while rest:
            count = os.preadv(self._descriptor, [rest], offset)
            if count == 0:
                raise InvalidModel(f"{self._path}: initializer {name!r}: the file became shorter while it was read")
            rest, offset = rest[count:], offset + count
        made.flags.writeable = False
        return made

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def cut_out(path: Path) -> tuple[bytes, LargeTensors] | None:
    """The file's bytes without the raw data of its large initialisers, and these.

    None when there are none, or when the file is not laid out like a model: then it is for the parser to read it whole.
    Raises OSError.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as data:
            pieces, places = _scan(data)
            if places:
                kept = LargeTensors(path, descriptor, places)
                descriptor = -1
                return b"".join(pieces), kept
    except (_Unclear, ValueError):  # an empty file cannot be mapped
        pass
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    return None


def _scan(data: mmap.mmap) -> tuple[list[bytes], dict[str, tuple[int, int]]]:
    pieces: list[bytes] = []
    places: dict[str, tuple[int, int]] = {}
    for field in _fields(data, 0, len(data)):
        if field.number == _MODEL_GRAPH and field.wire == _BYTES:
            graph = b"".join(_without_large(data, field, places))
            pieces += [_tag(_MODEL_GRAPH), _encoded(len(graph)), graph]
        else:
            pieces.append(data[field.start : field.end])
    return pieces, places


def _without_large(data: mmap.mmap, graph: _Field, places: dict[str, tuple[int, int]]) -> list[bytes]:
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


def _fields(data: mmap.mmap, position: int, end: int) -> list[_Field]:
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


def _varint(data: mmap.mmap, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while position < end and shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
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
