"""Check and convert fed values. Errors name the input that does not match."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from graphkit.errors import InputError, OutOfMemory, UsageError
from graphkit.executor.devices.loading import native_module
from graphkit.ir.arrays import array_of
from graphkit.ir.types import DType, MapType, SequenceType, TensorType, Type, dtype_of
from graphkit.text import quantity


def convert(name: str, kind: Type, given: Any) -> Any:
    """Return a C-contiguous, aligned array (or a sequence, map or optional) for input `name`.

    Raises InputError if its dtype, rank or static shape is wrong.

    Arrays must have the declared dtype. Arrays of other libraries are read through `__array__` or DLPack. Python
    numbers and lists have no dtype, so they are converted. Decimal fractions may be rounded; any other change is an
    error. Symbolic dimensions are checked later, when they are bound.
    """
    if isinstance(kind, TensorType):
        return _tensor(name, kind, given)
    if isinstance(kind, SequenceType):
        if not isinstance(given, (list, tuple)):
            raise InputError(f"input {name!r} is {kind}; a {type(given).__name__} given")
        return [_inside(f"{name}[{i}]", kind.element, item) for i, item in enumerate(given)]
    if isinstance(kind, MapType):
        return _map(name, kind, given)
    return None if given is None else _inside(name, kind.element, given)


def _inside(name: str, kind: Type, given: Any) -> Any:
    """Convert an element of a sequence or an optional. Its static sizes are checked here, because `bind` does not."""
    value = convert(name, kind, given)
    declared = kind.shape if isinstance(kind, TensorType) else None
    if declared is not None and any(isinstance(d, int) and d != n for d, n in zip(declared, value.shape, strict=True)):
        raise InputError(f"input {name!r} is {kind}; the array given has shape {list(value.shape)}")
    return value


def _map(name: str, kind: MapType, given: Any) -> dict[Any, Any]:
    """Return a dict with converted values. Raises InputError if a key or a value has another type."""
    if not isinstance(given, Mapping):
        raise InputError(f"input {name!r} is {kind}; a {type(given).__name__} given")
    wanted = str if kind.key is DType.STRING else (int, np.integer)
    for key in given:
        if not isinstance(key, wanted) or isinstance(key, bool):
            raise InputError(f"input {name!r} is {kind}; the key {key!r} given is a {type(key).__name__}")
    return {key: convert(f"{name}[{key!r}]", kind.element, item)[()] for key, item in given.items()}


def check_finite(name: str, array: Any) -> None:
    """Raise InputError if a fed floating-point array contains NaN or infinity."""
    if not isinstance(array, np.ndarray) or array.dtype.kind in "iubOUST" or not dtype_of(array.dtype).is_float:
        return
    finite = np.isfinite(array)
    if not finite.all():
        where = np.argwhere(~finite)
        first = [int(i) for i in where[0]]
        raise InputError(
            f"input {name!r} contains {array[tuple(first)]} at {first} (not finite: {quantity(len(where), 'value')})"
        )


def _tensor(name: str, kind: TensorType, given: Any) -> np.ndarray:
    """Return the array for an input that is a tensor."""
    wanted = kind.dtype.numpy
    if not isinstance(given, (np.ndarray, np.generic)) and hasattr(given, "__dlpack__"):
        given = _from_dlpack(name, kind, given)
    if isinstance(given, (np.ndarray, np.generic)) or hasattr(given, "__array__"):
        array = array_of(f"input {name!r}", given, objects=True)
        try:
            actual = dtype_of(array.dtype)
        except UsageError:
            raise InputError(f"input {name!r} is {kind}; the array given is {array.dtype}") from None
        if actual is not kind.dtype:
            if actual is DType.STRING and not kind.dtype.is_float:
                raise InputError(
                    f"input {name!r} is {kind}, but the array given contains strings: number them first, class names "
                    "for example with np.unique(names, return_inverse=True)[1]"
                )
            hint = "" if kind.dtype is DType.STRING else f"; convert it with .astype({kind.dtype.value!r})"
            raise InputError(f"input {name!r} is {kind}; the array given is {actual}{hint}")
        try:
            if kind.dtype is DType.STRING:
                array = _strings(name, kind, array)
            array = np.asarray(array, dtype=wanted, order="C")
            if not array.flags.aligned:
                array = array.copy()
        except MemoryError as error:
            raise OutOfMemory(f"input {name!r} is not contiguous, and a copy cannot be allocated: {error}") from None
    else:
        array = _from_python(name, kind, given)
    if kind.rank is not None and array.ndim != kind.rank:
        shape = list(array.shape)
        raise InputError(f"input {name!r} is {kind}, of rank {kind.rank}; the array given has shape {shape}")
    if kind.is_static and array.shape != kind.shape:
        raise InputError(f"input {name!r} is {kind}; the array given has shape {list(array.shape)}")
    return array


def _strings(name: str, kind: TensorType, array: np.ndarray) -> np.ndarray:
    """Return an array of str. Raises InputError if an element is not a string."""
    native = native_module()
    if native is not None and array.dtype == object:
        array = np.asarray(array, order="C")
        if native.are_texts(array):
            return array  # a fast check; `as_strings` converts each element in Python, or names the wrong one
    from graphkit.ir.strings import as_strings

    try:
        return as_strings(array)
    except UsageError as error:
        raise InputError(f"input {name!r} is {kind}; {error}") from None


def _from_dlpack(name: str, kind: TensorType, given: Any) -> Any:
    """Return a numpy view of another library's array, or `given` itself if numpy can only copy it (`__array__`)."""
    try:
        return np.from_dlpack(given)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        if hasattr(given, "__array__"):
            return given
        raise InputError(f"input {name!r} is {kind}; the {type(given).__name__} given: {error}") from None


def _from_python(name: str, kind: TensorType, given: Any) -> np.ndarray:
    """Return the array for Python numbers, strings or lists, which have no dtype."""
    wanted = kind.dtype.numpy
    if kind.dtype is DType.STRING:
        # numpy's fixed-width strings would lose zero bytes at the end.
        return _strings(name, kind, np.asarray(given, object))
    try:
        plain = array_of(f"input {name!r}", given, objects=True)
    except InputError as error:
        raise InputError(f"{error}; the input is {kind}") from None
    if plain.size == 0:
        return np.zeros(plain.shape, wanted)
    elif plain.dtype.kind not in ("biufc" if wanted.kind == "c" else "biuf"):
        raise InputError(f"input {name!r} is {kind}; a {type(given).__name__} given")
    else:
        with np.errstate(all="ignore"):
            converted = plain.astype(wanted)
            # Decimal fractions may be rounded to the element type. Integers must not change, and nothing may overflow.
            fraction = plain.dtype.kind == "f" and kind.dtype.is_float
            fits = bool(np.all((np.isfinite(converted) == np.isfinite(plain)) if fraction else (converted == plain)))
        fits = fits and (kind.dtype is not DType.BOOL or plain.dtype.kind == "b")
    if not fits:
        raise InputError(f"input {name!r} is {kind}, which cannot hold the {type(given).__name__} given without loss")
    return converted
