"""Tensors of the Open Inference Protocol: data types, and values as JSON and as bytes."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from graphkit.errors import InputError, did_you_mean
from graphkit.ir.types import DType

# Names of data types in the protocol. Other types of graphkit have none.
DATATYPES = {
    "BOOL": DType.BOOL, "UINT8": DType.UINT8, "UINT16": DType.UINT16, "UINT32": DType.UINT32, "UINT64": DType.UINT64,
    "INT8": DType.INT8, "INT16": DType.INT16, "INT32": DType.INT32, "INT64": DType.INT64, "FP16": DType.FLOAT16,
    "BF16": DType.BFLOAT16, "FP32": DType.FLOAT32, "FP64": DType.FLOAT64, "BYTES": DType.STRING,
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DATATYPES.items()}

_LENGTH = struct.Struct("<I")


def datatype(name: Any, where: str) -> DType:
    """Return the type that a request names. where: the field, for the error."""
    if not isinstance(name, str) or name not in DATATYPES:
        hint = did_you_mean(name, DATATYPES, most=len(DATATYPES)) if isinstance(name, str) else ""
        raise InputError(f"{where}: unknown datatype {_shown(name)}{hint}")
    return DATATYPES[name]


def checked_shape(shape: Any, where: str) -> tuple[int, ...]:
    """Return the shape that a request gives. Raises InputError if it is not a list of sizes."""
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        raise InputError(f"{where}: expected a list of integers of at least 0, not {_shown(shape)}")
    if len(shape) > 64:
        raise InputError(f"{where}: a tensor has at most 64 axes, not {len(shape)}")
    return tuple(shape)


def from_binary(data: memoryview, dtype: DType, shape: Sequence[int], where: str) -> np.ndarray:
    """Return the array of the bytes of a tensor: little-endian elements, or strings with their lengths in front."""
    count = math.prod(shape)
    if dtype is DType.STRING:
        return _from_strings(data, count, where).reshape(shape)
    if len(data) != count * dtype.itemsize:
        raise InputError(
            f"{where}: {NAMES[dtype]}{list(shape)} takes {count * dtype.itemsize} bytes, but binary_data_size is "
            f"{len(data)}"
        )
    if dtype is DType.BOOL:
        raw = np.frombuffer(data, np.uint8)
        if raw.size and raw.max() > 1:
            raise InputError(f"{where}: the bytes of BOOL must be 0 or 1, not {int(raw.max())}")
        return raw.view(np.bool_).reshape(shape)
    return np.frombuffer(data, dtype.numpy).reshape(shape)


def _from_strings(data: memoryview, count: int, where: str) -> np.ndarray:
    found: list[str] = []
    position = 0
    while position < len(data):
        if len(found) == count:
            raise InputError(f"{where}: the data contain more strings than the {count} of the shape")
        start = position + _LENGTH.size
        length = _LENGTH.unpack_from(data, position)[0] if start <= len(data) else 0
        position = start + length
        if position > len(data):
            raise InputError(f"{where}: string {len(found)} ends after the data of the tensor")
        try:
            found.append(str(data[start:position], "utf-8"))
        except UnicodeDecodeError as error:
            raise InputError(f"{where}: string {len(found)} is not UTF-8: {error.reason}") from None
    if len(found) != count:
        raise InputError(f"{where}: the data contain {len(found)} strings, but the shape has {count}")
    return _objects(found)


def from_json(data: Any, dtype: DType, shape: Sequence[int], where: str) -> np.ndarray:
    """Return the array of a JSON list, flat or nested. Raises InputError if elements do not fit the type."""
    if not isinstance(data, list):
        raise InputError(f"{where}: expected a list, not {_shown(data)}")
    count = math.prod(shape)
    array = _strings(data, where) if dtype is DType.STRING else _numbers(data, dtype, where)
    if array.ndim > 1 and array.shape != tuple(shape):
        raise InputError(f"{where}: the nested lists have the shape {list(array.shape)}, but shape is {list(shape)}")
    if array.size != count:
        raise InputError(f"{where}: {array.size} elements, but the shape {list(shape)} has {count}")
    return array.reshape(shape)


def _strings(data: list[Any], where: str) -> np.ndarray:
    found = list(_leaves(data, where))
    if odd := [item for item in found if not isinstance(item, str)]:
        raise InputError(f"{where}: the elements of BYTES must be strings, not {_shown(odd[0])}")
    return _objects(found)


def _numbers(data: list[Any], dtype: DType, where: str) -> np.ndarray:
    try:
        array = np.array(data)
    except (ValueError, OverflowError):
        raise InputError(f"{where}: the nested lists have different lengths, or too many levels") from None
    wanted = dtype.numpy
    if dtype is DType.UINT64 and array.dtype.kind == "f" and all(type(item) is int for item in _leaves(data, where)):
        array = np.array(data, object)  # numpy rounds lists of small and large integers to float64
        if array.min() >= 0 and array.max() < 1 << 64:
            return array.astype(wanted)
    if not array.size:
        return array.astype(wanted)
    if array.dtype.kind == "O":
        odd = [item for item in _leaves(data, where) if type(item) not in (int, float)]
        raise InputError(
            f"{where}: {_shown(odd[0])} is not a number of type {NAMES[dtype]}"
            if odd
            else f"{where}: a number is outside of the range of {NAMES[dtype]}"
        )
    kinds = "biu" if dtype is DType.BOOL else "iuf" if dtype.is_float else "iu"
    if array.dtype.kind not in kinds:
        raise InputError(f"{where}: the elements are not of type {NAMES[dtype]}: {_shown(data)}")
    if dtype.is_float:
        with np.errstate(over="ignore"):
            return array.astype(wanted)
    cast = array.astype(wanted)
    if not np.array_equal(cast, array):
        raise InputError(f"{where}: {array[cast != array].flat[0]} is outside of the range of {NAMES[dtype]}")
    return cast


def _leaves(data: Any, where: str, depth: int = 0) -> Iterator[Any]:
    """Yield the elements of nested lists."""
    if depth > 64:
        raise InputError(f"{where}: more than 64 levels of lists")
    for item in data:
        if isinstance(item, list):
            yield from _leaves(item, where, depth + 1)
        else:
            yield item


def _objects(strings: Sequence[Any]) -> np.ndarray:
    array = np.empty(len(strings), object)
    array[:] = strings
    return array


def to_binary(array: np.ndarray, dtype: DType) -> bytes:
    """Return the bytes of a tensor; see `from_binary`."""
    if dtype is not DType.STRING:
        return np.ascontiguousarray(array).tobytes()
    encoded = [_encoded(item) for item in array.reshape(-1)]
    return b"".join(part for item in encoded for part in (_LENGTH.pack(len(item)), item))


def _encoded(item: Any) -> bytes:
    return item if isinstance(item, bytes) else str(item).encode("utf-8", "surrogatepass")


def to_json(array: np.ndarray, dtype: DType) -> list[Any]:
    """Return the elements as a flat list for JSON. NaN and infinities become strings: JSON has no numbers for them."""
    flat = array.reshape(-1)
    if dtype is DType.STRING:
        return [_encoded(item).decode("utf-8", "replace") for item in flat]
    if dtype is DType.BFLOAT16:
        flat = flat.astype(np.float32)
    elements: list[Any] = flat.tolist()
    if dtype.is_float and not np.isfinite(flat).all():
        return [item if math.isfinite(item) else str(item) for item in elements]
    return elements


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
