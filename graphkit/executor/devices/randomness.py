"""The random streams of nodes, for the kernels of every device."""

from __future__ import annotations

from graphkit.executor.devices.operands import operand
from graphkit.ir.graph import Node
from graphkit.named_tuples import NamedTuple
from graphkit.ops._base import operator
from graphkit.ops.math.random import Normal, RandomOp, Uniform
from graphkit.ops.xp import numpy_xp


class Draw(NamedTuple):
    """The random stream of a node. has_operand: seed and step are those of the operand `rng`."""

    seed: int
    step: int
    stream: int
    has_operand: bool


def draw(node: Node) -> Draw | None:
    """Return the stream of a RandomOp; None if the node has its own seed.

    Seed and step are those of its operand `rng`. Without that operand, they are 0.
    """
    op = operator(node, RandomOp)
    if op.own_seed is not None:
        return None
    if op.named_inputs(node.inputs)["rng"] is not None:
        return Draw(0, 0, op.stream, True)
    seed, step = op.state(numpy_xp, None).tolist()
    return Draw(seed, step, op.stream, False)


def dropout_draw(node: Node) -> Draw | None:
    """Return the stream of a Dropout. A node that never trains draws nothing."""
    source = draw(node)
    return Draw(0, 0, 0, False) if source is None and never_trains(node) else source


def never_trains(node: Node) -> bool:
    """Return whether a Dropout is known to be the identity."""
    mode = operand(node, 2)
    return mode is None or mode.tensor.constants == (0,)


def linear(node: Node) -> tuple[float, float]:
    """Return offset and factor that turn standard random numbers into those of a node.

    These are (mean, scale) for normal numbers, and (low, high - low) for uniform ones.
    """
    op = operator(node, RandomOp)
    if isinstance(op, Normal):
        return op.mean, op.scale
    assert isinstance(op, Uniform)
    return op.low, op.high - op.low
