"""Samples put together to a batch: arrays, dicts of them by name, or tuples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from graphkit.errors import InputError


def arrays(values: Any) -> Any:
    """The same with arrays of numpy for what is in it; a list of several inputs as a tuple."""
    if values is None:
        return None
    if isinstance(values, Mapping):
        return {name: np.asarray(value) for name, value in values.items()}
    if isinstance(values, tuple):
        return tuple(np.asarray(value) for value in values)
    return np.asarray(values)


def leaves(values: Any) -> list[Any]:
    if isinstance(values, Mapping):
        return list(values.values())
    return list(values) if isinstance(values, tuple) else [values]


def stacked(samples: list[tuple[Any, Any]], source: str) -> tuple[Any, Any]:
    """A batch of samples, each array with a first axis for them."""
    return _stack([arrays(inputs) for inputs, _ in samples], source), _stack([arrays(t) for _, t in samples], source)


def _stack(values: list[Any], source: str) -> Any:
    first = values[0]
    if first is None:
        return None
    if isinstance(first, Mapping):
        return {name: _stack([value[name] for value in values], source) for name in first}
    if isinstance(first, tuple):
        return tuple(_stack([value[i] for value in values], source) for i in range(len(first)))
    odd = next((value for value in values if value.shape != first.shape), None)
    if odd is not None:
        raise InputError(f"{source}: samples of one batch have the shapes {list(first.shape)} and {list(odd.shape)}")
    return np.stack(values)


def without_samples(values: Any) -> Any:
    """The same arrays with no sample in them."""
    if values is None:
        return None
    if isinstance(values, Mapping):
        return {name: value[:0] for name, value in values.items()}
    if isinstance(values, tuple):
        return tuple(value[:0] for value in values)
    return values[:0]
