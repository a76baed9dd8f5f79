"""Compute a loss and its gradient in one pass over the scores."""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ops import operator
from graphkit.ops._base import DOMAIN
from graphkit.ops.nn.loss import SoftmaxCrossEntropyGrad, SoftmaxCrossEntropyLoss, SoftmaxCrossEntropyWithGrad
from graphkit.passes.core.declare import Property, graph_pass
from graphkit.passes.core.match import is_op, producer
from graphkit.passes.core.sweep import is_constant, rewrite, use_counts


@graph_pass(requires=[Property.CONSTANTS_FOLDED], at=["SoftmaxCrossEntropyGrad"])
def fuse_loss_grad(graph: Graph) -> Graph:
    """Fuse SoftmaxCrossEntropyLoss and its gradient into SoftmaxCrossEntropyWithGrad. Takes linear time.

    The scores must be a matrix. Only the gradient may read the log-probabilities, and the gradient of the loss must be
    constant.
    """
    counts = use_counts(graph)
    gradients: dict[Node, Node] = {}  # by the node of the loss
    for node in graph.nodes:
        if is_op(node, "SoftmaxCrossEntropyGrad", domain=DOMAIN):
            loss = producer(node.inputs[1], "SoftmaxCrossEntropyLoss")
            if loss is not None and counts[loss.outputs[1]] == 1 and _is_gradient_of(loss, node):
                gradients[loss] = node
    made: dict[Node, Value] = {}  # dscores, by the node of the gradient

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        if node in made:
            return (made[node],)
        gradient = gradients.get(node)
        if gradient is None:
            return None
        op = operator(node, SoftmaxCrossEntropyLoss)
        fused = SoftmaxCrossEntropyWithGrad(ignore_index=op.ignore_index, reduction=op.reduction)
        scores, labels, *weights = operands
        names = [node.outputs[0].name, gradient.output.name]
        both = Node(fused, [scores, labels, gradient.inputs[0], *weights], node.name, node.meta, output_names=names)
        made[gradient] = both.outputs[1]
        # The second result replaces the log-probabilities by a gradient. Their only reader is replaced, too.
        return both.outputs

    return rewrite(graph, rule) if gradients else graph


def _is_gradient_of(loss: Node, gradient: Node) -> bool:
    """Return whether the gradient is that of the loss, its incoming gradient is constant, and the scores a matrix."""
    a, b = operator(loss, SoftmaxCrossEntropyLoss), operator(gradient, SoftmaxCrossEntropyGrad)
    dloss = gradient.inputs[0]
    return (
        loss.inputs[0] is not None
        and loss.inputs[0].rank == 2
        and a.reduction == b.reduction != "none"
        and a.ignore_index == b.ignore_index
        and (*loss.inputs[1:], None)[:2] == (*gradient.inputs[2:], None)[:2]
        and dloss is not None
        and dloss.node is not None
        and is_constant(dloss.node)
    )
