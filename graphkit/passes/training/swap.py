"""Mark nodes whose results may be moved to host memory between the forward and the backward pass.

The executor carries this out: see `graphkit.executor.memory.swapping`.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.ir.graph import Graph, Node, Value, topological
from graphkit.passes.core.sweep import rewrite
from graphkit.passes.training.marks import is_marked

MARK = "swap_memory"


def is_swapped(node: Node) -> bool:
    """Whether a node is in a `gk.attr_scope(swap_memory=True)`."""
    return is_marked(node, MARK)


def mark_forward(graph: Graph) -> Graph:
    """The graph with a mark on all nodes that its outputs depend on: of a training step, its forward part.

    Where a node says itself what it wants, `swap_memory=False` too, it stays as it is. Linear.
    """
    forward = set(topological(graph.outputs))

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        if node not in forward or not node.inputs or MARK in node.meta:
            return None
        names, types = [v.name for v in node.outputs], [v.type for v in node.outputs]
        meta = {**node.meta, MARK: "True"}
        return Node(node.op, operands, node.name, meta, output_names=names, types=types).outputs

    return rewrite(graph, rule)
