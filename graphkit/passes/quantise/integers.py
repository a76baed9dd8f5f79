"""QDQ form to integers: operators between DequantizeLinear and QuantizeLinear become integer operators."""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ops import F
from graphkit.passes.core.declare import Property, graph_pass
from graphkit.passes.core.match import is_op
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
)
def integers(graph: Graph) -> Graph:
    """Make integer operators of what lies between DequantizeLinear and QuantizeLinear of 8 bits and one scale.

    Moves of elements come before the dequantisation, and behind the quantisation. Convolutions and products become
    QLinearConv, QLinearMatMul and QGemm, sums and products of elements QLinearAdd and QLinearMul, functions of one
    tensor's elements tables. Products whose result is not quantised become MatMulIntegerToFloat. What has no such form
    stays between its dequantisations and quantisations; so does all of a graph that writes states, as training does.
    Results are those of the nodes replaced up to one step of the
    quantisation; of float32 results, up to rounding. Linear.
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
    inner = node if not moves else F.quantize_linear(source, y.scale, y.zero).node
    found = _integer_form(inner, y, readers)
    if found is None:
        # Integers are fewer bytes to move.
        return None if not moves else (moved(inner.output, moves),)
    return (moved(found, moves),)


def _integer_form(end: Node, y: Quantised, readers: Readers) -> Value | None:
    """What the quantisation `end` makes of its operand, by an operator on integers."""
    x = end.inputs[0]
    assert x is not None
    node = x.node
    if node is None:
        return None
    if readers.sole(x):
        for form in (quantised_product, quantised_pair, quantised_mean):
            found = form(node, y, end)
            if found is not None:
                return found
        if is_op(node, "Concat"):
            return _joined(node, y, readers)
        if is_op(node, "Relu"):
            bounded = _bounded(node, y, end, readers)
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
        end = F.quantize_linear(value, y.scale, y.zero).node
        found = table(end, y, readers)
        parts.append(end.output if found is None else found)
    return Node(node.op, parts, node.name, node.meta).output


def _bounded(node: Node, y: Quantised, end: Node, readers: Readers) -> Value | None:
    """A Relu behind a product: the larger one of the quantised product and the zero point."""
    x = node.inputs[0]
    assert x is not None
    if x.node is None or not readers.sole(x) or y.known_scale is None:
        return None
    inner = F.quantize_linear(x, y.scale, y.zero).node
    found = quantised_product(x.node, y, inner)
    if found is None:
        found = quantised_pair(x.node, y, inner)
    return None if found is None else F.max(found, y.zero)


def _product(node: Node, readers: Readers) -> Sequence[Value] | None:
    found = float_product(node)
    return None if found is None else (found,)
