"""The idx format of MNIST: big-endian, two zero bytes, a type code, the rank, the sizes, the elements."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from graphkit.errors import InputError

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: str | Path) -> np.ndarray:
    """The array in an idx file, in native byte order; a file that starts as gzip is unpacked.

    Raises InputError, naming the file, when it is missing, empty, no idx file, truncated, or longer than it says.
    """
    data = _bytes(Path(path))
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in _TYPES:
        raise InputError(
            f"{path}: not an idx file: it starts with {data[:4].hex() or 'nothing'}, not 0000, a type and a rank"
        )
    dtype, rank = np.dtype(_TYPES[data[2]]), data[3]
    header = 4 + 4 * rank
    if len(data) < header:
        raise InputError(f"{path}: truncated idx file: {len(data)} bytes, and the header alone has {header}")
    shape = struct.unpack(f">{rank}I", data[4:header])
    expected = header + math.prod(shape) * dtype.itemsize
    if len(data) != expected:
        problem = "truncated" if len(data) < expected else "overlong"
        raise InputError(
            f"{path}: {problem} idx file: shape {list(shape)} of {dtype.name} takes {expected} bytes, found {len(data)}"
        )
    return np.frombuffer(data, dtype, offset=header).reshape(shape).astype(dtype.newbyteorder("="))


def _bytes(path: Path) -> bytes:
    try:
        raw = path.read_bytes()
        return gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: damaged gzip file: {error}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
