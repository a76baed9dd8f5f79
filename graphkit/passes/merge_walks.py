"""A recurrent layer whose gradient is in the graph takes its results from the walk that the gradient reads.

Differentiation makes such pairs: the layer itself, and the walk that saves what the gradient needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ops.recurrent_walk import Walk
from graphkit.passes._base import rewrite


def merge_walks(graph: Graph) -> Graph:
    """Replace layers by walks over the same operands. Linear in nodes."""
    walks: dict[Any, Node] = {}
    for node in graph.nodes:
        if isinstance(node.op, Walk):
            walks.setdefault((node.op.forward, _operands(node)), node)
    if not walks:
        return graph
    made: dict[Node, Node] = {}

    def rule(node: Node, operands: list[Value | None]) -> Sequence[Value] | None:
        walk = node if isinstance(node.op, Walk) else walks.get((node.op, _operands(node)))
        if walk is None:
            return None
        walk = walks[walk.op.forward, _operands(walk)]  # type: ignore[attr-defined]
        if walk not in made:
            made[walk] = walk.rebuilt(operands)
        return made[walk].outputs[: len(node.outputs)]

    return rewrite(graph, rule)


def _operands(node: Node) -> tuple[Value | None, ...]:
    """Without those that are absent at the end."""
    given = list(node.inputs)
    while given and given[-1] is None:
        given.pop()
    return tuple(given)
