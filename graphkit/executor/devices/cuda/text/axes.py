"""Loop axes of a kernel over one or several arrays: known sizes and strides, with adjacent axes merged if possible."""

from __future__ import annotations

import math
from collections.abc import Sequence

from graphkit.executor.devices.operands import row_major
from graphkit.named_tuples import NamedTuple


class Axes(NamedTuple):
    """Loop axes. sizes: outermost first, at least one. strides: for each array, those along the axes, in elements."""

    sizes: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]

    @property
    def elements(self) -> int:
        return math.prod(self.sizes)


def merged(sizes: Sequence[int], *strides: Sequence[int]) -> Axes:
    """Return axes without those of size 1. Adjacent axes that are contiguous in every array are merged.

    strides: for each array, its strides along `sizes`.
    """
    kept: list[int] = []
    steps: list[list[int]] = [[] for _ in strides]
    for size, *new in zip(sizes, *strides, strict=True):
        if size == 1:
            continue
        if kept and all(before[-1] == step * size for before, step in zip(steps, new, strict=True)):
            kept[-1] *= size
            for before, step in zip(steps, new, strict=True):
                before[-1] = step
            continue
        kept.append(size)
        for before, step in zip(steps, new, strict=True):
            before.append(step)
    return Axes(tuple(kept) or (1,), tuple(tuple(s) or (0,) for s in steps))


def parted(shape: Sequence[int], axes: Sequence[int]) -> tuple[Axes, Axes]:
    """Return the axes of a C-contiguous array that are not in `axes`, and those that are."""
    gone = {axis % len(shape) for axis in axes} if shape else set()
    strides = row_major(shape)
    kept, reduced = (
        merged(*([of[axis] for axis in range(len(shape)) if (axis in gone) is wanted] for of in (shape, strides)))
        for wanted in (False, True)
    )
    return kept, reduced
