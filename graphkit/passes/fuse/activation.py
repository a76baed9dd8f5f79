"""Activations from their formulas: Swish (SiLU), HardSwish, HardSigmoid, Mish, and bounds as Relu and Clip."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ops.nn.activation import Clip, HardSigmoid, HardSwish, Mish, Relu, Swish
from graphkit.passes.core.declare import Property, graph_pass
from graphkit.passes.core.match import close, first, is_op, orders, producer, same_type, scalar, scaled, shifted
from graphkit.passes.core.sweep import Readers, fuse, fused_node


@graph_pass(requires=[Property.CONSTANTS_FOLDED, Property.POINTWISE_APART], ensures=[Property.ACTIVATIONS_FUSED])
def fuse_activation(graph: Graph) -> Graph:
    """Replace the nodes of an activation by the operator, when nothing else reads what is between. Linear."""

    def rule(node: Node, readers: Readers) -> Sequence[Value] | None:
        return (
            _hard_sigmoid(node, readers)
            or _hard_swish(node, readers)
            or _product(node, readers)
            or _bound(node, readers)
            or _relu(node)
        )

    return fuse(graph, rule)


def _limited(value: Value, readers: Readers) -> tuple[Value, float, float, Node] | None:
    """(x, b, c, node) when the value is min(max(x + b, 0), c)."""
    clip = producer(value, "Clip")
    if clip is None or not readers.sole(value) or len(clip.inputs) != 3 or scalar(clip.inputs[1]) != 0.0:
        return None
    high = scalar(clip.inputs[2])
    total = first(clip).node
    found = None if total is None or not readers.sole(first(clip)) else shifted(total)
    return None if found is None or not high or high <= 0 else (found[0], found[1], high, clip)


def _hard_sigmoid(node: Node, readers: Readers) -> Sequence[Value] | None:
    """clip(x + b, 0, c) / c."""
    found = scaled(node)
    limited = None if found is None else _limited(found[0], readers)
    if found is None or limited is None:
        return None
    x, shift, high, clip = limited
    if not close(found[1], 1.0 / high) or not same_type(x, node.output):
        return None
    return (fused_node(HardSigmoid(alpha=1.0 / high, beta=shift / high), (x,), (clip, node)),)


def _hard_swish(node: Node, readers: Readers) -> Sequence[Value] | None:
    """x clip(x + 3, 0, 6) / 6, the quotient last or before."""
    found = scaled(node)
    if found is not None and close(found[1], 1.0 / 6.0):
        product = producer(found[0], "Mul")
        if product is None or not readers.sole(found[0]):
            return None
        for factor, value in orders(product):
            limited = _limited(value, readers)
            if limited is not None and limited[0] is factor and close(limited[1], 3.0) and close(limited[2], 6.0):
                return (fused_node(HardSwish(), (factor,), (product, node)),)
        return None
    if not is_op(node, "Mul"):
        return None
    for x, value in orders(node):
        hard = producer(value, "HardSigmoid")
        op: Any = None if hard is None else hard.op
        if hard is None or first(hard) is not x or not readers.sole(value):
            continue
        if close(op.alpha, 1.0 / 6.0) and close(op.beta, 0.5):
            return (fused_node(HardSwish(), (x,), (hard, node)),)
    for part, value in orders(node):
        # (x / 6) clip(x + 3, 0, 6)
        limited = _limited(value, readers)
        quotient = None if part.node is None or not readers.sole(part) else scaled(part.node)
        if limited is None or quotient is None or quotient[0] is not limited[0]:
            continue
        if close(quotient[1], 1.0 / 6.0) and close(limited[1], 3.0) and close(limited[2], 6.0):
            return (fused_node(HardSwish(), (limited[0],), (limited[3], node)),)
    return None


def _product(node: Node, readers: Readers) -> Sequence[Value] | None:
    """x sigmoid(alpha x), x tanh(softplus(x))."""
    if not is_op(node, "Mul"):
        return None
    for x, value in orders(node):
        sigmoid, tanh = producer(value, "Sigmoid"), producer(value, "Tanh")
        if not readers.sole(value) or not same_type(x, node.output):
            continue
        if sigmoid is not None:
            inner = first(sigmoid)
            factor = None if inner.node is None or not readers.sole(inner) else scaled(inner.node)
            if inner is x:
                return (fused_node(Swish(alpha=1.0), (x,), (sigmoid, node)),)
            if factor is not None and factor[0] is x:
                return (fused_node(Swish(alpha=factor[1]), (x,), (sigmoid, node)),)
        softplus = None if tanh is None else producer(first(tanh), "Softplus")
        if softplus is not None and first(softplus) is x and readers.sole(softplus.output):
            return (fused_node(Mish(), (x,), (softplus, node)),)
    return None


def _bound(node: Node, readers: Readers) -> Sequence[Value] | None:
    """max(x, c), min(x, c) and their chains, as Clip."""
    if not is_op(node, "Max", "Min") or len(node.inputs) != 2:
        return None
    for x, other in orders(node):
        if scalar(other) is not None and same_type(x, node.output) and other.rank == 0:
            bounds = (x, other) if is_op(node, "Max") else (x, None, other)
            below = producer(x, "Clip")
            if below is not None and readers.sole(x) and is_op(node, "Min") and len(below.inputs) == 2:
                return (fused_node(Clip(), (first(below), below.inputs[1], other), (below, node)),)
            return (fused_node(Clip(), bounds, (node,)),)
    return None


def _relu(node: Node) -> Sequence[Value] | None:
    """Clip at 0 without an upper bound; Clip of a Relu between 0 and a bound."""
    if not is_op(node, "Clip") or len(node.inputs) < 2 or scalar(node.inputs[1]) != 0.0:
        return None
    if len(node.inputs) == 2 or node.inputs[2] is None:
        return (fused_node(Relu(), (first(node),), (node,)),)
    inner = producer(first(node), "Relu")
    return None if inner is None else (fused_node(node.op, (first(inner), *node.inputs[1:]), (inner, node)),)  # type: ignore[arg-type]
