"""The bytes of .gkp files: a header with a checksum, the metadata, and the arrays that kernels read."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from graphkit.executor.devices.loading import native_module
from graphkit.ir.atomic import PendingFile, writing_of

_MAGIC = b"\x89GKP\r\n\x1a\n"
_HEADER = struct.Struct("<8sIIQQQQQ")
_BYTE_ORDER = 0x01020304
_ALIGNMENT = 64
# Weights of at least this many bytes begin with a page of the file.
_PAGE, _LARGE = 4096, 1 << 16


class SavedArrays:
    """The arrays of a file. Arrays with the same elements are stored once.

    by_content: Whether arrays are compared by their bytes, or only by identity.
    """

    def __init__(self, by_content: bool):
        self.arrays: list[np.ndarray] = []
        self._by_content = by_content
        self._places: dict[object, int] = {}

    def place(self, array: np.ndarray) -> int:
        """Return the number of an array, which is added if it is new."""
        key: object = id(array)
        if self._by_content:
            data: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            key = (array.nbytes, hashlib.blake2b(data, digest_size=16).digest())
        if key not in self._places:
            self._places[key] = len(self.arrays)
            self.arrays.append(array)
        return self._places[key]


def laid_out(arrays: Sequence[np.ndarray]) -> tuple[list[int], list[Any]]:
    """Return the place of each array in the data, and the data as pieces of memory."""
    places, pieces, end = [], [], 0
    for array in arrays:
        start = -(-end // _ALIGNMENT) * _ALIGNMENT if array.nbytes < _LARGE else -(-end // _PAGE) * _PAGE
        pieces += [bytes(start - end), np.ascontiguousarray(array).reshape(-1).view(np.uint8)]
        places.append(start)
        end = start + array.nbytes
    return places, pieces


def write_file(path: Path, metadata: bytes, data: Sequence[Any], check: Callable[[Path], None]) -> int:
    """Write the file, which has its name only if `check` accepts it. Return its size."""
    native = native_module()
    start = _HEADER.size + 8
    data_at = -(-(start + len(metadata)) // _PAGE) * _PAGE
    data_bytes = sum(memoryview(piece).nbytes for piece in data)
    size = data_at + data_bytes
    header = _HEADER.pack(_MAGIC, native.program_format, _BYTE_ORDER, size, len(metadata), data_at, data_bytes, 0)
    rest = [metadata, bytes(data_at - start - len(metadata)), *data]
    checksum = native.program_checksum(np.frombuffer(header, np.uint8), 0)
    for piece in _pieces(rest, native.checksum_piece):
        checksum = native.program_checksum(np.frombuffer(piece, np.uint8), checksum)
    with writing_of(path), PendingFile(path.parent, path.name) as file:
        for chunk in (header, struct.pack("<Q", checksum), *rest):
            file.write(chunk)
        file.finish()
        check(file.path)
        file.commit(path)
    return size


def _pieces(chunks: Iterable[Any], size: int) -> Iterator[bytes]:
    """Yield the bytes of the chunks in pieces of `size` bytes; the last one may be shorter."""
    pending = bytearray()
    for chunk in chunks:
        view = memoryview(chunk).cast("B")
        for start in range(0, view.nbytes, size):
            pending += view[start : start + size]
            while len(pending) >= size:
                yield bytes(pending[:size])
                del pending[:size]
    if pending:
        yield bytes(pending)
