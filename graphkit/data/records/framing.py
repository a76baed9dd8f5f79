"""RecordIO: how records stand in a file, one behind the other.

A record is one part or several. A part is the magic number, a word that has the kind of part in its upper 3 bits and
the number of bytes in the lower 29, the bytes, and zeros up to a multiple of 4; all words are little-endian. Where the
magic number stands in the data at a multiple of 4, the record is cut there, and the number left out: so a reader that
has lost its place finds the next record by the magic number (dmlc-core, include/dmlc/recordio.h).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

from graphkit.errors import InputError

MAGIC = 0xCED7230A
MAGIC_BYTES = struct.pack("<I", MAGIC)
_MAGIC_PATTERN = re.compile(re.escape(MAGIC_BYTES))

# Kinds of parts.
WHOLE, FIRST, MIDDLE, LAST = range(4)

_LENGTH_BITS = 29
LONGEST = (1 << _LENGTH_BITS) - 1

# Before the bytes of a part.
HEAD = struct.Struct("<II")
_HEAD_SIZE = HEAD.size


class Damage(NamedTuple):
    """A place in a record file that is none of a record's."""

    position: int
    reason: str

    def __str__(self) -> str:
        return f"at byte {self.position}: {self.reason}"


class Torn(Exception):
    """What a buffer has at `position` is no record; more bytes would not help."""

    def __init__(self, position: int, reason: str):
        super().__init__(position, reason)
        self.position, self.reason = position, reason


def framed(data: bytes | bytearray | memoryview) -> list[bytes | memoryview]:
    """A record as it stands in a file, in pieces. Raises InputError for 2^29 bytes and more, which no part can have."""
    size = len(data)
    if size > LONGEST:
        raise InputError(f"a record has fewer than 2^29 bytes, not {size}")
    view = memoryview(data)
    pieces: list[bytes | memoryview] = []
    begin = 0
    for cut in _magic_places(data):
        pieces += (HEAD.pack(MAGIC, (FIRST if begin == 0 else MIDDLE) << _LENGTH_BITS | (cut - begin)), view[begin:cut])
        begin = cut + 4
    kind = WHOLE if begin == 0 else LAST
    pieces += (HEAD.pack(MAGIC, kind << _LENGTH_BITS | (size - begin)), view[begin:], bytes(-size % 4))
    return pieces


def _magic_places(data: bytes | bytearray | memoryview, begin: int = 0) -> Iterator[int]:
    """Multiples of 4, from one on, where data have the magic number, which does not repeat within itself."""
    return (found.start() for found in _MAGIC_PATTERN.finditer(data, begin) if found.start() % 4 == 0)


def record_at(data: memoryview, place: int) -> tuple[memoryview, int] | None:
    """The record that begins at a place, and where the next one does; None where the buffer ends before it does.

    A record in one part is a view of the buffer. Raises Torn where there is none.
    """
    if len(data) - place < _HEAD_SIZE:
        return None
    magic, word = HEAD.unpack_from(data, place)
    length = word & LONGEST
    begin = place + _HEAD_SIZE
    end = begin + length
    if magic != MAGIC:
        raise Torn(place, f"{magic:#010x} stands where a record begins")
    if word >> _LENGTH_BITS == WHOLE:
        return None if end > len(data) else (data[begin:end], end + (-length & 3))
    return _in_parts(data, place)


def _in_parts(data: memoryview, first: int) -> tuple[memoryview, int] | None:
    parts: list[bytes | memoryview] = []
    place, kind = first, FIRST
    expected: tuple[int, ...] = (FIRST,)
    while kind != LAST:
        if len(data) - place < _HEAD_SIZE:
            return None
        magic, word = HEAD.unpack_from(data, place)
        kind, length = word >> _LENGTH_BITS, word & LONGEST
        if magic != MAGIC or kind not in expected:
            what = f"a part of kind {kind}" if magic == MAGIC else f"{magic:#010x}"
            raise Torn(place, f"{what} stands where a record {'goes on' if parts else 'begins'}")
        begin = place + _HEAD_SIZE
        if begin + length > len(data):
            return None
        if parts:
            parts.append(MAGIC_BYTES)
        parts.append(data[begin : begin + length])
        place = begin + length + (-length & 3)
        expected = (MIDDLE, LAST)
    return memoryview(b"".join(parts)), place


def next_record(data: memoryview, begin: int) -> int:
    """The first place from one on that looks like the beginning of a record; the end of the data where none does."""
    for place in _magic_places(data, begin):
        if len(data) - place >= _HEAD_SIZE and HEAD.unpack_from(data, place)[1] >> _LENGTH_BITS in (WHOLE, FIRST):
            return place
    return len(data)
