"""Mark nodes whose results may be moved to host memory between the forward and the backward pass.

`graphkit.executor.memory.swapping` moves them.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.ir.graph import Graph, Node, Value, topological
from graphkit.passes.core.sweep import rewrite
from graphkit.passes.training.marks import is_marked

MARK = "swap_memory"


def is_swapped(node: Node) -> bool:
    """Return whether a node is in a `gk.attr_scope(swap_memory=True)`."""
    return is_marked(node, MARK)


def mark_forward(graph: Graph) -> Graph:
    """Mark all nodes that the outputs depend on; in a training step, this is the forward part. Takes linear time.

    Nodes with the attribute `swap_memory`, also `swap_memory=False`, are not changed.
    """
    forward = set(topological(graph.outputs))

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        if node not in forward or not node.inputs or MARK in node.meta:
            return None
        names, types = [v.name for v in node.outputs], [v.type for v in node.outputs]
        meta = {**node.meta, MARK: "True"}
        return Node(node.op, operands, node.name, meta, output_names=names, types=types).outputs

    return rewrite(graph, rule)
