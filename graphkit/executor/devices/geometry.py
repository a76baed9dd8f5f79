"""The axes and positions that nodes reduce, pad and resize, for the kernels of every device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.operands import constants, operand, shape
from graphkit.ir.graph import Node, Value
from graphkit.ops._base import operator
from graphkit.ops.image.resize import Axis, Resizing
from graphkit.ops.math.reduce import Reduction
from graphkit.ops.tensor.pad import pad_sources, pad_widths
from graphkit.ops.xp import numpy_xp


def reduced_axes(node: Node) -> tuple[int, ...] | None:
    """Return the axes of a Reduction of known shape; None if they are not known before a run."""
    op = operator(node, Reduction)
    axes = operand(node, 1)
    given = () if axes is None else axes.tensor.constants
    if given is None:
        return None
    if given or op.noop_with_empty_axes:
        return tuple(given)
    return tuple(range(len(shape(node.inputs[0]))))


def repeated_axes(node: Node) -> tuple[int, ...]:
    """Return the axes that ReduceToShapeOf sums over: those along which an array of its result's shape is broadcast."""
    x, y = shape(node.inputs[0]), shape(node.output)
    lead = len(x) - len(y)
    return (*range(lead), *(i for i in range(lead, len(x)) if y[i - lead] == 1 and x[i] != 1))


def known_widths(rank: int, pads: Value | None, axes: Value | None) -> list[tuple[int, int]] | None:
    """Return (before, after) for each axis of an array of `rank` axes; None if an operand is not known."""
    widths, where = constants(pads), constants(axes)
    if widths is None or (where is None and axes is not None):
        return None
    known = None if where is None else np.array(where, np.int64)
    return pad_widths(rank, np.array(widths, np.int64), known)


def pad_maps(mode: str, sizes: Sequence[int], pads: Value | None, axes: Value | None) -> list[list[int] | None] | None:
    """Return, for each axis of an array of `sizes`, the positions that padding copies; -1 is the fill value.

    An axis that is not padded has None. The result is None if an operand is not known.
    """
    widths = known_widths(len(sizes), pads, axes)
    if widths is None:
        return None
    maps: list[list[int] | None] = []
    for size, (before, after) in zip(sizes, widths, strict=True):
        if before == after == 0:
            maps.append(None)
        elif mode == "constant":
            position = np.arange(-before, size + after)
            kept = (position >= max(-before, 0)) & (position < size + min(after, 0))
            maps.append(np.where(kept, position, -1).tolist())
        else:
            maps.append(pad_sources(numpy_xp, size, before, after, mode).tolist())
    return maps


def resized_axes(node: Node, context: KernelContext, first: int, sizes: tuple[int, ...]) -> list[Axis] | None:
    """Return the resized axes of an array of `sizes`; None if an operand is not known. first: position of `roi`."""
    op = operator(node, Resizing)
    settings: list[Any] = []
    for position in range(first, first + 3):
        value = operand(node, position)
        known: Any = None
        if value is not None and (position > first or op.reads_roi):
            held = context.constant_inputs.get(position)
            known = constants(value) or value.tensor.floats
            if known is None and value.shape != (0,):
                if held is None:
                    return None
                known = held.array
        settings.append(known)
    return op.plan(sizes, *settings)
