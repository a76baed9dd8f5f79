"""What a node reduces over, for every device."""

from __future__ import annotations

from graphkit.ir.graph import Node
from graphkit.ops._base import operator
from graphkit.ops.math.reduce import Reduction


def reduced_axes(node: Node) -> tuple[int, ...] | None:
    """The axes of a node of a Reduction, of known rank; None when they are known only when the program runs."""
    op = operator(node, Reduction)
    x, axes = node.inputs[0], node.inputs[1] if len(node.inputs) > 1 else None
    assert x is not None
    given = () if axes is None else axes.tensor.constants
    if given is None:
        return None
    if given or op.noop_with_empty_axes:
        return tuple(given)
    return tuple(range(len(x.tensor.known_shape)))


def repeated_axes(node: Node) -> tuple[int, ...]:
    """The axes of ReduceToShapeOf: those along which the result was repeated."""
    assert node.inputs[0] is not None
    x, y = node.inputs[0].tensor.static_shape, node.output.tensor.static_shape
    lead = len(x) - len(y)
    return (*range(lead), *(i for i in range(lead, len(x)) if y[i - lead] == 1 and x[i] != 1))
