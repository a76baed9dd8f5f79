"""RecordIO: how records are stored in a file, one after another.

A record has one part or several. A part consists of the magic number, a word with the kind of part in its upper 3 bits
and the number of bytes in the lower 29, the bytes, and zeros up to a multiple of 4. All words are little-endian. If the
magic number occurs in the data at a multiple of 4, the record is divided there, and the number is left out. So a reader
that has lost its place finds the next record by the magic number (dmlc-core, include/dmlc/recordio.h).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

from graphkit.errors import InputError
from graphkit.named_tuples import NamedTuple

MAGIC = 0xCED7230A
MAGIC_BYTES = struct.pack("<I", MAGIC)
_MAGIC_PATTERN = re.compile(re.escape(MAGIC_BYTES))

# Kinds of parts.
WHOLE, FIRST, MIDDLE, LAST = range(4)

_LENGTH_BITS = 29
LONGEST = (1 << _LENGTH_BITS) - 1

# The header of a part: magic number, and the word with kind and length.
HEAD = struct.Struct("<II")
_HEAD_SIZE = HEAD.size


class Damage(NamedTuple):
    """A place in a record file that does not belong to a record."""

    position: int
    reason: str

    def __str__(self) -> str:
        return f"at byte {self.position}: {self.reason}"


class Torn(Exception):
    """The bytes at `position` of a buffer are not a record, and more bytes would not help."""

    def __init__(self, position: int, reason: str):
        super().__init__(position, reason)
        self.position, self.reason = position, reason


def framed(data: bytes | bytearray | memoryview) -> list[bytes | memoryview]:
    """Return a record as it is stored in a file, in pieces. Raises InputError for 2^29 bytes or more, the limit of a
    part.
    """
    size = len(data)
    if size > LONGEST:
        raise InputError(f"a record must have fewer than 2^29 bytes, not {size}")
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
    """Positions in `data`, from `begin` on, that are multiples of 4 and contain the magic number."""
    return (found.start() for found in _MAGIC_PATTERN.finditer(data, begin) if found.start() % 4 == 0)


def record_at(data: memoryview, place: int) -> tuple[memoryview, int] | None:
    """Return the record that begins at a place, and the place of the next one; None if the buffer ends too early.

    A record with one part is a view of the buffer. Raises Torn if there is no record.
    """
    if len(data) - place < _HEAD_SIZE:
        return None
    magic, word = HEAD.unpack_from(data, place)
    length = word & LONGEST
    begin = place + _HEAD_SIZE
    end = begin + length
    if magic != MAGIC:
        raise Torn(place, f"found {magic:#010x} where a record must begin")
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
            raise Torn(place, f"found {what} where a record must {'continue' if parts else 'begin'}")
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
    """Return the first place at or after `begin` that looks like the beginning of a record; else the end of the
    data.
    """
    for place in _magic_places(data, begin):
        if len(data) - place >= _HEAD_SIZE and HEAD.unpack_from(data, place)[1] >> _LENGTH_BITS in (WHOLE, FIRST):
            return place
    return len(data)
