"""The weights file: safetensors, written as a stream with its SHA-256, read back only after every span was checked.

Layout (https://huggingface.co/docs/safetensors): eight bytes of little-endian header length, a JSON header
{name: {dtype, shape, data_offsets}}, then the tensors without gaps. Element types that safetensors lacks are stored
as U8 vectors of their raw bytes; the logical type is written down by whoever refers to the tensor.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from graphkit.errors import InvalidModel
from graphkit.ir.atomic import PendingFile
from graphkit.ir.types import DType

# Types whose bytes in memory are the bytes that safetensors defines.
CODES = {
    DType.FLOAT64: "F64",
    DType.FLOAT32: "F32",
    DType.FLOAT16: "F16",
    DType.BFLOAT16: "BF16",
    DType.INT64: "I64",
    DType.INT32: "I32",
    DType.INT16: "I16",
    DType.INT8: "I8",
    DType.UINT64: "U64",
    DType.UINT32: "U32",
    DType.UINT16: "U16",
    DType.UINT8: "U8",
    DType.BOOL: "BOOL",
    DType.FLOAT8E4M3FN: "F8_E4M3",
    DType.FLOAT8E5M2: "F8_E5M2",
}
_ITEMSIZE = {code: dtype.itemsize for dtype, code in CODES.items()}
_HEADER_LIMIT = 100_000_000
_ALIGNMENT = 64
_CHUNK = 16 << 20


class Stored(NamedTuple):
    """A tensor as the weights file has it: safetensors' type code, shape and raw bytes."""

    code: str
    shape: tuple[int, ...]
    data: memoryview

    @property
    def description(self) -> str:
        return f"{self.code}{list(self.shape)}"


def stored(array: np.ndarray, dtype: DType) -> Stored:
    """How `array`, of logical type `dtype`, is stored. Strings are a JSON list in UTF-8. No copy for numbers."""
    if dtype is DType.STRING:
        data = memoryview(json.dumps(array.reshape(-1).tolist()).encode())
    else:
        data = memoryview(np.ascontiguousarray(array, dtype.numpy).reshape(-1).view(np.uint8))  # type: ignore[arg-type]
    if dtype in CODES:
        return Stored(CODES[dtype], array.shape, data)
    return Stored("U8", (len(data),), data)


def restored(data: Any, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    """The inverse of `stored`: a read-only array; raises ValueError when the bytes do not fit `dtype` and `shape`."""
    if dtype is DType.STRING:
        strings = json.loads(bytes(data))
        if not isinstance(strings, list) or not all(isinstance(s, str) for s in strings):
            raise ValueError("a list of strings is expected")
        array = np.empty(len(strings), object)
        array[:] = strings
        if array.size != math.prod(shape):
            raise ValueError(f"{array.size} strings for shape {list(shape)}")
        array = array.reshape(shape)
    else:
        flat = np.frombuffer(data, np.uint8)
        if flat.size != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"{flat.size} bytes for {dtype}{list(shape)}")
        if dtype is DType.BOOL and flat.size and flat.max() > 1:
            raise ValueError("a boolean byte is neither 0 nor 1")
        array = flat.view(dtype.numpy).reshape(shape)
    array.flags.writeable = False
    return array


def write_weights(file: PendingFile, tensors: Mapping[str, Stored]) -> tuple[str, int]:
    """Write a safetensors file; return its SHA-256 in hexadecimal and its size in bytes."""
    # Wide elements first: without gaps, every tensor then starts at a multiple of its element size.
    ordered = sorted(tensors.items(), key=lambda item: -_ITEMSIZE[item[1].code])
    header: dict[str, Any] = {"__metadata__": {"format": "graphkit"}}
    position = 0
    for name, tensor in ordered:
        end = position + tensor.data.nbytes
        header[name] = {"dtype": tensor.code, "shape": list(tensor.shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    digest = hashlib.sha256()
    size = 0
    for piece in _pieces(len(text).to_bytes(8, "little") + text, *(tensor.data for _, tensor in ordered)):
        digest.update(piece)
        file.write(piece)
        size += piece.nbytes
    return digest.hexdigest(), size


def _pieces(*buffers: Any) -> Iterator[memoryview]:
    for buffer in buffers:
        view = memoryview(buffer).cast("B") if len(buffer) else memoryview(b"")
        for start in range(0, view.nbytes, _CHUNK):
            yield view[start : start + _CHUNK]


class _Span(NamedTuple):
    code: str
    shape: tuple[int, ...]
    start: int
    end: int


def read_weights(path: Path, sha256: str, expected: Mapping[str, tuple[str, tuple[int, ...]]]) -> dict[str, np.ndarray]:
    """Read the tensors of a weights file as byte arrays (uint8 vectors), verifying the file's SHA-256.

    `expected` gives type code and shape of each tensor that must be there (a shape of None is not compared).
    Raises InvalidModel naming the file and the tensor: missing, truncated, mismatched or changed. Nothing is
    allocated before every size and offset was checked against the size of the file.
    """
    try:
        with path.open("rb", buffering=0) as file:
            size = file.seek(0, 2)
            file.seek(0)
            return _read(file, size, path, sha256, expected)
    except OSError as error:
        needed = _listed(list(expected))
        raise InvalidModel(
            f"weights file {path.name!r}, which holds {needed}, cannot be read: {error.strerror}"
        ) from None


def _read(file: Any, size: int, path: Path, sha256: str, expected: Mapping[str, Any]) -> dict[str, np.ndarray]:
    where = f"weights file {path.name!r}"
    prefix = file.read(8)
    length = int.from_bytes(prefix, "little")
    if len(prefix) < 8 or length > min(size - 8, _HEADER_LIMIT):
        raise InvalidModel(f"{where} is truncated or no safetensors file; it should hold {_listed(list(expected))}")
    text = _read_exactly(file, length)
    spans = _parse_header(text, size - 8 - length, where)
    for name, (code, shape) in expected.items():
        if name not in spans:
            raise InvalidModel(f"{where} lacks tensor {name!r}")
        found = spans[name]
        if found.code != code or (shape is not None and found.shape != shape):
            wanted = code + ("" if shape is None else str(list(shape)))
            raise InvalidModel(f"{where}: tensor {name!r} is {found.code}{list(found.shape)}, the graph says {wanted}")
    digest = hashlib.sha256(prefix + text)
    arrays: dict[str, np.ndarray] = {}
    for name, span in spans.items():
        array = np.empty(span.end - span.start, np.uint8)
        view = memoryview(array)  # type: ignore[arg-type]
        for start in range(0, array.size, _CHUNK):
            piece = view[start : start + _CHUNK]
            if not _fill(file, piece):
                raise InvalidModel(f"{where} ends inside tensor {name!r}")
            digest.update(piece)
        array.flags.writeable = False
        arrays[name] = array
    if digest.hexdigest() != sha256:
        raise InvalidModel(f"{where} is not the one that the graph was saved with: its SHA-256 differs")
    return arrays


def _parse_header(text: bytes, room: int, where: str) -> dict[str, _Span]:
    """Spans in file order, checked: known type, sane shape, size = shape, no gap, no overlap, inside the file."""
    try:
        header = json.loads(text.decode())
    except (ValueError, RecursionError):
        raise InvalidModel(f"{where} has a damaged header") from None
    if not isinstance(header, dict):
        raise InvalidModel(f"{where} has a damaged header")
    header.pop("__metadata__", None)
    spans = {}
    for name, entry in header.items():
        try:
            code, shape, (start, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        except (TypeError, KeyError, ValueError):
            raise InvalidModel(f"{where}: tensor {name!r} has a damaged header entry") from None
        if code not in _ITEMSIZE:
            raise InvalidModel(f"{where}: tensor {name!r} has the unknown type {code!r}")
        if not all(type(n) is int and n >= 0 for n in (*shape, start, end)):
            raise InvalidModel(f"{where}: tensor {name!r} has a negative or non-integer size")
        if math.prod(shape) * _ITEMSIZE[code] != end - start:
            raise InvalidModel(f"{where}: tensor {name!r}, {code}{list(shape)}, does not fill its {end - start} bytes")
        spans[name] = _Span(code, shape, start, end)
    position = 0
    ordered = dict(sorted(spans.items(), key=lambda item: (item[1].start, item[1].end)))
    for name, span in ordered.items():
        if span.start != position:
            raise InvalidModel(f"{where}: tensor {name!r} starts at {span.start}, expected {position}")
        if span.end > room:
            raise InvalidModel(f"{where} is truncated: tensor {name!r} ends at byte {span.end} of {room}")
        position = span.end
    if position != room:
        raise InvalidModel(f"{where} has {room - position} bytes after its last tensor")
    return ordered


def _read_exactly(file: BinaryIO, count: int) -> bytes:
    buffer = bytearray(count)
    return bytes(buffer) if _fill(file, memoryview(buffer)) else b""


def _fill(file: Any, view: memoryview) -> bool:
    done = 0
    while done < len(view):
        count = file.readinto(view[done:])
        if not count:
            return False
        done += count
    return True


def _listed(names: list[str]) -> str:
    if not names:
        return "no tensors"
    return f"tensor {names[0]!r}" + (f" and {len(names) - 1} more" if len(names) > 1 else "")
