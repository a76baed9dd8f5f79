"""Softmax from its nodes, and its logarithm."""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ops import operator
from graphkit.ops.nn.softmax import LogSoftmax, Softmax
from graphkit.passes.core.declare import Property, graph_pass
from graphkit.passes.core.match import axes_of, same_type
from graphkit.passes.core.pattern import Match, Op, Some, match
from graphkit.passes.core.sweep import Readers, fuse, fused_node

_LOGARITHM = Op("Log", Op("Softmax", Some("x"), name="softmax"))
# exp(x - max x) / sum(exp(x - max x)); the axes of a reduction are its second operand.
_QUOTIENT = Op(
    "Div",
    Op("Exp", Op("Sub", Some("x"), Op("ReduceMax", Some("x"), name="max", rest=True), name="difference"), name="exp"),
    Op("ReduceSum", Some("exp"), name="sum", rest=True),
)


@graph_pass(requires=[Property.CONSTANTS_FOLDED, Property.POINTWISE_APART], ensures=[Property.SOFTMAXES_FUSED])
def fuse_softmax(graph: Graph) -> Graph:
    """Replace exp(x - max x) / sum(exp(x - max x)) along one axis by Softmax, and Log of a Softmax by LogSoftmax.

    A form without the maximum stays: it overflows where Softmax does not. Linear.
    """

    def rule(node: Node, readers: Readers) -> Sequence[Value] | None:
        for found in match(_LOGARITHM, node, readers):
            softmax = found.node("softmax")
            axis = operator(softmax, Softmax).axis
            return (fused_node(LogSoftmax(axis=axis), softmax.inputs, (softmax, node)),)
        for found in match(_QUOTIENT, node, readers):
            last = _axis(found, node)
            if last is not None:
                return (fused_node(Softmax(axis=last), (found.values["x"],), (found.node("difference"), node)),)
        return None

    return fuse(graph, rule, needs=("ReduceMax", "Softmax"), at=("Log", "Div"))


def _axis(found: Match, node: Node) -> int | None:
    """The one axis, counted from the last, of both reductions."""
    total, maximum, x = found.node("sum"), found.node("max"), found.values["x"]
    axes = axes_of(total)
    if axes is None or len(axes) != 1 or axes_of(maximum) != axes or not same_type(x, node.output):
        return None
    kept = all(reduction.op.attributes()["keepdims"] for reduction in (total, maximum))
    return axes[0] - len(x.tensor.known_shape) if kept else None
