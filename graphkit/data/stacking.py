"""Combine samples to a batch: arrays, dicts of arrays by name, or tuples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from graphkit.errors import InputError
from graphkit.ir.arrays import array_of

# Allocates an uninitialised array of a shape and dtype.
Empty: TypeAlias = Callable[[tuple[int, ...], np.dtype], np.ndarray]

# Structure of several arrays: names of a dict, length of a tuple, "" for a single array, None for no array.
Form: TypeAlias = tuple[str, ...] | int | str | None


def arrays(values: Any) -> Any:
    """Convert the contents to numpy arrays; a list of several inputs becomes a tuple."""
    if values is None:
        return None
    if isinstance(values, Mapping):
        return {name: array_of(f"{name!r} of an item", value) for name, value in values.items()}
    if isinstance(values, tuple):
        return tuple(array_of("an array of an item", value) for value in values)
    return array_of("an array of an item", values)


def leaves(values: Any) -> list[Any]:
    if isinstance(values, Mapping):
        return list(values.values())
    return list(values) if isinstance(values, tuple) else [values]


def form_of(values: Any) -> Form:
    if values is None:
        return None
    if isinstance(values, Mapping):
        return tuple(values)
    return len(values) if isinstance(values, tuple) else ""


def parted(values: Any, form: Form) -> list[Any]:
    """Return the arrays of a structure as a list, in the order of `form`."""
    if form is None:
        return []
    if isinstance(form, tuple):
        return [values[name] for name in form]
    return list(values) if isinstance(form, int) else [values]


def formed(parts: list[Any], form: Form) -> Any:
    """Return the arrays of `parts` in the structure `form`; the inverse of `parted`."""
    if form is None:
        return None
    if isinstance(form, tuple):
        return dict(zip(form, parts, strict=True))
    return tuple(parts) if isinstance(form, int) else parts[0]


class Rows:
    """A batch of `count` samples that are added one by one; each is copied to its place at once.

    The first sample determines the arrays, their names and shapes. Element types may differ; the batch has their common
    type. empty: allocates the arrays of the batch. Raises InputError, which names `source`, for a sample that does not
    match the first.
    """

    def __init__(self, count: int, source: str, empty: Empty = np.empty):
        self._count, self._source, self._empty = count, source, empty
        self._filled = 0
        self._forms: tuple[Form, Form] = (None, None)
        self._columns: list[_Column] = []

    def add(self, inputs: Any, targets: Any) -> None:
        inputs, targets = arrays(inputs), arrays(targets)
        forms = form_of(inputs), form_of(targets)
        if not self._filled:
            self._forms = forms
            found = [*parted(inputs, forms[0]), *parted(targets, forms[1])]
            self._columns = [_Column(self._count, array, self._empty) for array in found]
        elif any(not _alike(a, b) for a, b in zip(forms, self._forms, strict=True)):
            expected = " and ".join(map(_told, self._forms))
            raise InputError(
                f"{self._source}: samples of one batch must be {expected}, but are {' and '.join(map(_told, forms))}"
            )
        values = [*parted(inputs, self._forms[0]), *parted(targets, self._forms[1])]
        for column, value in zip(self._columns, values, strict=True):
            if value.shape != column.shape:
                shapes = f"{list(column.shape)} and {list(value.shape)}"
                raise InputError(f"{self._source}: samples of one batch must have one shape, but have {shapes}")
            column.put(self._filled, value)
        self._filled += 1

    def whole(self) -> tuple[Any, Any]:
        """Return (inputs, targets); the first axis of each array counts samples."""
        found = [column.rows for column in self._columns]
        inputs = len(names_of(self._forms[0]))
        return formed(found[:inputs], self._forms[0]), formed(found[inputs:], self._forms[1])


def names_of(form: Form) -> list[str]:
    """Return the names of the arrays; "" if they have no names."""
    if form is None:
        return []
    return list(form) if isinstance(form, tuple) else [""] * (form if isinstance(form, int) else 1)


def stacked(samples: list[tuple[Any, Any]], source: str) -> tuple[Any, Any]:
    """Return a batch of samples; the first axis of each array counts them."""
    rows = Rows(len(samples), source)
    for inputs, targets in samples:
        rows.add(inputs, targets)
    return rows.whole()


def without_samples(values: Any) -> Any:
    """Return the same arrays with 0 samples."""
    if values is None:
        return None
    if isinstance(values, Mapping):
        return {name: value[:0] for name, value in values.items()}
    if isinstance(values, tuple):
        return tuple(value[:0] for value in values)
    return values[:0]


class _Column:
    """One array of a batch."""

    def __init__(self, count: int, first: np.ndarray, empty: Empty):
        self.shape = first.shape
        self._empty = empty
        self._dtypes = {first.dtype}
        # In native byte order, like the result of np.stack.
        self.rows = empty((count, *first.shape), first.dtype.newbyteorder("="))

    def put(self, place: int, value: np.ndarray) -> None:
        if value.dtype not in self._dtypes:
            self._dtypes.add(value.dtype)
            common = np.result_type(*self._dtypes)
            if common != self.rows.dtype:
                before, self.rows = self.rows, self._empty(self.rows.shape, common)
                self.rows[:place] = before[:place]
        self.rows[place] = value


def _alike(form: Form, first: Form) -> bool:
    """Whether a sample has the same structure as the first one. The order of names does not matter."""
    return set(form) == set(first) if isinstance(form, tuple) and isinstance(first, tuple) else form == first


def _told(form: Form) -> str:
    if form is None:
        return "nothing"
    if isinstance(form, tuple):
        return "{" + ", ".join(form) + "}"
    return f"{form} arrays" if isinstance(form, int) else "an array"
