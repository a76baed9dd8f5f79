"""The weights file: safetensors (https://huggingface.co/docs/safetensors), and its hash.

The file that refers to it contains the hash as `"hash": "blake2b8:<hexadecimal digits>"` (see graphkit/ir/hashing.py).
Older files contain `"sha256": "<hexadecimal digits>"`.

Element types that the format lacks are stored as U8 vectors of their raw bytes; the file that refers to the tensor
stores the logical type.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

from graphkit.errors import InvalidModel, UsageError
from graphkit.ir.atomic import PendingFile, write_whole
from graphkit.ir.hashing import BLAKE2B8, SHA256, hash_of
from graphkit.ir.stored import LARGE, StoredArray, StoredFile
from graphkit.ir.types import DType, dtype_of
from graphkit.named_tuples import NamedTuple

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
_DTYPES = {code: dtype for dtype, code in CODES.items()}

# The entry of a safetensors header that is not a tensor.
METADATA = "__metadata__"

_HEADER_ALIGNMENT = 8


class Stored(NamedTuple):
    """A tensor of a weights file.

    Attributes:
        code: The type, as safetensors names it.
        shape: The shape in the file.
        nbytes: Number of bytes.
        chunks: Yields the bytes in order. A chunk may change when the second one after it is requested.
    """

    code: str
    shape: tuple[int, ...]
    nbytes: int
    chunks: Callable[[], Iterable[memoryview]]

    def read(self) -> memoryview:
        """Return all bytes. Data in memory are not copied."""
        found = bytearray()
        for chunk in self.chunks():
            if chunk.nbytes == self.nbytes:
                return chunk
            found += chunk
        return memoryview(found).toreadonly()


def stored(array: np.ndarray | StoredArray, dtype: DType) -> Stored:
    """Return a tensor of a weights file for `array`, of logical type `dtype`. Strings are a JSON list in UTF-8.

    Numbers are not copied. An array that is in a file is read when its bytes are read.
    """
    if dtype is DType.STRING:
        text = memoryview(json.dumps(np.asarray(array).reshape(-1).tolist()).encode())
        return Stored("U8", (len(text),), len(text), lambda: (text,))
    nbytes = math.prod(array.shape) * dtype.itemsize
    code, shape = (CODES[dtype], array.shape) if dtype in CODES else ("U8", (nbytes,))
    return Stored(code, shape, nbytes, lambda: _chunks_of(array, dtype))


def _chunks_of(array: np.ndarray | StoredArray, dtype: DType) -> Iterable[memoryview]:
    if isinstance(array, StoredArray) and array.dtype == dtype.numpy:
        return array.blocks()
    return (np.ascontiguousarray(np.asarray(array), dtype.numpy).reshape(-1).view(np.uint8).data,)


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


class Written(NamedTuple):
    """A weights file that was written.

    Attributes:
        digest: Its hash, in hexadecimal.
        size: Number of bytes.
    """

    digest: str
    size: int

    def reference(self, name: str) -> dict[str, Any]:
        """Return the entry of the file that refers to this one, which is called `name`; see `read_weights`."""
        return {"file": name, "bytes": self.size, "hash": f"{BLAKE2B8}:{self.digest}"}


def write_weights(file: PendingFile, tensors: Mapping[str, Stored]) -> Written:
    """Write a safetensors file. Tensors are not copied."""
    head, ordered = _head(tensors)
    size = len(head) + sum(tensor.nbytes for tensor in ordered)
    return Written(hash_of(BLAKE2B8, _chunks(head, ordered), file.write, size), size)


def _head(tensors: Mapping[str, Stored]) -> tuple[bytes, list[Stored]]:
    """Return what a safetensors file begins with, and the tensors whose data follow.

    That is the length of the header in 8 bytes, and the header in JSON with the offsets of tensors in the data. Tensors
    with larger elements come first, so that all are aligned. The safetensors library is not used, because it would
    serialise to one bytes object, which doubles the memory.

    Raises UsageError if a tensor has the name of the metadata.
    """
    if METADATA in tensors:
        raise UsageError(f"a safetensors file cannot store a tensor named {METADATA!r}; use another name")
    header: dict[str, Any] = {METADATA: {"format": "graphkit"}}
    begin = 0
    ordered = sorted(tensors.items(), key=lambda item: (-_DTYPES[item[1].code].itemsize, item[0]))
    for name, tensor in ordered:
        end = begin + tensor.nbytes
        header[name] = {"dtype": tensor.code, "shape": list(tensor.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _HEADER_ALIGNMENT)
    return len(text).to_bytes(8, "little") + text, [tensor for _, tensor in ordered]


def _chunks(head: bytes, tensors: Iterable[Stored]) -> Iterator[bytes | memoryview]:
    yield head
    for tensor in tensors:
        yield from tensor.chunks()


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays of numbers to a safetensors file of their own, completely or not at all; see `write_whole`."""
    head, ordered = _head({name: stored(array, dtype_of(array.dtype)) for name, array in arrays.items()})
    write_whole(path, _chunks(head, ordered))


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a file of `write_arrays`, read-only. Raises InvalidModel for other files."""
    try:
        entries = safetensors.deserialize(path.read_bytes())
        return {name: restored(e["data"], _DTYPES[e["dtype"]], tuple(e["shape"])) for name, e in entries}
    except OSError as error:
        raise InvalidModel(f"{path} cannot be read: {error.strerror}") from None
    except KeyError as code:
        raise InvalidModel(f"{path} contains a tensor of the unsupported type {code}") from None
    except (safetensors.SafetensorError, ValueError) as error:
        raise InvalidModel(f"{path} is truncated or damaged: {error}") from None


def read_weights(
    path: Path, reference: Mapping[str, Any], expected: Mapping[str, tuple[str, tuple[int, ...] | None]]
) -> dict[str, np.ndarray | StoredArray]:
    """Return the tensors of a weights file as vectors of bytes (uint8). Large ones stay in the file.

    Args:
        path: The file.
        reference: The entry that refers to the file, with the hash that it must have, and perhaps its size (`bytes`).
        expected: Type code and shape of each tensor that must be in the file. A shape of None is not compared.

    Raises:
        InvalidModel: The file is missing, truncated, damaged or changed, a tensor does not match, or the hash is one
            that this version does not know. The message names the file and the tensor.
    """
    where = f"weights file {path.name!r}"
    hash_name, digest = _recorded_hash(where, reference)
    try:
        file = StoredFile(path)
    except OSError as error:
        raise InvalidModel(f"{where}, which holds {_listed(expected)}, cannot be read: {error.strerror}") from None
    try:
        found = _entries(file)
    except OSError as error:
        raise InvalidModel(f"{where}, which holds {_listed(expected)}, cannot be read: {error}") from None
    except (safetensors.SafetensorError, ValueError) as error:
        held = _listed(expected)
        raise InvalidModel(f"{where}, which should hold {held}, is truncated or damaged: {error}") from None
    for name, (code, shape) in expected.items():
        if name not in found:
            raise InvalidModel(f"{where} lacks tensor {name!r}")
        actual = found[name]
        if actual.code != code or (shape is not None and actual.shape != shape):
            wanted = code + ("" if shape is None else str(list(shape)))
            raise InvalidModel(
                f"{where}: tensor {name!r} is {actual.code}{list(actual.shape)}, but the graph says {wanted}"
            )
    size = reference.get("bytes", file.size)
    if type(size) is not int or size != file.size:
        raise InvalidModel(f"{where} has {file.size} bytes; the one that the graph was saved with has {size!r:.40}")
    if hash_of(hash_name, file.blocks(0, file.size), size=file.size) != digest:
        raise InvalidModel(f"{where} is not the one that the graph was saved with: its {_HASHES[hash_name]} differs")
    arrays: dict[str, np.ndarray | StoredArray] = {}
    for name, entry in found.items():
        size = entry.end - entry.begin
        stays = size >= LARGE and file.may_stay_open
        stored = StoredArray(file, entry.begin, np.dtype(np.uint8), (size,))
        arrays[name] = stored if stays else stored.array
    return arrays


# The hashes that a reference may contain, and what errors call them.
_HASHES = {BLAKE2B8: "hash blake2b8", SHA256: "SHA-256"}


def _recorded_hash(where: str, reference: Mapping[str, Any]) -> tuple[str, str]:
    """Return the name of the hash that a reference contains, and the hash in hexadecimal. Raises InvalidModel."""
    text = reference.get("hash")
    if text is None and isinstance(reference.get("sha256"), str):
        text = f"{SHA256}:{reference['sha256']}"
    if not isinstance(text, str) or ":" not in text:
        raise InvalidModel(f'{where}: the file that refers to it lacks its hash, such as "hash": "{BLAKE2B8}:0123..."')
    name, _, digest = text.partition(":")
    if name not in _HASHES:
        known = ", ".join(_HASHES)
        raise InvalidModel(f"{where} has the hash {name[:40]!r}; this graphkit knows {known}: upgrade graphkit")
    return name, digest


class _Entry(NamedTuple):
    """A tensor of a weights file: type code, shape, and where its bytes begin and end."""

    code: str
    shape: tuple[int, ...]
    begin: int
    end: int


def _entries(file: StoredFile) -> dict[str, _Entry]:
    """Return the tensors by name. The safetensors library checks that they fill the file without gaps.

    Raises SafetensorError, and ValueError for a type that the file format has, but CODES lacks.
    """
    found = {}
    end = 0
    with safetensors.safe_open(file.descriptor_path, framework="numpy") as opened:
        for name in opened.offset_keys():
            described = opened.get_slice(name)
            code, shape = described.get_dtype(), tuple(described.get_shape())
            if code not in _DTYPES:
                raise ValueError(f"tensor {name!r} is of type {code!r}")
            begin, end = end, end + math.prod(shape) * _DTYPES[code].itemsize
            found[name] = _Entry(code, shape, begin, end)
    start = file.size - end
    return {name: entry._replace(begin=start + entry.begin, end=start + entry.end) for name, entry in found.items()}


def _listed(names: Iterable[str]) -> str:
    first, *others = [*names, ""]
    if not first:
        return "no tensors"
    return f"tensor {first!r}" + (f" and {len(others) - 1} more" if len(others) > 1 else "")
