"""Softmax from its nodes, and its logarithm."""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ops import operator
from graphkit.ops.math.reduce import Reduction
from graphkit.ops.nn.softmax import LogSoftmax, Softmax
from graphkit.passes.core.match import axes_of, first, is_op, producer, same_type
from graphkit.passes.core.sweep import Readers, fuse, fused_node


def fuse_softmax(graph: Graph) -> Graph:
    """Replace exp(x - max x) / sum(exp(x - max x)) along one axis by Softmax, and Log of a Softmax by LogSoftmax.

    A form without the maximum stays: it overflows where Softmax does not. Linear.
    """

    def rule(node: Node, readers: Readers) -> Sequence[Value] | None:
        if is_op(node, "Log"):
            return _logarithm(node, readers)
        return _quotient(node, readers) if is_op(node, "Div") else None

    return fuse(graph, rule, needs=("ReduceMax", "Softmax"))


def _logarithm(node: Node, readers: Readers) -> Sequence[Value] | None:
    inner = producer(node.inputs[0], "Softmax")
    if inner is None or not readers.sole(inner.output):
        return None
    return (fused_node(LogSoftmax(axis=operator(inner, Softmax).axis), inner.inputs, (inner, node)),)


def _quotient(node: Node, readers: Readers) -> Sequence[Value] | None:
    above, below = node.operands
    raised, total = producer(above, "Exp"), producer(below, "ReduceSum")
    if raised is None or total is None or first(total) is not above or not readers.sole(below):
        return None
    difference = producer(first(raised), "Sub")
    if difference is None or readers.count(above) != 2 or not readers.sole(first(raised)):
        return None
    x, highest = difference.operands
    maximum = producer(highest, "ReduceMax")
    if maximum is None or first(maximum) is not x or not readers.sole(highest) or not same_type(x, node.output):
        return None
    axes = axes_of(total)
    if axes is None or len(axes) != 1 or axes_of(maximum) != axes:
        return None
    if not operator(total, Reduction).keepdims or not operator(maximum, Reduction).keepdims:
        return None
    return (fused_node(Softmax(axis=axes[0] - len(x.tensor.known_shape)), (x,), (difference, node)),)
