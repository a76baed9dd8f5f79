"""Convert the QDQ form: operators between DequantizeLinear and QuantizeLinear become integer operators."""

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
from graphkit.passes.quantise.moves import MOVES, move_integers, reapply_moves, strip_moves
from graphkit.passes.quantise.pointwise import lookup_table, quantised_mean, quantised_pair
from graphkit.passes.quantise.products import float_product, quantised_product

_PRODUCTS = ("MatMul", "Gemm")


@graph_pass(
    requires=[Property.CONSTANTS_FOLDED, Property.POINTWISE_APART],
    ensures=[Property.QUANTISED_INTEGER],
    breaks=[Property.SIMPLIFIED],
    at=["DequantizeLinear"],
)
def integers(graph: Graph) -> Graph:
    """Convert operators between DequantizeLinear and QuantizeLinear of 8 bits and one scale to integer operators.

    Data movement runs on the quantised integers. Convolutions and matrix products become QLinearConv, QLinearMatMul and
    QGemm. Elementwise sums and products become QLinearAdd and QLinearMul. Elementwise functions of one tensor become
    tables. Matrix products whose result is not quantised become MatMulIntegerToFloat. Other operators are kept,
    together with their dequantisation and quantisation. A graph that writes states, as in training, is not changed.

    Quantised results differ from those of the replaced nodes by at most one quantisation step, and float32 results only
    by rounding. Takes linear time.
    """
    if graph.updates:
        return graph
    folded = fuse(graph, _convert, needs=("DequantizeLinear",), at=(*MOVES, "QuantizeLinear"))
    return fuse(folded, _product, needs=("DequantizeLinear",), at=_PRODUCTS)


def _convert(node: Node, readers: Readers) -> Sequence[Value] | None:
    if not is_op(node, "QuantizeLinear"):
        return move_integers(node) if node.op.name in MOVES and not node.op.domain else None
    y = quantisation(node)
    if y is None:
        return None
    x = node.inputs[0]
    assert x is not None
    source, moves = strip_moves(x, readers)
    inner = node if not moves else _quantised(source, y)
    found = _integer_form(inner, y, readers)
    if found is None:
        # Moving 8-bit integers is faster than moving floats.
        return None if not moves else (reapply_moves(inner.output, moves),)
    return (reapply_moves(found, moves),)


def _quantised(x: Value, y: Quantised) -> Node:
    """Return the node that quantises x with the parameters of `y`."""
    return Node(QuantizeLinear(), (x, y.scale, y.zero))


def _integer_form(end: Node, y: Quantised, readers: Readers) -> Value | None:
    """Return the result of the QuantizeLinear `end`, computed by an integer operator; None if there is none."""
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
            return _quantised_concat(node, y, readers)
        if is_op(node, "Relu", "Clip"):
            bounded = _clipped(node, y, readers)
            if bounded is not None:
                return bounded
    return lookup_table(end, y, readers)


def _quantised_concat(node: Node, y: Quantised, readers: Readers) -> Value | None:
    """Convert a Concat of dequantised tensors: quantise each with the parameters of `y`, then concatenate."""
    given = [dequantised(v) for v in node.inputs]
    if any(g is None or g.axis is not None for g in given):
        return None
    parts = []
    for value in node.operands:
        end = _quantised(value, y)
        found = lookup_table(end, y, readers)
        parts.append(end.output if found is None else found)
    return Node(node.op, parts, node.name, node.meta).output


def _clipped(node: Node, y: Quantised, readers: Readers) -> Value | None:
    """Convert a Relu or Clip after a product or sum: clip the quantised result to the quantised bounds.

    Quantisation is monotonic, so it may come before or after the clipping.
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
    """Return the bounds of a Relu or Clip (None: no bound); None if they are not finite constants in order."""
    if is_op(node, "Relu"):
        return 0.0, None
    given = [*node.inputs[1:], None, None][:2]
    known = [scalar(v) for v in given]
    are_finite = all(v is None or (k is not None and np.isfinite(k)) for v, k in zip(given, known, strict=True))
    in_order = known[0] is None or known[1] is None or known[0] <= known[1]
    return (known[0], known[1]) if are_finite and in_order else None


def _product(node: Node, readers: Readers) -> Sequence[Value] | None:
    found = float_product(node)
    return None if found is None else (found,)
