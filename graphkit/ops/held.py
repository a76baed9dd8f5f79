"""The bytes that values hold: arrays, strings, sequences and optionals of them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

from graphkit.ir.limits import fits_limit, require_held

# Bytes that one array in a sequence takes in addition to its elements.
PER_ARRAY = 128


class Elements(list[Any]):
    """A sequence with an upper bound of its bytes: an array that it contains several times counts each time."""

    __slots__ = ("held",)

    def __init__(self, items: Iterable[Any], held: int):
        super().__init__(items)
        self.held = held


def string_bytes(array: np.ndarray) -> int:
    """Return the bytes of the strings in an array. A string that occurs several times counts each time."""
    return sum(map(sys.getsizeof, array.reshape(-1).tolist()))


def bytes_of(value: Any) -> int:
    """Return the bytes of an array with its strings, or an upper bound for a sequence."""
    if isinstance(value, Elements):
        return value.held
    if isinstance(value, (list, tuple)):
        return held_bytes(value)
    if value is None:
        return 0
    return int(value.nbytes) + (string_bytes(value) if value.dtype == object else 0)


def held_bytes(value: Any) -> int:
    """Return the bytes of an array, or of the arrays in a sequence or optional. Each array counts once."""
    arrays: dict[int, int] = {}
    places = 0
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, (list, tuple)):
            pending += item
            places += len(item)
        elif item is not None and id(item) not in arrays:
            arrays[id(item)] = bytes_of(item)
    return sum(arrays.values()) + PER_ARRAY * places


def with_one_more(sequence: Any, index: int, item: Any) -> Elements:
    """Return the sequence with `item` inserted before position `index`. Raises OutOfMemory above the memory limit.

    The bound of the bytes is updated; exact bytes are counted only if the bound exceeds the limit.
    """
    made = Elements(sequence, bytes_of(sequence) + bytes_of(item) + PER_ARRAY)
    made.insert(index, item)
    if not fits_limit(made.held):
        made.held = held_bytes(made)
        require_held(made.held, "the sequence")
    return made
