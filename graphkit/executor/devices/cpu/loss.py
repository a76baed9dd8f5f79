"""Classification losses and their gradient."""

from __future__ import annotations

from collections.abc import Callable

from graphkit.executor.devices.cpu._base import kernel, native
from graphkit.executor.devices.kernel import Kernel, KernelContext
from graphkit.executor.devices.operands import operand, shape
from graphkit.ir.graph import Node, Value
from graphkit.ops._base import DOMAIN, operator
from graphkit.ops.nn.loss import ClassLoss


def _class_loss(node: Node, context: KernelContext, softmax: bool) -> Kernel | None:
    op = operator(node, ClassLoss)
    scores, labels = _present(node, 0), _present(node, 1)
    return native.ClassLoss(
        shape(scores),
        str(scores.dtype),
        str(labels.dtype),
        operand(node, 2) is not None,
        op.reduction,
        op.ignore_index,
        softmax,
        context.threads,
    )


def _present(node: Node, position: int) -> Value:
    value = operand(node, position)
    assert value is not None
    return value


@kernel("NegativeLogLikelihoodLoss")
def _negative_log_likelihood(node: Node, context: KernelContext) -> Kernel | None:
    return _class_loss(node, context, softmax=False)


@kernel("SoftmaxCrossEntropyLoss")
def _softmax_cross_entropy(node: Node, context: KernelContext) -> Kernel | None:
    return _class_loss(node, context, softmax=True)


@kernel("SoftmaxCrossEntropyGrad", DOMAIN)
def _softmax_cross_entropy_grad(node: Node, context: KernelContext) -> Kernel | None:
    return _gradient(native.SoftmaxCrossEntropyGrad, node, context, scores=1, labels=2)


@kernel("SoftmaxCrossEntropyWithGrad", DOMAIN)
def _softmax_cross_entropy_with_grad(node: Node, context: KernelContext) -> Kernel | None:
    scores, dloss, gradient = _present(node, 0), _present(node, 2), node.outputs[1]
    if {scores.dtype, gradient.dtype} != {dloss.dtype}:
        return None
    return _gradient(native.SoftmaxCrossEntropyWithGrad, node, context, scores=0, labels=1)


def _gradient(
    kind: Callable[..., Kernel], node: Node, context: KernelContext, scores: int, labels: int
) -> Kernel | None:
    op = operator(node, ClassLoss)
    log_prob, target = _present(node, scores), _present(node, labels)
    return kind(
        shape(log_prob),
        str(log_prob.dtype),
        str(target.dtype),
        operand(node, 3) is not None,
        op.reduction,
        op.ignore_index,
        context.threads,
    )
