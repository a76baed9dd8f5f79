"""Recognise activations in their formulas: Swish (SiLU), HardSwish, HardSigmoid, Mish, and bounds as Relu and Clip."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ops import registry
from graphkit.ops.nn.activation import Clip, HardSigmoid, HardSwish, Relu
from graphkit.passes.core.declare import Property, graph_pass
from graphkit.passes.core.match import first, is_close, is_op, operand_orders, producer, same_type, scalar
from graphkit.passes.core.pattern import Match, Number, Op, Pattern, Scaled, Shifted, Some, match
from graphkit.passes.core.sweep import Readers, fuse, fused_node

_X = Some("x")
_SIXTH = Number(1.0 / 6.0)


def _clipped(shift: Number, high: Number) -> Pattern:
    """Return the pattern of min(max(x + shift, 0), high)."""
    return Op("Clip", Shifted(_X, shift), Number(0.0), high, name="clip")


def _hard_sigmoid(found: Match, node: Node) -> Value | None:
    shift, high, factor = (found.numbers[name] for name in ("shift", "high", "factor"))
    if high <= 0 or not is_close(factor, 1.0 / high):
        return None
    op = HardSigmoid(alpha=1.0 / high, beta=shift / high)
    return fused_node(op, (found.values["x"],), (found.node("clip"), node))


def _of_hard_sigmoid(found: Match, node: Node) -> Value | None:
    hard: Any = found.node("hard")
    if not is_close(hard.op.alpha, 1.0 / 6.0) or not is_close(hard.op.beta, 0.5):
        return None
    return fused_node(HardSwish(), (found.values["x"],), (hard, node))


def _swish(found: Match, node: Node) -> Value:
    op = registry.get("", "Swish")(alpha=found.numbers.get("alpha", 1.0))
    return fused_node(op, (found.values["x"],), (found.node("sigmoid"), node))


def _made(name: str, first_part: str) -> Callable[[Match, Node], Value]:
    """Return a function that makes the operator of this name, without attributes."""
    return lambda found, node: fused_node(
        registry.get("", name)(), (found.values["x"],), (found.node(first_part), node)
    )


# Formulas, and functions that return the operator for a match, or None. x must have the type of the result.
_FORMULAS: tuple[tuple[Pattern, Callable[[Match, Node], Value | None]], ...] = (
    (Scaled(_clipped(Number("shift"), Number("high")), Number("factor")), _hard_sigmoid),
    (Scaled(Op("Mul", _X, _clipped(Number(3.0), Number(6.0)), name="product"), _SIXTH), _made("HardSwish", "product")),
    (Op("Mul", _X, Op("HardSigmoid", _X, name="hard")), _of_hard_sigmoid),
    (Op("Mul", Scaled(_X, _SIXTH), _clipped(Number(3.0), Number(6.0))), _made("HardSwish", "clip")),
    (Op("Mul", _X, Op("Sigmoid", _X, name="sigmoid")), _swish),
    (Op("Mul", _X, Op("Sigmoid", Scaled(_X, Number("alpha")), name="sigmoid")), _swish),
    (Op("Mul", _X, Op("Tanh", Op("Softplus", _X, name="softplus"))), _made("Mish", "softplus")),
)


# Each formula contains one of these operators.
_PARTS = ("Clip", "HardSigmoid", "Sigmoid", "Softplus")


@graph_pass(
    requires=[Property.CONSTANTS_FOLDED, Property.POINTWISE_APART],
    ensures=[Property.ACTIVATIONS_FUSED],
    at=[*_PARTS, "Max", "Min"],
    beside=[["Mul", "Div", "Max", "Min", "Clip"]],
)
def fuse_activation(graph: Graph, bounds: bool = True) -> Graph:
    """Replace the formulas of activations by operators. Takes linear time.

    No other node may read an intermediate value. bounds: Whether Max, Min and Clip may be replaced, too. Set it to
    False before differentiation: at a bound, the operators have different gradients.
    """

    def rule(node: Node, readers: Readers) -> Sequence[Value] | None:
        if is_op(node, "Mul", "Div") and (made := _formula(node, readers)):
            return made
        return (_bound(node, readers) or _relu(node)) if bounds else None

    bounded = ("Max", "Min", "Clip") if bounds else ()
    return fuse(graph, rule, needs=(*_PARTS, *bounded), at=("Mul", "Div", *bounded))


def _formula(node: Node, readers: Readers) -> Sequence[Value] | None:
    for pattern, make in _FORMULAS:
        for found in match(pattern, node, readers):
            made = make(found, node) if same_type(found.values["x"], node.output) else None
            if made is not None:
                return (made,)
    return None


def _bound(node: Node, readers: Readers) -> Sequence[Value] | None:
    """Replace max(x, c), min(x, c), and a Min after a Clip, by Clip."""
    if not is_op(node, "Max", "Min") or len(node.inputs) != 2:
        return None
    for x, other in operand_orders(node):
        if scalar(other) is not None and same_type(x, node.output) and other.rank == 0:
            bounds = (x, other) if is_op(node, "Max") else (x, None, other)
            below = producer(x, "Clip")
            if below is not None and readers.has_one_use(x) and is_op(node, "Min") and len(below.inputs) == 2:
                return (fused_node(Clip(), (first(below), below.inputs[1], other), (below, node)),)
            return (fused_node(Clip(), bounds, (node,)),)
    return None


def _relu(node: Node) -> Sequence[Value] | None:
    """Replace a Clip at 0 without upper bound by Relu, and a Clip of a Relu by one Clip."""
    if not is_op(node, "Clip") or len(node.inputs) < 2 or scalar(node.inputs[1]) != 0.0:
        return None
    if len(node.inputs) == 2 or node.inputs[2] is None:
        return (fused_node(Relu(), (first(node),), (node,)),)
    inner = producer(first(node), "Relu")
    return None if inner is None else (fused_node(Clip(), (first(inner), *node.inputs[1:]), (inner, node)),)
