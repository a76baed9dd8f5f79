"""Read and write MXNet's files of arrays (.params, .nd): `mx.nd.save` and `mx.nd.load`.

A file is a list of arrays followed by a list of their names; numbers are little-endian. An array begins with a number
that says in which format it is:

    V0    the number itself is the rank; uint32 sizes, device, element type, data
    V1    rank and int64 sizes, device, element type, data
    V2    storage type; if sparse, the shape of the stored part; shape, device, element type;
          if sparse, types and shapes of the index arrays; data, index arrays
    V3    as V2; shapes may have rank 0, and sizes may be 0

MXNet 2 writes numpy's .npz format instead, under the same suffix. Source: `NDArray::Save` and `NDArray::Load` in
src/ndarray/ndarray.cc of MXNet 1.9.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from graphkit.errors import InvalidModel, RuntimeFailure, UnsupportedError, UsageError
from graphkit.ir.atomic import PendingFile, sync_folder
from graphkit.ir.limits import require_memory
from graphkit.ir.npz import read_npz
from graphkit.ir.stored import LARGE, StoredArray, StoredFile
from graphkit.ir.types import DType, dtype_of

_LIST = 0x112
_V1, _V2, _V3 = 0xF993FAC8, 0xF993FAC9, 0xF993FACA
_DENSE, _ROW_SPARSE, _CSR = 0, 1, 2
_INDEX_ARRAYS = {_DENSE: 0, _ROW_SPARSE: 1, _CSR: 2}
# MXNet's number of an element type.
_TYPES = {
    0: DType.FLOAT32, 1: DType.FLOAT64, 2: DType.FLOAT16, 3: DType.UINT8, 4: DType.INT32, 5: DType.INT8,
    6: DType.INT64, 7: DType.BOOL, 8: DType.INT16, 9: DType.UINT16, 10: DType.UINT32, 11: DType.UINT64,
    12: DType.BFLOAT16,
}  # fmt: skip
_NUMBERS = {dtype: number for number, dtype in _TYPES.items()}
_CPU = (1, 0)  # device type and number
_MOST_AXES = 32
_ZIP = b"PK\x03\x04"


def read_arrays(path: str | os.PathLike[str]) -> dict[str, np.ndarray | StoredArray]:
    """Read a file of arrays; see `read_array_file`. Arrays without a name get their position as name: "0" and so on."""
    return read_array_file(path)[0]


def read_array_file(path: str | os.PathLike[str]) -> tuple[dict[str, np.ndarray | StoredArray], bool]:
    """Read a file of arrays.

    Large dense arrays stay in the file until they are used. Sparse arrays are returned dense. Arrays without a name
    get their position as name: "0", "1" and so on.

    Returns:
        The arrays by name, in the order of the file, and whether the file has names. Prefixes such as "arg:" are kept.

    Raises:
        UsageError: There is no such file.
        InvalidModel: The file is damaged or truncated; the message names the array.
        UnsupportedError: An array has an element type or a storage type that MXNet 1.9 does not define.
        OutOfMemory: A sparse array is larger than the memory limit.
    """
    try:
        file = StoredFile(path)
    except FileNotFoundError:
        raise UsageError(f"{os.fspath(path)!r}: no such file") from None
    except OSError as error:
        raise RuntimeFailure(f"{os.fspath(path)!r} cannot be read: {error.strerror or error}") from None
    if file.read(0, min(4, file.size)).tobytes() == _ZIP:
        return dict(read_npz(path)), True
    reader = _Reader(file, repr(os.fspath(path)))
    return reader.arrays(), reader.is_named


class _Reader:
    """Reads one file of arrays from front to back."""

    def __init__(self, file: StoredFile, label: str) -> None:
        self.file = file
        self.label = label
        self.position = 0
        self.what = "the header"
        self.is_named = True

    def arrays(self) -> dict[str, np.ndarray | StoredArray]:
        if self.file.size < 24 or self.integer("Q") != _LIST:
            raise InvalidModel(f"{self.label} is not a file of MXNet arrays: it does not begin with the number 0x112")
        self.integer("Q")
        count = self.counted("arrays", least_bytes=4)
        arrays = []
        for index in range(count):
            self.what = f"array {index} of {count}"
            arrays.append(self.array())
        self.what = "the names"
        named = self.counted("names", least_bytes=8)
        if named not in (0, count):
            raise self.damaged(f"there are {count} arrays, but {named} names")
        self.is_named = named > 0
        names = [self.text() for _ in range(named)] or [str(index) for index in range(count)]
        found = dict(zip(names, arrays, strict=True))
        if len(found) != count:
            twice = next(name for i, name in enumerate(names) if name in names[:i])
            raise self.damaged(f"two arrays have the name {twice!r}")
        if self.position != self.file.size:
            raise self.damaged(f"{self.file.size - self.position} bytes follow the last name")
        return found

    def array(self) -> np.ndarray | StoredArray:
        version = self.integer("I")
        if version == _V1:
            return self.dense(self.shape("q"))
        if version not in (_V2, _V3):
            return self.dense(self.sizes(version, "I"))
        storage = self.integer("i")
        if storage not in _INDEX_ARRAYS:
            raise UnsupportedError(f"{self.label}: {self.what} has storage type {storage}; MXNet has 0, 1 and 2")
        if _INDEX_ARRAYS[storage]:
            self.shape("q")  # of the stored part: not always up to date, and given by the index arrays
        shape = self.shape("q", scalars=version == _V3)
        if not _INDEX_ARRAYS[storage]:
            return self.dense(shape, scalars=version == _V3)
        return self.sparse(storage, shape)

    def dense(self, shape: tuple[int, ...] | None, scalars: bool = False) -> np.ndarray | StoredArray:
        """Read the rest of a dense array. Without axes, an array is empty unless the format has scalars."""
        if shape is None or (not shape and not scalars):
            return np.zeros(0, np.float32)
        return self.data(self.element_type(), shape)

    def sparse(self, storage: int, shape: tuple[int, ...] | None) -> np.ndarray:
        """Read the rest of a sparse array; return it dense."""
        if not shape:
            return np.zeros(0, np.float32)
        dtype = self.element_type()
        kinds = []
        for _ in range(_INDEX_ARRAYS[storage]):
            index_type = self.type_numbered(self.integer("i"))
            kinds.append((index_type, self.shape("q") or ()))
        rows = shape[1:] if storage == _ROW_SPARSE else ()
        stored = (math.prod(kinds[-1][1]), *rows)
        require_memory(math.prod(shape) * dtype.numpy.itemsize, f"{self.label}: {self.what}, {list(shape)}")
        values = np.asarray(self.data(dtype, stored))
        indices = [np.asarray(self.data(index_type, sizes)) for index_type, sizes in kinds]
        if any(array.dtype.kind not in "iu" for array in indices):
            raise self.damaged("the indices of a sparse array are not integers")
        made = np.zeros(shape, dtype.numpy)
        try:
            if storage == _ROW_SPARSE:
                made[self.within(indices[0], shape[0])] = values
            else:
                self.fill_rows(made, values, *indices)
        except (ValueError, IndexError) as error:
            raise self.damaged(f"the parts of a sparse array do not fit: {error}") from None
        return made

    def fill_rows(self, made: np.ndarray, values: np.ndarray, starts: np.ndarray, columns: np.ndarray) -> None:
        """Write the elements of a CSR matrix into a matrix of zeros."""
        if made.ndim != 2 or starts.shape != (made.shape[0] + 1,) or columns.shape != values.shape:
            raise ValueError(f"matrix {list(made.shape)}, row starts {list(starts.shape)}")
        lengths: Any = np.diff(starts.astype(np.int64))
        if starts[0] != 0 or starts[-1] != len(values) or (lengths < 0).any():
            raise ValueError("row starts must increase from 0 to the number of elements")
        rows = np.repeat(np.arange(len(lengths)), lengths)
        made[rows, self.within(columns, made.shape[1])] = values

    def within(self, indices: np.ndarray, size: int) -> np.ndarray:
        if indices.size and (indices.min() < 0 or indices.max() >= size):
            raise ValueError(f"index {indices.max()} of {size}")
        return indices

    def element_type(self) -> DType:
        """Skip the device, and read the element type."""
        self.integer("i"), self.integer("i")
        return self.type_numbered(self.integer("i"))

    def type_numbered(self, number: int) -> DType:
        if number not in _TYPES:
            raise UnsupportedError(f"{self.label}: {self.what} has element type {number}, which MXNet does not define")
        return _TYPES[number]

    def data(self, dtype: DType, shape: tuple[int, ...]) -> np.ndarray | StoredArray:
        size = math.prod(shape) * dtype.numpy.itemsize
        left = self.file.size - self.position
        if size > left:
            raise self.damaged(f"its data, {dtype}{list(shape)}, take {size} bytes, but the file has only {left} more")
        begin = self.position
        self.position += size
        if size >= LARGE and dtype is not DType.BOOL:
            return StoredArray(self.file, begin, dtype.numpy, shape)
        found = self.file.read(begin, size)
        # Any byte but 0 is true. As a numpy bool, only 1 would be.
        return (found != 0 if dtype is DType.BOOL else found.view(dtype.numpy)).reshape(shape)

    def shape(self, code: str, scalars: bool = False) -> tuple[int, ...] | None:
        """Read a rank and the sizes; None if the rank is unknown."""
        rank = self.integer("i")
        return None if rank == -1 and scalars else self.sizes(rank, code)

    def sizes(self, rank: int, code: str) -> tuple[int, ...]:
        if not 0 <= rank <= _MOST_AXES:
            raise self.damaged(f"it has {rank} axes")
        sizes = tuple(self.integer(code) for _ in range(rank))
        if any(size < 0 for size in sizes):
            raise self.damaged(f"it has the shape {list(sizes)}")
        return sizes

    def counted(self, what: str, least_bytes: int) -> int:
        """Read a count. Each counted item takes at least `least_bytes`, so a damaged count does not take memory."""
        count = self.integer("Q")
        if count * least_bytes > self.file.size - self.position:
            raise self.damaged(f"{count} {what} do not fit into the rest of the file")
        return count

    def text(self) -> str:
        size = self.counted("bytes of a name", least_bytes=1)
        data = self.file.read(self.position, size).tobytes()
        self.position += size
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise self.damaged("a name is not UTF-8") from None

    def integer(self, code: str) -> int:
        size = struct.calcsize(f"<{code}")
        if self.position + size > self.file.size:
            raise self.damaged("the file ends there; it may be truncated")
        data = self.file.read(self.position, size).tobytes()
        self.position += size
        return int(struct.unpack(f"<{code}", data)[0])

    def damaged(self, reason: str) -> InvalidModel:
        return InvalidModel(f"{self.label} is damaged: {self.what}: {reason}")


def write_arrays(path: str | os.PathLike[str], arrays: Mapping[str, Any], named: bool = True) -> None:
    """Write arrays so that `mx.nd.load` and `read_arrays` read them, in format V2.

    If one of them is a scalar or empty, all are in format V3, which MXNet reads with `mx.util.np_shape(True)` only.

    Args:
        path: Name of the file, which is replaced.
        arrays: Arrays by name, for example "arg:conv1_weight".
        named: Whether the file has the names. Otherwise, MXNet reads a list.

    Raises:
        UnsupportedError: An element type that MXNet does not have.
        RuntimeFailure: The file cannot be written.
    """
    target = Path(path)
    held = {name: value if isinstance(value, StoredArray) else np.asarray(value) for name, value in arrays.items()}
    types = {name: type_number(name, value.dtype) for name, value in held.items()}
    version = _V2 if all(value.shape and math.prod(value.shape) for value in held.values()) else _V3
    try:
        with PendingFile(target.parent, target.name) as file:
            file.write(struct.pack("<QQQ", _LIST, 0, len(held)))
            for name, value in held.items():
                file.write(_header(version, value.shape, types[name]))
                for block in _blocks(value):
                    file.write(block)
            file.write(struct.pack("<Q", len(held) if named else 0))
            for name in held if named else ():
                data = name.encode()
                file.write(struct.pack("<Q", len(data)) + data)
            file.commit(target)
        sync_folder(target.parent)
    except OSError as error:
        raise RuntimeFailure(f"cannot write {str(target)!r}: {error.strerror or error}") from error


def type_number(name: str, dtype: Any) -> int:
    """Return MXNet's number of an element type. Raises UnsupportedError, which names the array, if there is none."""
    number = _NUMBERS.get(dtype_of(dtype))
    if number is None:
        raise UnsupportedError(f"array {name!r} is {dtype}: MXNet's files have no such element type")
    return number


def _header(version: int, shape: tuple[int, ...], number: int) -> bytes:
    return struct.pack(f"<Iii{len(shape)}qiii", version, _DENSE, len(shape), *shape, *_CPU, number)


def _blocks(value: np.ndarray | StoredArray) -> Iterable[Any]:
    if isinstance(value, StoredArray):
        return value.blocks()
    return [np.ascontiguousarray(value).reshape(-1).view(np.uint8)] if value.size else []
