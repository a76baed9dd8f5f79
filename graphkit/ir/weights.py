"""The weights file: safetensors (https://huggingface.co/docs/safetensors) with its SHA-256.

Element types that the format lacks are stored as U8 vectors of their raw bytes; the logical type is written down by
whoever refers to the tensor.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors

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
_NAMES = {code: dtype.value for dtype, code in CODES.items()}


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
    """Write a safetensors file; return its SHA-256 in hexadecimal and its size in bytes.

    The file's bytes are held once in memory beside the tensors.
    """
    data = _serialized(tensors)
    file.write(data)
    return hashlib.sha256(data).hexdigest(), len(data)


def _serialized(tensors: Mapping[str, Stored]) -> bytes:
    # The library reads through addresses: `vectors` keeps the memory alive until it is done.
    vectors = {name: np.frombuffer(tensor.data, np.uint8) for name, tensor in tensors.items()}
    specs = {
        name: safetensors.TensorSpec(
            dtype=_NAMES[code], shape=shape, data_ptr=vectors[name].ctypes.data, data_len=data.nbytes
        )
        for name, (code, shape, data) in tensors.items()
    }
    return bytes(safetensors.serialize(specs, metadata={"format": "graphkit"}))


def read_weights(
    path: Path, sha256: str, expected: Mapping[str, tuple[str, tuple[int, ...] | None]]
) -> dict[str, np.ndarray]:
    """Read the tensors of a weights file as byte arrays (uint8 vectors), verifying the file's SHA-256.

    `expected` gives type code and shape of each tensor that must be there (a shape of None is not compared).
    Raises InvalidModel naming the file and the tensor: missing, truncated, mismatched or changed. The library checks
    header, sizes and offsets against the bytes that are there. Peak memory is twice the size of the file.
    """
    where = f"weights file {path.name!r}"
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidModel(f"{where}, which holds {_listed(expected)}, cannot be read: {error.strerror}") from None
    try:
        found = dict(safetensors.deserialize(data))
    except safetensors.SafetensorError as error:
        held = _listed(expected)
        raise InvalidModel(f"{where}, which should hold {held}, is truncated or damaged: {error}") from None
    for name, (code, shape) in expected.items():
        if name not in found:
            raise InvalidModel(f"{where} lacks tensor {name!r}")
        actual = found[name]["dtype"], tuple(found[name]["shape"])
        if actual[0] != code or (shape is not None and actual[1] != shape):
            wanted = code + ("" if shape is None else str(list(shape)))
            raise InvalidModel(f"{where}: tensor {name!r} is {actual[0]}{list(actual[1])}, the graph says {wanted}")
    if hashlib.sha256(data).hexdigest() != sha256:
        raise InvalidModel(f"{where} is not the one that the graph was saved with: its SHA-256 differs")
    arrays = {name: np.frombuffer(entry["data"], np.uint8) for name, entry in found.items()}
    for array in arrays.values():
        array.flags.writeable = False
    return arrays


def _listed(names: Iterable[str]) -> str:
    first, *others = [*names, ""]
    if not first:
        return "no tensors"
    return f"tensor {first!r}" + (f" and {len(others) - 1} more" if len(others) > 1 else "")
