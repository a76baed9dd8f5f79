"""Where random nodes draw from, for every device."""

from __future__ import annotations

from typing import NamedTuple

from graphkit.executor.devices.operands import operand
from graphkit.ir.graph import Node
from graphkit.ops._base import operator
from graphkit.ops.math.random import Normal, RandomOp, Uniform
from graphkit.ops.xp import numpy_xp


class Draw(NamedTuple):
    """A node's stream, from (seed, step); has_operand: it is the operand `rng` that says these two."""

    seed: int
    step: int
    stream: int
    has_operand: bool


def draw(node: Node) -> Draw | None:
    """Where a node of a RandomOp draws: from its operand `rng`, or at its beginning; None for a seed of its own."""
    op = operator(node, RandomOp)
    if op.own_seed is not None:
        return None
    if op.named_inputs(node.inputs)["rng"] is not None:
        return Draw(0, 0, op.stream, True)
    seed, step = op.state(numpy_xp, None).tolist()
    return Draw(seed, step, op.stream, False)


def dropout_draw(node: Node) -> Draw | None:
    """That of Dropout, which draws nothing where it never trains."""
    source = draw(node)
    return Draw(0, 0, 0, False) if source is None and never_trains(node) else source


def never_trains(node: Node) -> bool:
    """Whether a node of Dropout is known to be the identity."""
    mode = operand(node, 2)
    return mode is None or mode.tensor.constants == (0,)


def linear(node: Node) -> tuple[float, float]:
    """What a node's standard numbers are multiplied by, behind what is added: (mean, scale), or (low, high - low)."""
    op = operator(node, RandomOp)
    if isinstance(op, Normal):
        return op.mean, op.scale
    assert isinstance(op, Uniform)
    return op.low, op.high - op.low
