"""How operators on quantised numbers carry on a part of a graph whose channels are last."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from graphkit.ir.graph import Node, Value
from graphkit.ops import DOMAIN, Op, operator, registry
from graphkit.ops.internal.channels_last import to_last
from graphkit.ops.nn.conv import Convolution
from graphkit.ops.quant.rounding import BYTES

# Operands that have an element for each one of the result; the others are parameters of all.
_ELEMENTWISE = {"QLinearAdd": (0, 3), "QLinearMul": (0, 3), "TableLookup": (0,)}
_LINEAR = ("QuantizeLinear", "DequantizeLinear")

INTEGER_CONVOLUTIONS = ("ConvInteger", "QLinearConv")
QUANTISED = (*_ELEMENTWISE, *_LINEAR, "QLinearGlobalAveragePool")

Place = Callable[[Value], Value]


class Moved(NamedTuple):
    """An operator on channels that are last, and its operands."""

    op: Op
    operands: list[Value | None]


def is_integer_convolution(node: Node) -> bool:
    """Whether a node is a convolution of bytes of known rank, with one to three spatial axes."""
    if node.op.domain or node.op.name not in INTEGER_CONVOLUTIONS:
        return False
    x, w = node.operands[0], node.operands[operator(node, Op).inputs.index("w")]
    return x.dtype in BYTES and x.rank is not None and w.rank == x.rank and 3 <= x.rank <= 5


def moved_convolution(node: Node, moved: Place, in_order: Place) -> Moved:
    """An integer convolution with its image's channels last."""
    made = registry.get(DOMAIN, f"ChannelsLast{node.op.name}")
    return Moved(made(**operator(node, Convolution).related()), _placed(node, (0,), moved, in_order))


def moved_elements(node: Node, moved: Place, in_order: Place) -> Moved | None:
    """An operator of QUANTISED with its tensors' channels last; None for one that has to stay."""
    op = operator(node, Op)
    name, x = op.name, node.operands[0]
    rank = x.rank
    if rank is None:
        return None
    if name in _LINEAR:
        scale = node.operands[1]
        blocks = scale.rank == rank and rank > 1
        if not blocks and (scale.rank is None or scale.rank > 1):
            return None
        axis = int(op.attributes()["axis"])
        axis = to_last(rank).index(axis % rank) if -rank <= axis < rank else axis
        return Moved(op.replace(axis=axis), _placed(node, (0, 1, 2) if blocks else (0,), moved, in_order))
    if name == "QLinearGlobalAveragePool":
        made = registry.get(DOMAIN, f"ChannelsLast{name}")
        return Moved(made(), _placed(node, (0,), moved, in_order))
    positions = _ELEMENTWISE[name]
    if any(node.operands[i].rank != rank for i in positions):
        return None
    return Moved(op, _placed(node, positions, moved, in_order))


def _placed(node: Node, positions: tuple[int, ...], moved: Place, in_order: Place) -> list[Value | None]:
    return [None if v is None else moved(v) if i in positions else in_order(v) for i, v in enumerate(node.inputs)]
