"""Straight-through estimator: the gradient of a rounding is that of the identity."""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import INTEGERS, TensorType
from graphkit.ops import F
from graphkit.ops.tensor.cast import StraightThrough
from graphkit.passes.core.sweep import map_subgraphs, rewrite

ROUNDING = frozenset({"Ceil", "Floor", "Round", "Sign"})


def pass_through_rounding(graph: Graph) -> Graph:
    """Mark every rounding, also in subgraphs, so that its gradient is that of the identity. Values do not change.

    A rounding is Round, Floor, Ceil, Sign, or a Cast of a float tensor to integers that is cast back. Takes linear
    time.
    """

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        if node.op.subgraphs():
            return map_subgraphs(node, operands, pass_through_rounding).outputs
        source = _rounded(node, operands)
        if source is None:
            return None
        rounded = Node(node.op, operands, node.name, node.meta).output
        return Node(StraightThrough(), (source, rounded), output_names=[node.output.name]).outputs

    return rewrite(graph, rule)


def _rounded(node: Node, operands: Sequence[Value | None]) -> Value | None:
    """Return the value that the node rounds, in the type of the result; None for another node."""
    if node.op.domain or node.op.name not in ROUNDING | {"Cast"}:
        return None
    x, result = operands[0], node.output.type
    assert x is not None
    assert isinstance(result, TensorType)
    if not result.dtype.is_float:
        return None
    if node.op.name == "Cast":
        inner = x.node
        if x.dtype not in INTEGERS or inner is None or inner.op.domain or inner.op.name != "Cast":
            return None
        (x,) = inner.operands
        if not x.dtype.is_float:
            return None
    return x if x.dtype is result.dtype else F.cast(x, to=result.dtype)
