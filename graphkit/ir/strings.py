"""Tensors of strings in memory: object arrays whose elements are all str."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit.errors import UsageError

_STR = frozenset({str})


def as_strings(array: np.ndarray, *, surrogates: bool = False) -> np.ndarray:
    """Return an array of numpy's kinds O, U, S or T as a C-contiguous object array of str. Bytes are decoded as UTF-8.

    An object array of str is returned unchanged. surrogates: allow lone surrogates, which JSON can contain and UTF-8
    cannot. Raises UsageError, which names the first element that is not a string.
    """
    strings = np.asarray(array, object, order="C")
    elements = strings.reshape(-1).tolist()
    if not _STR.issuperset(map(type, elements)):
        made = np.empty(len(elements), object)
        made[:] = [_decoded(element, i, strings.shape) for i, element in enumerate(elements)]
        elements, strings = made.tolist(), made.reshape(strings.shape)
    # Most text is ASCII. map(str.isascii) checks this without executing Python code for each element.
    unchecked = () if surrogates or all(map(str.isascii, elements)) else elements
    for i, element in enumerate(unchecked):
        if not element.isascii():
            try:
                element.encode()
            except UnicodeEncodeError as error:
                raise UsageError(f"{_place(i, strings.shape)} is not Unicode text: {error.reason}") from None
    return strings


def _decoded(element: Any, index: int, shape: Sequence[int]) -> str:
    if isinstance(element, str):
        return str(element)
    if not isinstance(element, bytes):
        name = type(element).__name__
        raise UsageError(f"{_place(index, shape)} is of type {name}; an array of objects must contain only strings")
    try:
        return element.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{_place(index, shape)} is not UTF-8 text: {error.reason}") from None


def _place(index: int, shape: Sequence[int]) -> str:
    """Return the name of an element for errors: `element [0, 2]`, or `the value` of an array without axes."""
    return f"element {[int(i) for i in np.unravel_index(index, shape)]}" if shape else "the value"
