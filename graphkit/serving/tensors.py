"""Tensors of the Open Inference Protocol: data types, and values as JSON and as bytes."""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Sequence
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


# A tensor has fewer bytes, also without its axes of size 0.
_MOST_BYTES = 1 << 62


class Constant(float):
    """A NaN or an infinity of JSON (`NaN`, `Infinity`), unlike a number that is too large for a float."""


# Texts that `to_json` writes for NaN and infinities.
_NOT_FINITE = {text: Constant(text) for text in ("nan", "inf", "-inf")}


def datatype(name: Any, where: str) -> DType:
    """Return the type that a request names. where: the field, for the error."""
    if not isinstance(name, str) or name not in DATATYPES:
        hint = did_you_mean(name[:80], DATATYPES, most=len(DATATYPES)) if isinstance(name, str) else ""
        raise InputError(f"{where}: unknown datatype {shown(name)}{hint}")
    return DATATYPES[name]


def checked_shape(shape: Any, where: str) -> tuple[int, ...]:
    """Return the shape that a request gives. Raises InputError if it is not a list of sizes."""
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        raise InputError(f"{where}: expected a list of integers of at least 0, not {shown(shape)}")
    if len(shape) > 64:
        raise InputError(f"{where}: a tensor has at most 64 axes, not {len(shape)}")
    if math.prod(size for size in shape if size) > _MOST_BYTES // 16:
        raise InputError(f"{where}: no tensor has the shape {shown(shape)}: it is too large")
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
    """Return the array of a JSON list, flat or nested. Floats may be the texts "nan", "inf" and "-inf".

    Raises InputError if the list does not have the shape, or elements do not fit the type.
    """
    if not isinstance(data, list):
        raise InputError(f"{where}: expected a list, not {shown(data)}")
    found = _elements(data, shape, where)
    convert = _floats if dtype.is_float else _integers
    return (_strings(found, where) if dtype is DType.STRING else convert(found, dtype, where)).reshape(shape)


def _strings(found: list[Any], where: str) -> np.ndarray:
    if odd := [item for item in found if not isinstance(item, str)]:
        raise InputError(f"{where}: the elements of BYTES must be strings, not {shown(odd[0])}")
    return _objects(found)


def _floats(found: list[Any], dtype: DType, where: str) -> np.ndarray:
    kinds = set(map(type, found))
    if str in kinds:
        found = [_NOT_FINITE.get(item, item) if type(item) is str else item for item in found]
        kinds = set(map(type, found))
    _check_kinds(found, kinds, (float, int, Constant), dtype, where)
    try:
        array = np.array(found, np.float64)
    except OverflowError:
        raise InputError(f"{where}: a number is outside of the range of {NAMES[dtype]}") from None
    with np.errstate(over="ignore"):
        cast = array.astype(dtype.numpy)
    for place in np.flatnonzero(np.isinf(cast)).tolist():
        if type(found[place]) is not Constant:
            raise InputError(f"{where}: {shown(found[place])} is outside of the range of {NAMES[dtype]}")
    return cast


def _integers(found: list[Any], dtype: DType, where: str) -> np.ndarray:
    kinds = set(map(type, found))
    is_truth = dtype is DType.BOOL and bool in kinds
    _check_kinds(found, kinds, (bool,) if is_truth else (int,), dtype, where)
    low, high = (0, 1) if dtype is DType.BOOL else (np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max)
    for item in (min(found, default=0), max(found, default=0)):
        if not low <= item <= high:
            raise InputError(f"{where}: {shown(item)} is outside of the range of {NAMES[dtype]}")
    return np.array(found, dtype.numpy)


def _check_kinds(found: list[Any], kinds: set[type], allowed: tuple[type, ...], dtype: DType, where: str) -> None:
    """Raise InputError if an element has another Python type. kinds: of all elements."""
    if not kinds <= {*allowed}:
        odd = next(item for item in found if type(item) not in allowed)
        raise InputError(f"{where}: {shown(odd)} is not a number of type {NAMES[dtype]}")


def _elements(data: list[Any], shape: Sequence[int], where: str) -> list[Any]:
    """Return the elements of a list. Raises InputError if it is nested, and does not have the shape."""
    sizes = [len(data)]
    while list in (kinds := set(map(type, data))):
        lengths = {len(item) for item in data} if kinds == {list} else set()
        if len(lengths) != 1 or len(sizes) > len(shape):
            raise InputError(f"{where}: the nested lists have different lengths, or too many levels")
        sizes.append(lengths.pop())
        data = list(itertools.chain.from_iterable(data))
    if len(sizes) > 1 and sizes != list(shape):
        raise InputError(f"{where}: the nested lists have the shape {sizes}, but shape is {list(shape)}")
    if len(data) != math.prod(shape):
        raise InputError(f"{where}: {len(data)} elements, but the shape {list(shape)} has {math.prod(shape)}")
    return data


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


def shown(value: Any) -> str:
    """Return a value of a client for an error, shortened to 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
