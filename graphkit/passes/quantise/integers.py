"""QDQ form to integers: operators between DequantizeLinear and QuantizeLinear become integer operators."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ops import F, constant
from graphkit.ops.quant.linear import QuantizeLinear
from graphkit.ops.quant.rounding import bounds, saturated
from graphkit.ops.xp import numpy_xp
from graphkit.passes.core.declare import Property, graph_pass
from graphkit.passes.core.match import array_of, first, is_op, scalar
from graphkit.passes.core.sweep import Readers, fuse
from graphkit.passes.quantise.match import Quantised, dequantised, quantisation
from graphkit.passes.quantise.moves import MOVES, before_moves, moved, moved_integers
from graphkit.passes.quantise.pointwise import quantised_mean, quantised_pair, table
from graphkit.passes.quantise.products import float_product, quantised_product

_PRODUCTS = ("MatMul", "Gemm")


@graph_pass(
    requires=[Property.CONSTANTS_FOLDED, Property.POINTWISE_APART],
    ensures=[Property.QUANTISED_INTEGER],
    breaks=[Property.SIMPLIFIED],
    at=["DequantizeLinear"],
)
def integers(graph: Graph) -> Graph:
    """Make integer operators of what lies between DequantizeLinear and QuantizeLinear of 8 bits and one scale.

    Moves of elements come before the dequantisation, and behind the quantisation. Convolutions and products become
    QLinearConv, QLinearMatMul and QGemm, sums and products of elements QLinearAdd and QLinearMul, functions of one
    tensor's elements tables. Products whose result is not quantised become MatMulIntegerToFloat. What has no such form
    stays between its dequantisations and quantisations; so does all of a graph that writes states, as training does.
    Results are those of the nodes replaced up to one step of the quantisation; of float32 results, up to rounding.
    Linear.
    """
    if graph.updates:
        return graph
    folded = fuse(graph, _fold_back, needs=("DequantizeLinear",), at=(*MOVES, "QuantizeLinear"))
    return fuse(folded, _product, needs=("DequantizeLinear",), at=_PRODUCTS)


def _fold_back(node: Node, readers: Readers) -> Sequence[Value] | None:
    if not is_op(node, "QuantizeLinear"):
        return moved_integers(node) if node.op.name in MOVES and not node.op.domain else None
    y = quantisation(node)
    if y is None:
        return None
    x = node.inputs[0]
    assert x is not None
    source, moves = before_moves(x, readers)
    inner = node if not moves else _quantised(source, y)
    found = _integer_form(inner, y, readers)
    if found is None:
        # Integers are fewer bytes to move.
        return None if not moves else (moved(inner.output, moves),)
    return (moved(found, moves),)


def _quantised(x: Value, y: Quantised) -> Node:
    """x quantised as `y` says."""
    return Node(QuantizeLinear(), (x, y.scale, y.zero))


def _integer_form(end: Node, y: Quantised, readers: Readers) -> Value | None:
    """What the quantisation `end` makes of its operand, by an operator on integers."""
    x = end.inputs[0]
    assert x is not None
    node = x.node
    if node is None:
        return None
    if readers.has_one_use(x):
        for form in (quantised_product, quantised_pair, quantised_mean):
            found = form(node, y, end)
            if found is not None:
                return found
        if is_op(node, "Concat"):
            return _joined(node, y, readers)
        if is_op(node, "Relu", "Clip"):
            bounded = _bounded(node, y, readers)
            if bounded is not None:
                return bounded
    return table(end, y, readers)


def _joined(node: Node, y: Quantised, readers: Readers) -> Value | None:
    """A Concat of dequantised tensors, each quantised as `y` says before it."""
    given = [dequantised(v) for v in node.inputs]
    if any(g is None or g.axis is not None for g in given):
        return None
    parts = []
    for value in node.operands:
        end = _quantised(value, y)
        found = table(end, y, readers)
        parts.append(end.output if found is None else found)
    return Node(node.op, parts, node.name, node.meta).output


def _bounded(node: Node, y: Quantised, readers: Readers) -> Value | None:
    """A Relu or a Clip behind a product or a sum: the quantised product within the quantised bounds.

    Larger numbers are quantised to larger integers, so that either may come first.
    """
    x, limits = first(node), _limits(node)
    if limits is None or x.node is None or not readers.has_one_use(x):
        return None
    scale, zero = y.known_scale, array_of(y.zero)
    if scale is None or zero is None:
        return None
    inner = _quantised(x, y)
    found = quantised_product(x.node, y, inner)
    if found is None:
        found = quantised_pair(x.node, y, inner)
    if found is None:
        return None
    dtype = y.x.dtype
    least, most = bounds(dtype)
    low, high = (
        None if v is None else saturated(numpy_xp, np.float32(v) / scale.reshape(()), zero.reshape(()), dtype)
        for v in limits
    )
    if low is not None and int(low) > least:
        found = F.max(found, constant(low))
    return found if high is None or int(high) >= most else F.min(found, constant(high))


def _limits(node: Node) -> tuple[float | None, float | None] | None:
    """The bounds, as far as there are any, of a Relu or a Clip by constants that are numbers."""
    if is_op(node, "Relu"):
        return 0.0, None
    given = [*node.inputs[1:], None, None][:2]
    known = [scalar(v) for v in given]
    told = all(v is None or (k is not None and np.isfinite(k)) for v, k in zip(given, known, strict=True))
    in_order = known[0] is None or known[1] is None or known[0] <= known[1]
    return (known[0], known[1]) if told and in_order else None


def _product(node: Node, readers: Readers) -> Sequence[Value] | None:
    found = float_product(node)
    return None if found is None else (found,)
