"""Run data movement and selection of elements on integers instead of floats."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphkit.errors import TypeMismatch
from graphkit.ir.graph import Node, Value
from graphkit.ops import F, Op, operator
from graphkit.ops.image.resize import Resize
from graphkit.passes.core.match import array_of, is_op
from graphkit.passes.core.sweep import Readers
from graphkit.passes.quantise.match import Quantised, dequantised

# Data movement: the results contain only elements of the first operand.
_MOVES = (
    "DepthToSpace", "Flatten", "Gather", "GatherElements", "Reshape", "Slice", "SpaceToDepth", "Split", "Squeeze",
    "Transpose", "Unsqueeze",
)  # fmt: skip
# These select the largest or smallest elements. They run on integers if larger integers represent larger numbers.
_CHOICES = ("ArgMax", "ArgMin", "MaxPool")
MOVES = frozenset({*_MOVES, *_CHOICES, "Concat", "Pad", "Resize"})


def is_move(node: Node) -> bool:
    """Return whether the node only moves elements of its first operand, independently of their values."""
    if is_op(node, "Resize"):
        return _is_nearest(node)
    return is_op(node, *_MOVES)


def _is_nearest(node: Node) -> bool:
    op = operator(node, Resize)
    return op.mode == "nearest" and op.coordinate_transformation_mode != "tf_crop_and_resize"


def move_integers(node: Node) -> Sequence[Value] | None:
    """Return the results of a node that moves dequantised values: move the integers, then dequantise.

    None if impossible.
    """
    if is_op(node, "Concat"):
        return _move_concat(node)
    given = dequantised(node.inputs[0])
    if given is None or given.axis is not None or not _commutes(node, given):
        return None
    operands: list[Value | None] = [given.x, *node.inputs[1:]]
    if is_op(node, "Pad"):
        operands = [*operands, None, None][:4]
        operands[2] = F.reshape(given.zero, np.zeros(0, np.int64))
    while operands[-1] is None:
        operands.pop()
    try:
        moved = Node(node.op, operands, node.name, node.meta)
    except TypeMismatch:  # the standard does not have the operator for these integers
        return None
    floats = [v for v in moved.outputs if v.dtype is given.x.dtype]
    restored = {v: F.dequantize_linear(v, given.scale, given.zero) for v in floats}
    return [restored.get(v, v) for v in moved.outputs]


def _commutes(node: Node, given: Quantised) -> bool:
    if is_op(node, *_CHOICES):
        return given.known_scale is not None
    if is_op(node, "Pad"):
        fill = node.inputs[2] if len(node.inputs) > 2 else None
        known = None if fill is None else array_of(fill)
        if getattr(node.op, "mode", "") != "constant":
            return True
        # The zero point represents zero if the scale is finite.
        return given.is_factor and (fill is None or (known is not None and not known.any()))
    return is_move(node)


def _move_concat(node: Node) -> Sequence[Value] | None:
    given = [dequantised(v) for v in node.inputs]
    known = [g for g in given if g is not None]
    if len(known) < len(given) or any(not g.same_parameters(known[0]) for g in known):
        return None
    joined = Node(node.op, [g.x for g in known], node.name, node.meta).output
    return [F.dequantize_linear(joined, known[0].scale, known[0].zero)]


def strip_moves(value: Value, readers: Readers) -> tuple[Value, list[Node]]:
    """Return the value before a chain of moves, and the moves, the last one first.

    Each must be the only reader of its operand.
    """
    moves: list[Node] = []
    while (node := value.node) is not None and len(node.outputs) == 1 and is_move(node) and readers.has_one_use(value):
        source = node.inputs[0]
        assert source is not None
        moves.append(node)
        value = source
    return value, moves


def reapply_moves(value: Value, moves: list[Node]) -> Value:
    """Apply the moves to a value. The list contains the last move first."""
    for node in reversed(moves):
        operands = [value, *node.inputs[1:]]
        value = Node(operator(node, Op), operands, node.name, node.meta).output
    return value
