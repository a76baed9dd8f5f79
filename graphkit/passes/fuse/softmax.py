"""Recognise Softmax in its formula, its logarithm, and the gradients of both."""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.ir.graph import Graph, Node, Value
from graphkit.named_tuples import NamedTuple
from graphkit.ops import operator
from graphkit.ops.internal.softmax_grad import SoftmaxGrad
from graphkit.ops.nn.softmax import LogSoftmax, Softmax
from graphkit.passes.core.declare import Property, graph_pass
from graphkit.passes.core.match import axes_of, same_type
from graphkit.passes.core.pattern import Op, Some, match
from graphkit.passes.core.sweep import Readers, fuse, fused_node

_LOGARITHM = Op("Log", Op("Softmax", Some("x"), name="softmax"))
# exp(x - max x) / sum(exp(x - max x)); the axes of a reduction are its second operand.
_QUOTIENT = Op(
    "Div",
    Op("Exp", Op("Sub", Some("x"), Op("ReduceMax", Some("x"), name="max", rest=True), name="difference"), name="exp"),
    Op("ReduceSum", Some("exp"), name="sum", rest=True),
)
# dy * y - y * sum(dy * y), and dy - exp(y) * sum(dy).
_WEIGHTED = Op("Mul", Some("dy"), Some("y"), name="weighted")
_GRADIENT = Op(
    "Sub", _WEIGHTED, Op("Mul", Some("y"), Op("ReduceSum", Some("weighted"), name="sum", rest=True), name="product")
)
_OF_LOGARITHM = Op(
    "Sub", Some("dy"), Op("Mul", Op("Exp", Some("y")), Op("ReduceSum", Some("dy"), name="sum", rest=True))
)


class SoftmaxGradient(NamedTuple):
    """The gradient of Softmax along one axis, y * (dy - sum(dy * y)). The last of `nodes` computes the result."""

    dy: Value
    y: Value
    axis: int
    nodes: tuple[Node, ...]


@graph_pass(
    requires=[Property.CONSTANTS_FOLDED, Property.POINTWISE_APART],
    ensures=[Property.SOFTMAXES_FUSED],
    at=["ReduceMax", "Softmax"],
    beside=[["Div", "Log"], ["Exp", "Log"]],
)
def fuse_softmax(graph: Graph) -> Graph:
    """Replace exp(x - max x) / sum(exp(x - max x)) along one axis by Softmax, and Log of a Softmax by LogSoftmax.

    The formula without the maximum is kept, because it overflows for large x and Softmax does not. Takes linear time.
    """

    def rule(node: Node, readers: Readers) -> Sequence[Value] | None:
        for found in match(_LOGARITHM, node, readers):
            softmax = found.node("softmax")
            axis = operator(softmax, Softmax).axis
            return (fused_node(LogSoftmax(axis=axis), softmax.inputs, (softmax, node)),)
        for found in match(_QUOTIENT, node, readers):
            last = _axis(node, found.values["x"], found.node("sum"), found.node("max"))
            if last is not None:
                return (fused_node(Softmax(axis=last), (found.values["x"],), (found.node("difference"), node)),)
        return None

    return fuse(graph, rule, needs=("ReduceMax", "Softmax"), at=("Log", "Div"))


@graph_pass(
    requires=[Property.CONSTANTS_FOLDED, Property.POINTWISE_APART, Property.SOFTMAXES_FUSED],
    ensures=[Property.SOFTMAX_GRADIENTS_FUSED],
    at=["ReduceSum"],
)
def fuse_softmax_grad(graph: Graph) -> Graph:
    """Replace the gradients of Softmax and LogSoftmax along one axis by SoftmaxGrad. Linear."""

    def rule(node: Node, readers: Readers) -> Sequence[Value] | None:
        if (gradient := softmax_gradient(node, readers)) is not None:
            parts = (gradient.nodes[1], node)
            return (fused_node(SoftmaxGrad(axis=gradient.axis), (gradient.dy, gradient.y), parts),)
        for found in match(_OF_LOGARITHM, node, readers):
            dy, y = found.values["dy"], found.values["y"]
            axis = _axis(node, y, found.node("sum")) if same_type(dy, y) else None
            if axis is not None:
                return (fused_node(SoftmaxGrad(axis=axis, log=True), (dy, y), (found.node("sum"), node)),)
        return None

    return fuse(graph, rule, needs=("ReduceSum",), at=("Sub",))


def softmax_gradient(node: Node, readers: Readers) -> SoftmaxGradient | None:
    """Return the gradient of Softmax whose last node is `node`; None for any other node."""
    for found in match(_GRADIENT, node, readers):
        dy, y = found.values["dy"], found.values["y"]
        axis = _axis(node, y, found.node("sum")) if same_type(dy, y) else None
        if axis is not None:
            return SoftmaxGradient(dy, y, axis, (*map(found.node, ("weighted", "sum", "product")), node))
    return None


def _axis(node: Node, x: Value, *reductions: Node) -> int | None:
    """Return the axis of all reductions, as a negative number; None if they differ, or reduce other shapes than x's."""
    axes = axes_of(reductions[0])
    if axes is None or len(axes) != 1 or any(axes_of(r) != axes for r in reductions) or not same_type(x, node.output):
        return None
    kept = all(reduction.op.attributes()["keepdims"] for reduction in reductions)
    return axes[0] - len(x.tensor.known_shape) if kept else None
