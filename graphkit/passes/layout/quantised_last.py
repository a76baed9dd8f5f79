"""Convert operators on quantised numbers to the channels-last layout."""

from __future__ import annotations

from collections.abc import Callable

from graphkit.ir.graph import Node, Value
from graphkit.ir.types import BYTES
from graphkit.named_tuples import NamedTuple
from graphkit.ops import DOMAIN, Op, operator, registry
from graphkit.ops.internal.channels_last import to_last
from graphkit.ops.nn.conv import Convolution

# Positions of the elementwise operands; the other operands are quantisation parameters.
_ELEMENTWISE = {"QLinearAdd": (0, 3), "QLinearMul": (0, 3), "TableLookup": (0,)}
_LINEAR = ("QuantizeLinear", "DequantizeLinear")

Convert = Callable[[Value], Value]


class ChannelsLastOp(NamedTuple):
    """An operator that works with channels last, and its operands."""

    op: Op
    operands: list[Value | None]


def is_integer_convolution(node: Node) -> bool:
    """Return whether a ConvInteger or QLinearConv has 8-bit integers, known rank, and one to three spatial axes."""
    if node.op.domain:
        return False
    x, w = node.operands[0], node.operands[operator(node, Op).inputs.index("w")]
    return x.dtype in BYTES and x.rank is not None and w.rank == x.rank and 3 <= x.rank <= 5


def channels_last_convolution(node: Node, channels_last: Convert, standard_order: Convert) -> ChannelsLastOp:
    """Return an integer convolution with the channels of its image last."""
    made = registry.get(DOMAIN, f"ChannelsLast{node.op.name}")
    return ChannelsLastOp(
        made(**operator(node, Convolution).related()), _converted_operands(node, (0,), channels_last, standard_order)
    )


def channels_last_quantised(node: Node, channels_last: Convert, standard_order: Convert) -> ChannelsLastOp | None:
    """Return an operator on quantised numbers with the channels last; None if it cannot be converted."""
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
        return ChannelsLastOp(
            op.replace(axis=axis),
            _converted_operands(node, (0, 1, 2) if blocks else (0,), channels_last, standard_order),
        )
    if name == "QLinearGlobalAveragePool":
        made = registry.get(DOMAIN, f"ChannelsLast{name}")
        return ChannelsLastOp(made(), _converted_operands(node, (0,), channels_last, standard_order))
    positions = _ELEMENTWISE[name]
    if any(node.operands[i].rank != rank for i in positions):
        return None
    return ChannelsLastOp(op, _converted_operands(node, positions, channels_last, standard_order))


def _converted_operands(
    node: Node, positions: tuple[int, ...], channels_last: Convert, standard_order: Convert
) -> list[Value | None]:
    return [
        None if v is None else channels_last(v) if i in positions else standard_order(v)
        for i, v in enumerate(node.inputs)
    ]
