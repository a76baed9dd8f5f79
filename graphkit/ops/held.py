"""The bytes that values hold: arrays, strings, sequences and optionals of them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

from graphkit.ir.limits import fits_limit, require_held

# Of one array in a sequence, beside its elements.
PER_ARRAY = 128


class Elements(list[Any]):
    """A sequence that knows the bytes it holds, or more: of arrays that it has several times each time."""

    __slots__ = ("held",)

    def __init__(self, items: Iterable[Any], held: int):
        super().__init__(items)
        self.held = held


def string_bytes(array: np.ndarray) -> int:
    """Bytes of the strings in an array, each time that they are in it."""
    return sum(map(sys.getsizeof, array.reshape(-1).tolist()))


def bytes_of(value: Any) -> int:
    """Bytes of an array with its strings, or of a sequence: at most so many."""
    if isinstance(value, Elements):
        return value.held
    if isinstance(value, (list, tuple)):
        return held_bytes(value)
    if value is None:
        return 0
    return int(value.nbytes) + (string_bytes(value) if value.dtype == object else 0)


def held_bytes(value: Any) -> int:
    """Bytes of the arrays in a sequence or an optional, those in it several times counted once; of an array its own."""
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
    """The sequence with `item` before position `index`. Raises OutOfMemory where it holds more than the limit.

    Bytes are added up; all elements are counted only where the sum passes the limit.
    """
    made = Elements(sequence, bytes_of(sequence) + bytes_of(item) + PER_ARRAY)
    made.insert(index, item)
    if not fits_limit(made.held):
        made.held = held_bytes(made)
        require_held(made.held, "the sequence")
    return made
