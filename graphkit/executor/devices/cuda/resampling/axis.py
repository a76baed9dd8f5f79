"""Axes of what is resampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Axis:
    """An axis of `size` elements, and of `results`. Of this class itself: it stays as it is."""

    size: int
    results: int


def joined_axes(axes: Sequence[Axis]) -> list[Axis]:
    """Neighbours that stay as they are as one axis; at least one axis."""
    kept: list[Axis] = []
    for axis in axes:
        if type(axis) is Axis and kept and type(kept[-1]) is Axis:
            size = kept[-1].size * axis.size
            kept[-1] = Axis(size, size)
        else:
            kept.append(axis)
    return kept or [Axis(1, 1)]
