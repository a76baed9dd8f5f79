"""Weights along an axis in the form that the native Resample takes."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.ops.image.resampling import Taps


def axis_taps(axis: int, taps: Taps, outside: np.ndarray | None = None) -> tuple[Any, ...]:
    """`taps` of an axis as (axis, starts, sources, weights, outside): int64, int32, float64 and bool as bytes.

    `outside` marks output elements that take the fill value.
    """
    sources = taps.sources.astype(np.int32)
    mask = np.zeros(0, bool) if outside is None else outside
    return axis, taps.starts.astype(np.int64).tobytes(), sources.tobytes(), taps.weights.tobytes(), mask.tobytes()
