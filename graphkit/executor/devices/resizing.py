"""What a node resizes, for every device."""

from __future__ import annotations

from typing import Any

from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.operands import constants, operand
from graphkit.ir.graph import Node
from graphkit.ops._base import operator
from graphkit.ops.image.resize import Axis, Resizing


def resized_axes(node: Node, context: KernelContext, first: int, sizes: tuple[int, ...]) -> list[Axis] | None:
    """The resized axes of an array of `sizes`; None when an operand is not known. `first` is roi's position."""
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
