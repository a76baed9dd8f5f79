"""Remove Expand nodes before pointwise operators, which broadcast their operands themselves."""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.errors import TypeMismatch
from graphkit.ir.graph import Graph, Node, Value
from graphkit.passes.core.declare import Property, graph_pass
from graphkit.passes.core.match import first, producer
from graphkit.passes.core.sweep import Readers, fuse


@graph_pass(ensures=[Property.BROADCASTS_LAZY], at=["Expand"])
def eliminate_expand(graph: Graph) -> Graph:
    """Replace expanded operands of pointwise nodes by the Expand's operand if the result keeps its shape.

    Takes linear time.
    """

    def rule(node: Node, readers: Readers) -> Sequence[Value] | None:
        if not getattr(node.op, "pointwise", False):
            return None
        operands = list(node.inputs)
        for position, value in enumerate(operands):
            expand = producer(value, "Expand")
            if expand is None or first(expand).rank is None:
                continue
            tried = [*operands[:position], first(expand), *operands[position + 1 :]]
            try:
                types = node.op.infer_types([None if v is None else v.type for v in tried])
            except TypeMismatch:  # it broadcasts some of its operands only
                continue
            if node.output.shape is not None and list(types) == [v.type for v in node.outputs]:
                operands = tried
        return None if operands == list(node.inputs) else node.rebuilt(operands).outputs

    return fuse(graph, rule, at=(), after=("Expand",), counts_uses=False)
