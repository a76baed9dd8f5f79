"""Sequences and optionals as the command line writes and reads them: arrays called NAME[0], NAME[1], ..."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from graphkit.errors import InputError
from graphkit.ir.types import OptionalType, SequenceType, TensorType, Type


def arrays_of(values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The arrays in values by name; an empty sequence or optional has none."""
    return {name: array for n, value in values.items() for name, array in _arrays(n, value)}


def _arrays(name: str, value: Any) -> Iterator[tuple[str, np.ndarray]]:
    if isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from _arrays(f"{name}[{i}]", item)
    elif value is not None:
        yield name, value


def empty_of(values: Mapping[str, Any]) -> dict[str, str]:
    """What the values that hold no array are."""
    empty = {name: value for name, value in values.items() if value is None or (isinstance(value, list) and not value)}
    return {name: "empty optional" if value is None else "empty sequence" for name, value in empty.items()}


def from_arrays(name: str, kind: Type, arrays: Mapping[str, np.ndarray]) -> Any:
    """The value called `name` among arrays that `arrays_of` may have made; raises InputError where it is not there.

    Of a sequence the elements count up from NAME[0]; a file of other names is the sequence of all that it holds.
    """
    if isinstance(kind, OptionalType):
        return from_arrays(name, kind.element, arrays)
    if isinstance(kind, SequenceType):
        if not isinstance(kind.element, TensorType):
            raise InputError(f"input {name!r} is {kind}, which is not read from files")
        own = [arrays[key] for i in range(len(arrays)) if (key := f"{name}[{i}]") in arrays]
        return own or list(arrays.values())
    if name in arrays:
        return arrays[name]
    if len(arrays) != 1:
        raise InputError(f"it holds {', '.join(arrays)}, and none is called {name!r}")
    return next(iter(arrays.values()))


def is_named(name: str, arrays: Mapping[str, np.ndarray]) -> bool:
    """Whether arrays of a file are those of a value of this name."""
    return name in arrays or f"{name}[0]" in arrays


def empty(name: str, kind: Type) -> Any:
    """What nothing stands for; raises InputError for a tensor."""
    if isinstance(kind, OptionalType):
        return None
    if isinstance(kind, SequenceType):
        return []
    raise InputError(f"input {name!r} is {kind}: NAME= without a file is an empty sequence or optional")
