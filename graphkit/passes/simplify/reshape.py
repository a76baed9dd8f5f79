"""Merge chains of reshapes into one Reshape with a constant target. Transposes that only move axes of size 1 count,
too.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.ir.dims import DimExpr
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ops.tensor.shape import Reshape
from graphkit.passes.core.declare import Property, graph_pass
from graphkit.passes.core.match import SharedConstants, first, is_op, producer, same_type
from graphkit.passes.core.relevance import RESHAPES, keeps_order
from graphkit.passes.core.sweep import Readers, fuse

_RESHAPE = Reshape()


@graph_pass(requires=[Property.HEADS_SHARED], ensures=[Property.RESHAPES_MERGED], at=["Transpose", *RESHAPES])
def eliminate_reshape(graph: Graph) -> Graph:
    """Replace chains of Reshape, Flatten, Squeeze, Unsqueeze, and Transpose of axes of size 1, by one Reshape or none.

    A target that is computed from shapes becomes a constant if at most one dimension of the result is unknown. Takes
    linear time.
    """
    constants = SharedConstants()

    def rule(node: Node, readers: Readers) -> Sequence[Value] | None:
        if not is_op(node, *RESHAPES) and not keeps_order(node):
            return None
        source = first(node)
        # The preceding part of a chain is already a single reshape.
        before = producer(source, *RESHAPES)
        if before is not None:
            source = first(before)
        if same_type(source, node.output):
            return (source,)
        target = _target(node.output)
        if target is None:
            return None
        if before is None and is_op(node, *RESHAPES):
            given = node.inputs[1].tensor.constants if is_op(node, "Reshape") and node.inputs[1] is not None else ()
            if given is not None:
                return None
        operands = source, constants.ints(target)
        made = Node(_RESHAPE, operands, node.name, node.meta, output_names=[node.output.name])
        # With -1 in the target, inference may know less about that dimension. Then keep the node.
        return made.outputs if same_type(made.output, node.output) else None

    return fuse(graph, rule, at=("Transpose", *RESHAPES), counts_uses=False)


def _target(value: Value) -> tuple[int, ...] | None:
    """Return the target shape for a Reshape to the shape of `value`; None if a constant cannot express it."""
    shape = value.tensor.shape
    if shape is None:
        return None
    target = tuple([-1 if isinstance(d, DimExpr) else d for d in shape])
    # 0 in a target copies a dimension; -1 needs the product of the others.
    return target if target.count(-1) <= 1 and 0 not in target else None
