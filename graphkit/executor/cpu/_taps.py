"""Matrices of weights in the form that the native Resample takes."""

from __future__ import annotations

from typing import Any

import numpy as np


def axis_taps(axis: int, matrix: np.ndarray, outside: np.ndarray | None = None) -> tuple[Any, ...]:
    """A [resized, size] matrix, mostly 0, as (axis, resized, taps, sources, weights, outside).

    Output element i is the sum over t < taps of weights[t, i] * element sources[t, i]; both are flat lists. `outside`
    marks output elements that take the fill value.
    """
    resized = matrix.shape[0]
    rows, columns = np.nonzero(matrix)
    counts = np.bincount(rows, minlength=resized)
    taps = int(counts.max(initial=0))
    order = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    # Rows with fewer elements repeat their first one, with a weight of 0.
    first = np.zeros(resized, np.int64)
    first[rows[order == 0]] = columns[order == 0]
    sources = np.tile(first, (taps, 1))
    weights = np.zeros((taps, resized))
    sources[order, rows] = columns
    weights[order, rows] = matrix[rows, columns]
    mask = [] if outside is None else outside.tolist()
    return axis, resized, taps, sources.reshape(-1).tolist(), weights.reshape(-1).tolist(), mask
