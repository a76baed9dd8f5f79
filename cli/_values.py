"""Sequences and optionals in files: arrays with the names NAME[0], NAME[1], ..."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from graphkit.errors import InputError
from graphkit.ir.types import OptionalType, SequenceType, TensorType, Type


def arrays_of(values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the arrays in values by name. An empty sequence or optional has none."""
    return {name: array for n, value in values.items() for name, array in _arrays(n, value)}


def _arrays(name: str, value: Any) -> Iterator[tuple[str, np.ndarray]]:
    if isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from _arrays(f"{name}[{i}]", item)
    elif value is not None:
        yield name, value


def empty_of(values: Mapping[str, Any]) -> dict[str, str]:
    """Return a description of each value without an array: "empty sequence" or "empty optional"."""
    empty = {name: value for name, value in values.items() if value is None or (isinstance(value, list) and not value)}
    return {name: "empty optional" if value is None else "empty sequence" for name, value in empty.items()}


def from_arrays(name: str, kind: Type, arrays: Mapping[str, np.ndarray]) -> Any:
    """Return the value `name` from arrays of a file, such as `arrays_of` makes.

    The elements of a sequence are NAME[0], NAME[1], ... If there are none, the sequence is all arrays of the file.
    Raises InputError if there is no such value.
    """
    if isinstance(kind, OptionalType):
        return from_arrays(name, kind.element, arrays)
    if isinstance(kind, SequenceType):
        if not isinstance(kind.element, TensorType):
            raise InputError(f"input {name!r} has the type {kind}, which cannot be read from a file")
        own = [arrays[key] for i in range(len(arrays)) if (key := f"{name}[{i}]") in arrays]
        return own or list(arrays.values())
    if name in arrays:
        return arrays[name]
    if len(arrays) != 1:
        raise InputError(f"it has no array {name!r}; its arrays are {', '.join(arrays) or 'none'}")
    return next(iter(arrays.values()))


def is_named(name: str, arrays: Mapping[str, np.ndarray]) -> bool:
    """Whether the arrays of a file contain a value of this name."""
    return name in arrays or f"{name}[0]" in arrays


def empty(name: str, kind: Type) -> Any:
    """Return the value of `NAME=`: an empty sequence or optional. Raises InputError for a tensor."""
    if isinstance(kind, OptionalType):
        return None
    if isinstance(kind, SequenceType):
        return []
    raise InputError(
        f"input {name!r} is {kind}: {name}= needs a file, because only a sequence or optional can be empty"
    )
