"""A reader of event files, written from their specifications: TFRecord frames with CRC-32C, protobuf's wire format."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def crc32c(data: bytes) -> int:
    """RFC 3720, appendix B.4, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> int:
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def frames(data: bytes) -> Iterator[bytes]:
    """The whole records of a file; a record that is cut off ends it, a damaged one raises."""
    at = 0
    while len(data) - at >= 12:
        length, crc = struct.unpack_from("<QI", data, at)
        assert crc == masked(data[at : at + 8]), f"the length at byte {at} is damaged"
        body = data[at + 12 : at + 12 + length]
        if len(data) < at + 16 + length:
            return
        assert struct.unpack_from("<I", data, at + 12 + length)[0] == masked(body), f"the record at {at} is damaged"
        yield body
        at += 16 + length


def fields(message: bytes) -> dict[int, list[Any]]:
    """Return the values of fields by number: integers, raw 4 or 8 bytes, or the bytes of fields with a length."""
    found: dict[int, list[Any]] = defaultdict(list)
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at, value, shift = at + 1, value | (byte & 0x7F) << shift, shift + 7
            if not byte & 0x80:
                return value

    while at < len(message):
        number, kind = divmod(varint(), 8)
        if kind == 0:
            found[number].append(varint())
            continue
        size = {1: 8, 5: 4}[kind] if kind != 2 else varint()
        assert at + size <= len(message), "the message is cut off"
        found[number].append(message[at : at + size])
        at += size
    return found


def double(data: bytes) -> float:
    return struct.unpack("<d", data)[0]


class Events:
    """The contents of the event files of a folder: pairs (step, value) by tag.

    If a run is resumed from an earlier step, values after that step are dropped. Numbers of fields are those of
    TensorFlow's event.proto, summary.proto and graph.proto.
    """

    def __init__(self, folder: Path):
        self.scalars: dict[str, list[tuple[int, float]]] = defaultdict(list)
        self.histograms: dict[str, list[tuple[int, dict[str, Any]]]] = defaultdict(list)
        self.pictures: dict[str, list[tuple[int, bytes]]] = defaultdict(list)
        self.texts: dict[str, list[tuple[int, str]]] = defaultdict(list)
        self.graphs: list[dict[str, tuple[str, list[str]]]] = []
        self.files = sorted(folder.glob("*tfevents*"))
        for path in self.files:
            for number, record in enumerate(frames(path.read_bytes())):
                self._event(fields(record), first=number == 0)

    def _event(self, event: dict[int, list[Any]], first: bool) -> None:
        assert double(event[1][0]) > 1.6e9  # wall_time
        step = event.get(2, [0])[0]
        assert (3 in event) == first
        if first:
            assert event[3] == [b"brain.Event:2"]
        if 7 in event and fields(event[7][0])[1] == [1]:  # session_log: START
            for kind in (self.scalars, self.histograms, self.pictures, self.texts):
                for found in kind.values():
                    found[:] = [pair for pair in found if pair[0] < step]
        for graph in event.get(4, []):
            nodes = [fields(node) for node in fields(graph)[1]]
            self.graphs.append({n[1][0].decode(): (n[2][0].decode(), [i.decode() for i in n[3]]) for n in nodes})
        for summary in event.get(5, []):
            for value in fields(summary)[1]:
                self._value(step, fields(value))

    def _value(self, step: int, value: dict[int, list[Any]]) -> None:
        tag = value[1][0].decode()
        if 2 in value:
            self.scalars[tag].append((step, struct.unpack("<f", value[2][0])[0]))
        elif 4 in value:
            picture = fields(value[4][0])
            self.pictures[tag].append((step, picture[4][0]))
        elif 5 in value:
            found = fields(value[5][0])
            packed = {n: struct.unpack(f"<{len(found[n][0]) // 8}d", found[n][0]) for n in (6, 7)}
            names = {1: "min", 2: "max", 3: "num", 4: "sum", 5: "sum_squares"}
            numbers = {name: double(found[n][0]) if n in found else 0.0 for n, name in names.items()}
            self.histograms[tag].append((step, {**numbers, "limits": packed[6], "counts": packed[7]}))
        else:
            self.texts[tag].append((step, fields(value[8][0])[8][0].decode()))
