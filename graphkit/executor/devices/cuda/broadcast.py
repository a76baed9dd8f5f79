"""How operands lie along the axes of a result, with as few axes as say the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Axes(NamedTuple):
    """sizes: of the result's axes, outermost first, at least one. strides: of each operand along them, in elements; 0
    where it is repeated."""

    sizes: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]


def collapsed(shape: Sequence[int], operands: Sequence[Sequence[int]]) -> Axes:
    """Axes of one element are dropped, and those joined that every operand goes through in one go.

    Operands are C-contiguous and broadcast to `shape` by numpy's rules.
    """
    strides = [_strides(operand, shape) for operand in operands]
    sizes: list[int] = []
    kept: list[list[int]] = [[] for _ in operands]
    for axis, size in enumerate(shape):
        if size == 1:
            continue
        steps = [s[axis] for s in strides]
        if sizes and all(before[-1] == step * size for before, step in zip(kept, steps, strict=True)):
            sizes[-1] *= size
            for before, step in zip(kept, steps, strict=True):
                before[-1] = step
            continue
        sizes.append(size)
        for before, step in zip(kept, steps, strict=True):
            before.append(step)
    return Axes(tuple(sizes) or (1,), tuple(tuple(s) or (0,) for s in kept))


def _strides(operand: Sequence[int], shape: Sequence[int]) -> list[int]:
    """Of an operand along the axes of the result."""
    found = [0] * len(shape)
    step = 1
    for axis in range(1, len(operand) + 1):
        size = operand[-axis]
        if size != 1:
            found[-axis] = step
        step *= size
    return found
