"""The .idx file beside a .rec: a line for each record, its key, a tab, and where it begins."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from graphkit.errors import InputError


def index_of(path: Path) -> Path:
    """Where the index of a record file is, if it has one: the same name with the suffix .idx."""
    return path.with_suffix(".idx")


def index_lines(keys: Iterable[int], positions: Iterable[int]) -> bytes:
    return "".join(f"{key}\t{position}\n" for key, position in zip(keys, positions, strict=True)).encode()


def read_index(path: Path, size: int) -> tuple[np.ndarray, np.ndarray]:
    """(keys, positions), int64 each, in the order of the file, for a record file of so many bytes.

    Raises InputError, naming the line, for what is no index: other than two numbers, a position outside of the file or
    at no multiple of 4, a key that comes twice.
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
            raise InputError(f"{path}:{number}: a key, a tab and a position are expected, not {line[:60]!r}") from None
        if not 0 <= position < size or position % 4:
            raise InputError(f"{path}:{number}: no record of a file of {size} bytes begins at {position}")
        if key in known or not -(2**63) <= key < 2**63:
            raise InputError(f"{path}:{number}: key {key} {'comes twice' if key in known else 'has more than 64 bits'}")
        known.add(key)
        keys.append(key)
        positions.append(position)
    return np.array(keys, np.int64), np.array(positions, np.int64)
