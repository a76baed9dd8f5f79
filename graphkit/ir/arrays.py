"""Conversion of arguments to numpy arrays: from arrays of other libraries, tables, numbers and nested lists."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.errors import InputError
from graphkit.signatures import shown


def array_of(what: str, given: Any, dtype: np.dtype | None = None, *, objects: bool = False) -> np.ndarray:
    """Return an argument as a numpy array, without a copy if possible.

    PyTorch tensors that require gradients are detached. Strings become arrays of strings.

    Args:
        what: Name of the argument in errors: "input 'x'".
        given: An array of any library, an object with `__array__`, a number, a string, or nested lists of these.
        dtype: The element type; by default that of `given`.
        objects: Also accept object arrays with elements that are not strings, and return them unchanged.

    Raises:
        InputError: `given` is none of these, its rows have different lengths, its elements are neither numbers nor
            strings, or an integer does not fit `dtype`.
    """
    if getattr(given, "requires_grad", False) and hasattr(given, "detach"):
        given = given.detach()
    if isinstance(given, (list, tuple)):
        given = [item.detach() if getattr(item, "requires_grad", False) else item for item in given]
    if given is None or isinstance(given, (set, frozenset, dict)):
        raise InputError(f"{what} must be an array or nested lists of numbers, not {shown(given)}")
    try:
        found = np.asarray(given, dtype=dtype)
    except MemoryError:
        raise
    except (OverflowError, TypeError, ValueError, RuntimeError) as error:
        if "inhomogeneous" in str(error):
            raise InputError(
                f"{what}: its nested lists have different lengths; all rows of an array need one length"
            ) from None
        raise InputError(f"{what}: {shown(given)} cannot be converted to an array: {error}") from None
    if found.dtype.kind == "O":
        _check_objects(what, given, found.reshape(-1).tolist(), objects)
    return found


def native_order(array: np.ndarray) -> np.ndarray:
    """Return the array, or a copy of it in the byte order of the machine, which kernels need."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


_TEXTS = frozenset({str, bytes})


def _check_objects(what: str, given: Any, elements: list[Any], objects: bool) -> None:
    """Raise InputError for an object array that numpy made from a generator, or whose elements are not strings."""
    if hasattr(given, "__next__"):
        raise InputError(f"{what} must be an array, not a {type(given).__name__}; use np.array(list(...))")
    if not isinstance(given, np.ndarray):
        # Numpy also makes objects of Python's integers that are too large for its own types.
        large = next((e for e in elements if isinstance(e, int) and not -(1 << 63) <= e < 1 << 64), None)
        if large is not None:
            raise InputError(
                f"{what} contains an integer of {large.bit_length()} bits, which does not fit into int64 or uint64"
            )
    if objects or _TEXTS.issuperset(map(type, elements)):
        return
    others = [item for item in elements if not isinstance(item, (str, bytes))]
    if not others:
        return
    if len(others) < len(elements):
        raise InputError(f"{what} mixes strings with {shown(others[0])} in one array: use one array for each kind")
    hint = "; convert it with .astype('float32')" if isinstance(others[0], (int, float)) else ""
    raise InputError(f"{what} must be an array of numbers or strings, not of objects such as {shown(others[0])}{hint}")


def holds_arrays(given: Any) -> bool:
    """Return whether a tuple or list contains several arrays. A nested list of numbers is one array."""
    if isinstance(given, tuple):
        return True
    return isinstance(given, list) and any(hasattr(item, "__array__") for item in given) and not _are_numbers(given)


def _are_numbers(given: list[Any]) -> bool:
    return all(np.ndim(item) == 0 for item in given)
