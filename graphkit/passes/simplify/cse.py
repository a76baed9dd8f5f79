"""Common subexpressions: two nodes with equal operators and the same operands become one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphkit.ir.graph import Graph, Node, Value
from graphkit.passes.core.declare import Property, graph_pass
from graphkit.passes.core.draws import is_undetermined
from graphkit.passes.core.sweep import map_subgraphs, rewrite


def _equal_to_another(graph: Graph) -> Node | None:
    seen: set[tuple[Any, ...]] = set()
    for node in graph.nodes:
        key = (node.op, node.inputs)
        if key in seen and not is_undetermined(node):
            return node
        seen.add(key)
    return None


@graph_pass(ensures=[Property.EQUALS_MERGED], check=_equal_to_another)
def cse(graph: Graph) -> Graph:
    """Merge equal nodes. Constants are equal by their bytes (large ones by identity). Linear.

    Random nodes are equal when they draw from one state with one stream; those without a state stay apart.
    """
    seen: dict[tuple[Any, ...], Node] = {}

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value]:
        rebuilt = map_subgraphs(node, operands, cse)
        if is_undetermined(rebuilt):
            return rebuilt.outputs
        return seen.setdefault((rebuilt.op, rebuilt.inputs), rebuilt).outputs

    return rewrite(graph, rule)
