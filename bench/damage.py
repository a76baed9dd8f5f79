"""Damage done to files on purpose: to their bytes, to JSON, protobuf, safetensors, archives of arrays.

All of it follows from a random generator.
"""

from __future__ import annotations

import io
import json
import math
import random
import struct
import zipfile
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

INTEGERS = (
    0, 1, -1, 2, -2, 3, 5, 7, 8, 16, 31, 63, 64, 100, 127, 128, 255, 256, -128, 1000, 4096, 65535, 65536, 10**6,
    2**31 - 1, 2**31, -(2**31), 2**32, 2**40, -(2**40), 2**53, 2**62, -(2**62), 2**63 - 1, -(2**63),
)  # fmt: skip
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 1e-45, 1e-30, 1e30, -1e30, 3e38, math.inf, -math.inf, math.nan, 1e9)
TEXTS = (
    "", "x", "a" * 10_000, "\x1b[2J\x1b]0;t\x07", "..", "/etc/passwd", "a\nb", "é", "SAME_UPPER", "VALID", "NOTSET",
    "bilinear", "nearest", "cubic", "linear", "reflect", "edge", "wrap", "constant", "mean", "sum", "none", "mul",
    "add", "max", "min", "ij,jk->ik", "...i,i->", "ii->i", "tf_crop_and_resize", "align_corners",
    "reverse", "bidirectional",
)  # fmt: skip


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Flip, cut off, insert, double or remove bytes."""
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        place = rng.randrange(len(made) + 1)
        match rng.randrange(6):
            case 0 if place < len(made):
                made[place] ^= 1 << rng.randrange(8)
            case 1:
                del made[place:]
            case 2:
                made[place:place] = rng.randbytes(rng.randrange(1, 12))
            case 3:
                end = place + rng.randrange(64)
                made[place:place] = made[place:end]
            case 4:
                del made[place : place + rng.randrange(1, 64)]
            case _ if place < len(made):
                made[place] = rng.choice((0, 0x7F, 0x80, 0xFF))
        if not made:
            break
    return bytes(made)


# --- JSON ---------------------------------------------------------------------------------------------


def damaged_json(text: bytes, rng: random.Random) -> bytes:
    """Replace, remove or nest values of JSON, or damage its text."""
    kind = rng.random()
    if kind < 0.15:
        return damaged(text, rng)
    if kind < 0.3:
        return _odd_text(text, rng)
    document = json.loads(text)
    for _ in range(rng.choice((1, 1, 2, 3))):
        places = list(_places(document))
        if not places:
            break
        container, key = rng.choice(places)
        match rng.randrange(5):
            case 0:
                container[key] = rng.choice((*INTEGERS, 10**400, None, True, [], {}, "", -1.5, 1e400))
            case 1:
                container[key] = rng.choice(TEXTS)
            case 2:
                del container[key]
            case 3:
                other, there = rng.choice(places)
                container[key] = json.loads(json.dumps(other.get(there) if isinstance(other, dict) else None))
            case _:
                for _ in range(rng.choice((1, 3, 100))):
                    container[key] = [container[key]]
    return json.dumps(document).encode()


def _odd_text(text: bytes, rng: random.Random) -> bytes:
    """Change JSON where parsers differ: constants, duplicate keys, lone surrogates, encodings, depth, long numbers."""
    numbers = [i for i, byte in enumerate(text) if byte in b"0123456789"] or [0]
    place = rng.choice(numbers)
    depth = rng.choice((10, 900, 1100, 100_000))
    match rng.randrange(9):
        case 0:
            return (
                text[:place]
                + rng.choice((b"NaN", b"-Infinity", b"1e999", b"-0", b"1" * 5000, b"1.5"))
                + text[place + 1 :]
            )
        case 1:
            return text.replace(b"{", b'{"name": 3, ', rng.choice((1, 3)))
        case 2:
            return text.replace(
                b'"', rng.choice((b'"\\ud800', b'"\\u0000', b'"\\x', b'"\xed\xa0\x80', b'"\xff')), rng.randrange(20)
            )
        case 3:
            return b"\xef\xbb\xbf" + text
        case 4:
            return text.decode().encode(rng.choice(("utf-16", "utf-32", "utf-16-le")))
        case 5:
            return b"[" * depth + b"]" * depth
        case 6:
            return text[:place] + b'{"a":' * depth + b"1" + b"}" * depth + text[place + 1 :]
        case 7:
            return text + rng.choice((b"\0", b"{}", b" " * 10_000, b"\n//", b","))
        case _:
            return rng.choice((b"", b" ", b"null", b"3", b'"graphkit"', b"[]", b"{}", b'{"format": "graphkit"}'))


def _places(value: Any) -> Any:
    """Return every (container, key) below a value. In lists, elements after a change are left out."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield value, key
        yield from _places(inner)


# --- protobuf -----------------------------------------------------------------------------------------

# By message of onnx.proto, the fields to go into.
_INSIDE: Mapping[str, Mapping[int, str]] = {
    "model": {7: "graph", 8: "leaf", 25: "function"},
    "graph": {1: "node", 5: "tensor", 11: "value", 12: "value", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 14: "type"},
    "function": {7: "node", 11: "attribute"},
    "tensor": {13: "leaf"},
    "sparse": {1: "tensor", 2: "tensor"},
    "value": {2: "type"},
    "type": {1: "leaf", 4: "type", 5: "type", 9: "type"},
    "leaf": {},
}  # fmt: skip


def varint(value: int, size: int = 0) -> bytes:
    """Encode a varint, in at least `size` bytes."""
    made = bytearray()
    while True:
        value, low = value >> 7, value & 0x7F
        if not value and len(made) + 1 >= size:
            return bytes([*made, low])
        made.append(low | 0x80)


def rewired(data: bytes, rng: random.Random) -> bytes:
    """Change the frames of one to four fields of a model file: tags, lengths, order, depth."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        data = _nested(rng) if rng.random() < 0.02 else _rewired(data, "model", rng)
    return data


def _fields(data: bytes) -> list[tuple[int, int, bytes]] | None:
    """Return (number, wire type, value) of each field; None if the bytes are not a message."""
    found, position = [], 0
    try:
        while position < len(data):
            tag, position = _varint(data, position)
            start = position
            if tag & 7 == 2:
                size, start = _varint(data, position)
                position = start + size
            elif tag & 7 == 0:
                _, position = _varint(data, position)
            elif tag & 7 in (1, 5):
                position += 8 if tag & 7 == 1 else 4
            else:
                return None
            if position > len(data):
                return None
            found.append((tag >> 3, tag & 7, data[start:position]))
    except IndexError:
        return None
    return found


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = data[position]
        value, shift, position = value | (byte & 0x7F) << shift, shift + 7, position + 1
        if byte < 0x80:
            return value, position


def _field(number: int, wire: int, value: bytes) -> bytes:
    return varint(number << 3 | wire) + (varint(len(value)) if wire == 2 else b"") + value


def _rewired(data: bytes, kind: str, rng: random.Random) -> bytes:
    fields = _fields(data)
    if not fields:
        return data + _strange(rng)
    inside = _INSIDE[kind]
    deeper = [i for i, (number, wire, _) in enumerate(fields) if wire == 2 and number in inside]
    parts = [_field(*field) for field in fields]
    if deeper and rng.random() < 0.75:
        place = rng.choice(deeper)
        number, wire, value = fields[place]
        parts[place] = _field(number, wire, _rewired(value, inside[number], rng))
    else:
        place = rng.randrange(len(fields))
        parts[place] = _changed(*fields[place], rng)
        if rng.random() < 0.2:
            rng.shuffle(parts)
    return b"".join(parts)


def _changed(number: int, wire: int, value: bytes, rng: random.Random) -> bytes:
    """Return the field with another frame, or twice, or remove it."""
    whole = _field(number, wire, value)
    tag = varint(number << 3 | wire)
    match rng.randrange(10):
        case 0:  # a length that is not that of the value
            size = rng.choice((*(abs(i) for i in INTEGERS), len(value) + 1, max(len(value) - 1, 0), 2**64 - 1))
            return tag + varint(size) + value if wire == 2 else tag
        case 1:  # varints longer than they need be, up to one byte too many
            size = rng.choice((2, 5, 9, 10, 11))
            return varint(number << 3 | wire, size) + (varint(len(value), size) if wire == 2 else b"") + value
        case 2:
            return whole + whole
        case 3:
            return b""
        case 4:
            return _field(rng.choice((0, number + 1, rng.randrange(32), 2**29 - 1, 2**29, 2**40)), wire, value)
        case 5:
            return varint(number << 3 | rng.randrange(8)) + (varint(len(value)) if wire == 2 else b"") + value
        case 6:
            return whole + _strange(rng)
        case 7:  # one message in two parts, which a reader must merge
            fields = _fields(value) if wire == 2 else None
            cut = rng.randrange(len(fields) + 1) if fields else 0
            halves = (
                [b"".join(_field(*f) for f in part) for part in (fields[:cut], fields[cut:])] if fields else [value]
            )
            return b"".join(_field(number, wire, half) for half in halves)
        case 8:
            return whole[: rng.randrange(len(whole) + 1)]
        case _:
            return _field(number, wire, damaged(value, rng))


def _strange(rng: random.Random) -> bytes:
    """Return unknown fields, complete and unfinished groups, or endless varints."""
    group = rng.randrange(1, 100)
    return rng.choice((
        _field(rng.randrange(30, 1000), 2, rng.randbytes(8)), _field(1000, 0, varint(2**64 - 1)),
        varint(group << 3 | 3) + varint(group << 3 | 4), varint(group << 3 | 3) * rng.choice((1, 200)),
        varint(group << 3 | 4), b"\xff" * rng.choice((1, 9, 10, 30)), b"\0", b"\x80",
    ))  # fmt: skip


def _nested(rng: random.Random) -> bytes:
    """Return nested branches, or nested types."""
    depth = rng.choice((5, 31, 33, 98, 101, 1000, 20_000))
    if rng.random() < 0.5:
        kind = _field(1, 2, _field(1, 0, varint(1)))
        for _ in range(depth):
            kind = _field(rng.choice((4, 9)), 2, _field(1, 2, kind))
        graph = _field(11, 2, _field(1, 2, b"x") + _field(2, 2, kind))
    else:
        graph = _field(12, 2, _field(1, 2, b"y"))
        for _ in range(depth):
            branch = _field(5, 2, _field(1, 2, b"then_branch") + _field(20, 0, varint(5)) + _field(6, 2, graph))
            node = _field(1, 2, b"x") + _field(2, 2, b"y") + _field(4, 2, b"If") + branch
            graph = _field(1, 2, node) + _field(12, 2, _field(1, 2, b"y"))
    opset = _field(8, 2, _field(2, 0, varint(17)))
    return _field(1, 0, varint(8)) + opset + _field(7, 2, graph)


# --- safetensors --------------------------------------------------------------------------------------


def damaged_safetensors(data: bytes, rng: random.Random) -> bytes:
    """Change the header or its length, or damage bytes."""
    if rng.random() < 0.2 or len(data) < 8:
        return damaged(data, rng)
    (size,) = struct.unpack("<Q", data[:8])
    header, body = data[8 : 8 + size], data[8 + size :]
    if rng.random() < 0.25:
        length = rng.choice((*(i % 2**64 for i in INTEGERS), size + 1, size - 1, len(data), 10**8))
        return struct.pack("<Q", length) + header + body
    if rng.random() < 0.7:
        document = json.loads(header)
        entries = [entry for name, entry in document.items() if name != "__metadata__"]
        entry = rng.choice(entries)
        match rng.randrange(5):
            case 0:
                entry["shape"] = rng.choice(
                    ([], [0], [2**62, 4], [-1], [1] * 70, [2**64], [1.5], None, entry["shape"] * 2)
                )
            case 1:
                entry["dtype"] = rng.choice(("F32", "F64", "U8", "BOOL", "F8_E4M3", "F4", "I2", "C64", "X", 3, None))
            case 2:
                offset = rng.choice(INTEGERS)
                entry["data_offsets"] = rng.choice(
                    ([0, offset], [offset, 0], [offset], [], entry["data_offsets"][::-1])
                )
            case 3:
                document["other"] = dict(entry)
            case _:
                document["__metadata__"] = rng.choice((None, 3, {"a": 1}, {"a": "b"}, []))
        header = json.dumps(document).encode()
    else:
        header = damaged_json(header, rng)
    if rng.random() < 0.5:
        header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + body


# --- arrays -------------------------------------------------------------------------------------------

_DESCRIPTIONS = (
    "'<f4'",
    "'<f8'",
    "'|O'",
    "'<U3'",
    "'<U1000000000'",
    "'|S0'",
    "'<U0'",
    "'|V0'",
    "'|V16'",
    "'<M8[s]'",
    "'<c16'",
    "'>i2'",
    "'|b1'",
    "'<f2'",
    "'<g'",
    "''",
    "'x'",
    "'<f4,<f4'",
    "'(2,3)<f4'",
    "[('a', '<f4')]",
    "[('a', '|O')]",
    "[('', '|V4')]",
    "()",
    "('<f4',)",
    "('<f4', (2,))",
    "('<f4', -1)",
    "[]",
    "[()]",
    "{}",
    "3",
    "None",
    "{'names': ['a']}",
    "['<f4']",
)
_SHAPES = (
    "(3,)",
    "(2, 3)",
    "()",
    "(0,)",
    "(-1,)",
    "(4611686018427387904, 4)",
    "(9223372036854775808,)",
    "(1099511627776,)",
    "[3]",
    "(True,)",
    "(1.5,)",
    "3",
    "None",
    "(3",
    "(" * 200 + ")" * 200,
    "(1,) * 9",
    "__import__('os').abort()",
    "(1, 1)" * 70,
)


def npy(rng: random.Random, array: np.ndarray) -> bytes:
    """Return an .npy file whose header does not match its data."""
    descr = rng.choice(_DESCRIPTIONS) if rng.random() < 0.6 else repr(np.lib.format.dtype_to_descr(array.dtype))
    shape = rng.choice(_SHAPES) if rng.random() < 0.6 else repr(array.shape)
    order = rng.choice(("False", "False", "True", "None", "3"))
    text = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"
    if rng.random() < 0.15:
        text = rng.choice(
            (
                "",
                "{",
                "{}",
                "3",
                "x",
                "1L",
                text[:-5],
                text + "#",
                text * 2,
                "\x00" + text,
                " " * 70_000 + text,
                text.replace("}", "'a': 1}"),
                text.replace("'shape'", "b'shape'"),
                "\n" + text,
                text + "\n\\",
            )
        )
    version = rng.choice((1, 1, 1, 2, 3, 0, 255))
    header = text.encode("latin1") + b"\n"
    frame = struct.pack("<H", len(header) % 2**16) if version == 1 else struct.pack("<I", len(header))
    return b"\x93NUMPY" + bytes([version, 0]) + frame + header + array.tobytes()


@cache
def _zeros(size: int) -> bytes:
    file = io.BytesIO()
    np.save(file, np.zeros(size, np.uint8))
    return file.getvalue()


def archive(rng: random.Random, arrays: Mapping[str, np.ndarray], bomb: int) -> bytes:
    """Return an .npz file with odd members, methods or sizes, or with a member of `bomb` bytes; or a damaged file."""
    file = io.BytesIO()
    method = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
    with zipfile.ZipFile(file, "w", method) as made:
        for name, array in arrays.items():
            plain = io.BytesIO()
            np.save(plain, array)
            data = npy(rng, array) if rng.random() < 0.3 else plain.getvalue()
            made.writestr(
                rng.choice((f"{name}.npy", f"{name}.npy", f"{name}.npy", name, "../x.npy", "a" * 5000, "x.npy.npy")),
                data,
            )
        if rng.random() < 0.15:
            made.writestr("x.txt", rng.choice((b"", b"text", b"\x80\x04N.", b"\x93NUMPY", b"\x93NUM")))
        if rng.random() < 0.15:
            made.writestr("big.npy", _zeros(bomb))
    data = bytearray(file.getvalue())
    if rng.random() < 0.4:  # fields of headers: methods, flags, sizes
        for _ in range(rng.choice((1, 2, 3))):
            signature = rng.choice((b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06"))
            starts = [i for i in range(len(data) - 46) if data.startswith(signature, i)]
            if starts:
                place = rng.choice(starts) + rng.randrange(4, 46)
                data[place] = rng.choice((0, 1, 8, 9, 12, 14, 99, 0x7F, 0xFF, rng.randrange(256)))
    return damaged(bytes(data), rng) if rng.random() < 0.25 else bytes(data)
