"""The .idx file beside a .rec file: for each record a line with its key, a tab, and its position."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from graphkit.errors import InputError


def index_of(path: Path) -> Path:
    """Return the path for the index of a record file: the same name with the suffix .idx. The file need not exist."""
    return path.with_suffix(".idx")


def index_lines(keys: Iterable[int], positions: Iterable[int]) -> bytes:
    return "".join(f"{key}\t{position}\n" for key, position in zip(keys, positions, strict=True)).encode()


def read_index(path: Path, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (keys, positions), int64 each, in the order of the file. size: bytes of the record file.

    Raises InputError, which names the line, if a line does not contain two numbers, a position is outside of the file
    or not a multiple of 4, or a key occurs twice.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    keys, positions = [], []
    known: set[int] = set()
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            key, position = map(int, line.split(b"\t"))
        except ValueError:
            raise InputError(f"{path}:{number}: expected a key, a tab and a position, not {line[:60]!r}") from None
        if not 0 <= position < size or position % 4:
            raise InputError(f"{path}:{number}: position {position} is not valid in a record file of {size} bytes")
        if key in known or not -(2**63) <= key < 2**63:
            raise InputError(
                f"{path}:{number}: key {key} {'occurs twice' if key in known else 'has more than 64 bits'}"
            )
        known.add(key)
        keys.append(key)
        positions.append(position)
    return np.array(keys, np.int64), np.array(positions, np.int64)
