"""Masks of the elements of arrays that have the largest magnitudes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from graphkit.named_tuples import NamedTuple


class Pattern(NamedTuple):
    """N:M sparsity: in each group of `group` consecutive weights, at most `kept` are not 0."""

    kept: int
    group: int

    def __str__(self) -> str:
        return f"{self.kept}:{self.group}"


def wide(array: np.ndarray) -> np.ndarray:
    """Return an array as float32; float64 stays."""
    return array if array.dtype == np.float64 else array.astype(np.float32)


def magnitude_masks(arrays: Mapping[str, np.ndarray], sparsity: float, *, globally: bool) -> dict[str, np.ndarray]:
    """Return a mask for each array: False for the elements of the smallest magnitudes.

    sparsity: their share. globally: whether this is a share of all arrays together, or of each one.
    """
    magnitudes = {name: np.abs(wide(array)) for name, array in arrays.items()}
    found: dict[str, np.ndarray] = {}
    for names in [list(arrays)] if globally and arrays else [[name] for name in arrays]:
        flat = np.concatenate([magnitudes[name].reshape(-1) for name in names])
        mask, start = without_smallest(flat, round(sparsity * flat.size)), 0
        for name in names:
            size = arrays[name].size
            found[name] = mask[start : start + size].reshape(arrays[name].shape)
            start += size
    return found


def without_smallest(magnitudes: np.ndarray, count: int) -> np.ndarray:
    """Return a mask that is False for the `count` smallest numbers of a vector. Of equal ones, the first are False."""
    mask = np.ones(magnitudes.size, bool)
    if not count:
        return mask
    limit = np.partition(magnitudes, count - 1)[count - 1]
    mask[magnitudes < limit] = False
    equal = np.flatnonzero(magnitudes == limit)
    mask[equal[: count - int(mask.size - np.count_nonzero(mask))]] = False
    return mask


def in_groups(array: np.ndarray, pattern: Pattern, axis: int) -> np.ndarray:
    """Return a mask that is True for the elements of largest magnitude in each group along `axis`.

    Of equal ones, the first are True. The size of the axis must be a multiple of the group.
    """
    moved = np.moveaxis(np.abs(array), axis, -1)
    order = np.argsort(-moved.reshape(-1, pattern.group), axis=1, kind="stable")
    mask = np.zeros(order.shape, bool)
    np.put_along_axis(mask, order[:, : pattern.kept], True, axis=1)
    return np.moveaxis(mask.reshape(moved.shape), -1, axis)
