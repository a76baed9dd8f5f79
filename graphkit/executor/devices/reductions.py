"""What a node reduces over, for every device."""

from __future__ import annotations

from graphkit.executor.devices.operands import operand, shape
from graphkit.ir.graph import Node
from graphkit.ops._base import operator
from graphkit.ops.math.reduce import Reduction


def reduced_axes(node: Node) -> tuple[int, ...] | None:
    """The axes of a node of a Reduction, of known shape; None when they are known only when the program runs."""
    op = operator(node, Reduction)
    axes = operand(node, 1)
    given = () if axes is None else axes.tensor.constants
    if given is None:
        return None
    if given or op.noop_with_empty_axes:
        return tuple(given)
    return tuple(range(len(shape(node.inputs[0]))))


def repeated_axes(node: Node) -> tuple[int, ...]:
    """The axes of ReduceToShapeOf: those along which the result was repeated."""
    x, y = shape(node.inputs[0]), shape(node.output)
    lead = len(x) - len(y)
    return (*range(lead), *(i for i in range(lead, len(x)) if y[i - lead] == 1 and x[i] != 1))
