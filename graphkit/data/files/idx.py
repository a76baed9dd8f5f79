"""The idx format of MNIST: big-endian, two zero bytes, a type code, the rank, the sizes, the elements."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from graphkit.errors import InputError
from graphkit.ir.limits import allowed_memory, require_memory

# Number of bytes of the longest header, which has 255 sizes.
_HEADER = 4 + 4 * 255

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: str | Path) -> np.ndarray:
    """Read the array of an idx file, in native byte order. Gzip files are decompressed.

    Raises InputError, which names the file, if it is missing, empty, not an idx file, truncated, or longer than its
    header says.
    """
    data, rest = _begun(Path(path))
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in _TYPES:
        raise InputError(
            f"{path}: not an idx file: it must start with two zero bytes, a type and a rank, but starts with "
            f"{data[:4].hex() or 'nothing'}"
        )
    dtype, rank = np.dtype(_TYPES[data[2]]), data[3]
    header = 4 + 4 * rank
    if len(data) < header:
        raise InputError(f"{path}: truncated idx file: it has {len(data)} bytes, but its header alone takes {header}")
    shape = struct.unpack(f">{rank}I", data[4:header])
    expected = header + math.prod(shape) * dtype.itemsize
    # A gzip file may expand to many times its size. The array is a copy, so half of the memory is the limit.
    most = min(expected + 1, allowed_memory() // 2)
    data += rest(max(most - len(data), 0))
    if len(data) == most < expected:
        require_memory(2 * expected, f"{path}, {dtype.name}{list(shape)}")
    if len(data) != expected:
        problem = "truncated" if len(data) < expected else "overlong"
        raise InputError(
            f"{path}: {problem} idx file: shape {list(shape)} of {dtype.name} takes {expected} bytes, found {len(data)}"
        )
    return np.frombuffer(data, dtype, offset=header).reshape(shape).astype(dtype.newbyteorder("="))


def _begun(path: Path) -> tuple[bytes, Callable[[int], bytes]]:
    """The first bytes, as many as the longest header has, and a function that reads more."""
    first = _read(path, 0, 2)
    packed = first == b"\x1f\x8b"
    return _read(path, 0, _HEADER, packed), lambda size: _read(path, _HEADER, size, packed)


def _read(path: Path, begin: int, size: int, packed: bool = False) -> bytes:
    try:
        with gzip.open(path) if packed else path.open("rb") as file:
            file.seek(begin)
            return bytes(file.read(size))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: damaged gzip file: {error}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
