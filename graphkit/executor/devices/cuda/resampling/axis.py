"""The axes of a resampled array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Axis:
    """An axis with `size` elements in the operand and `results` in the result.

    Subclasses say how it is resampled. An instance of this class itself is an unchanged axis.
    """

    size: int
    results: int


def joined_axes(axes: Sequence[Axis]) -> list[Axis]:
    """Return the axes, with adjacent unchanged ones merged; at least one axis."""
    kept: list[Axis] = []
    for axis in axes:
        if type(axis) is Axis and kept and type(kept[-1]) is Axis:
            size = kept[-1].size * axis.size
            kept[-1] = Axis(size, size)
        else:
            kept.append(axis)
    return kept or [Axis(1, 1)]
