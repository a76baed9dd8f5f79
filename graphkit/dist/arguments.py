"""Checks of the arguments of a store.

All arguments are checked before anything is sent: after a wrong call, no other process waits for data that never
arrive.
"""

from __future__ import annotations

import numbers
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from graphkit.errors import InputError, UsageError
from graphkit.text import quantity

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from graphkit.nd.ndarray import NDArray

Key: TypeAlias = int | str

_SHOWN = 60


def is_one(key: Key | Sequence[Key]) -> TypeIs[Key]:
    return not isinstance(key, (list, tuple))


def checked_key(key: Any) -> Key:
    """Return a key as an int or a string. Raises UsageError for other types."""
    if isinstance(key, str):
        return str(key)
    if isinstance(key, numbers.Integral) and not isinstance(key, bool):
        return int(key)
    raise UsageError(f"a key must be an int or a string, not {described(key)}; pass several keys as a list or a tuple")


def keys_of(key: Any, call: str | None = None) -> list[Key]:
    """Return the keys of a call as a list.

    Args:
        call: Name of the call, for the error if a key is given twice. With None, keys may be given twice.

    Raises:
        UsageError: A key has another type, or is given twice.
    """
    found = [checked_key(key)] if is_one(key) else [checked_key(k) for k in key]
    if call is not None and len(set(found)) < len(found):
        twice = next(k for i, k in enumerate(found) if k in found[:i])
        raise UsageError(f"{call}: key {twice!r} is given twice in one call; give each key once")
    return found


def pairs_of(key: Any, value: Any, call: str, what: str = "value") -> list[tuple[Key, Any]]:
    """Return each key of a call with its value. Raises UsageError if their numbers differ."""
    keys = keys_of(key, call)
    return list(zip(keys, [value] if is_one(key) else matched(keys, value, what), strict=True))


def matched(keys: Sequence[Key], given: Any, what: str) -> Sequence[Any]:
    """Return `given`. Raises UsageError unless it is a list or tuple with one entry per key."""
    many = f"{quantity(len(keys), 'key')} ({shown(keys)})"
    if not isinstance(given, (list, tuple)):
        raise UsageError(f"{many} and {described(given)}: give a list or a tuple with one {what} per key")
    if len(given) != len(keys):
        raise UsageError(f"{many} and {quantity(len(given), what)}: give one {what} per key")
    return given


def array_of(key: Key, value: Any, what: str = "value") -> np.ndarray:
    """Return a value as an array with the byte order of this machine.

    Raises:
        InputError: The value is not an array, a number, or a nested list of numbers.
    """
    try:
        found = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise InputError(f"key {key!r}: its {what} is not an array: {error}") from None
    if found.dtype.hasobject:
        raise InputError(f"key {key!r}: a {what} must be an array or a number, not {described(value)}")
    return found.astype(found.dtype.newbyteorder("="), copy=False)


class Outs:
    """The arrays to which a call writes its results.

    A key takes one array, or a list of arrays that all get the value.

    Attributes:
        given: The argument `out`; None if the call returns new arrays.
    """

    def __init__(self, key: Any, out: Any):
        self.given, self._several = out, not is_one(key)
        keys = keys_of(key)
        outs: Sequence[Any] = [None] * len(keys)
        if out is not None:
            outs = matched(keys, out, "array") if self._several else [out]
        self._by_key = [(k, _arrays_of(k, o)) for k, o in zip(keys, outs, strict=True)]

    def check(self, place: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        key, arrays = self._by_key[place]
        for array in arrays:
            if tuple(array.shape) != shape or not np.can_cast(dtype, array.dtype, "same_kind"):
                raise InputError(
                    f"key {key!r} is {dtype}{list(shape)}; the array to write to is {array.dtype}{list(array.shape)}"
                )
            if isinstance(array, np.ndarray) and not array.flags.writeable:
                raise InputError(f"key {key!r}: the array to write to is read-only")

    def only(self, place: int) -> np.ndarray | None:
        arrays = self._by_key[place][1]
        return arrays[0] if len(arrays) == 1 and isinstance(arrays[0], np.ndarray) else None

    def of(self, place: int) -> Sequence[Any]:
        return self._by_key[place][1]

    @property
    def are_arrays(self) -> bool:
        return self.given is not None and all(is_array(array) for _, arrays in self._by_key for array in arrays)

    def write(self, place: int, value: np.ndarray) -> None:
        for array in self._by_key[place][1]:
            if not isinstance(array, np.ndarray):
                array[...] = value
            elif array is not value:
                np.copyto(array, value, casting="same_kind")

    def write_rows(self, place: int, indices: np.ndarray, values: np.ndarray) -> None:
        for array in self._by_key[place][1]:
            array[indices] = values

    def may_overlap(self, place: int, values: Sequence[np.ndarray]) -> bool:
        arrays = [array for array in self._by_key[place][1] if isinstance(array, np.ndarray)]
        return any(np.may_share_memory(array, v) for array in arrays for v in values)

    def result(self, found: list[Any]) -> Any:
        return self.given if self.given is not None else found if self._several else found[0]


class DeferredArray(Protocol):
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    def wait_to_write(self) -> None: ...
    def __setitem__(self, key: Any, value: Any) -> None: ...


def is_array(value: Any) -> TypeIs[NDArray]:
    if not hasattr(value, "wait_to_write"):  # without an import of gk.nd
        return False
    from graphkit.nd.ndarray import NDArray

    return type(value) is NDArray


def _arrays_of(key: Key, out: Any) -> Sequence[np.ndarray | DeferredArray]:
    if out is None:
        return ()
    outs = out if isinstance(out, (list, tuple)) else (out,)
    if not outs:
        raise UsageError(f"key {key!r}: an empty list of arrays to write to; leave `out` out to get a new array")
    for o in outs:
        if not isinstance(o, np.ndarray) and not hasattr(o, "wait_to_write"):
            raise InputError(f"key {key!r}: its value can only be written to numpy arrays, not to {described(o)}")
    return outs


def checked_integer(name: str, value: Any, low: int | None = None, high: int | None = None) -> int:
    """Return an integer from `low` to `high`, both included. Raises UsageError, whose message begins with `name`."""
    fits = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not fits or (low is not None and value < low) or (high is not None and value > high):
        where = "" if low is None else f" of at least {low}" if high is None else f" from {low} to {high}"
        raise UsageError(f"{name} must be an integer{where}, not {described(value)}")
    return int(value)


def callable_of(requirement: str, value: Any) -> Callable[..., Any]:
    """Return a callable value. Otherwise, raise UsageError with the text "REQUIREMENT, not VALUE"."""
    if not callable(value):
        raise UsageError(f"{requirement}, not {described(value)}")
    found: Callable[..., Any] = value
    return found


def path_of(name: str, value: Any) -> Path:
    """Return the path of a file. Raises UsageError, whose message begins with `name`."""
    if not isinstance(value, (str, os.PathLike)):
        raise UsageError(f"{name} takes the path of a file, not {described(value)}")
    return Path(value)


def shown(keys: Sequence[Key]) -> str:
    return ", ".join(repr(k) for k in keys[:4]) + (", ..." if len(keys) > 4 else "")


def described(value: Any) -> str:
    text = repr(value)
    return f"{text} ({type(value).__name__})" if len(text) <= _SHOWN else f"a {type(value).__name__}"
