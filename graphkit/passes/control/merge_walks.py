"""A recurrent layer whose gradient is in the graph takes its results from the walk that the gradient reads.

Differentiation makes such pairs: the layer itself, and the walk that saves what the gradient needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ops.rnn.recurrence import Recurrence
from graphkit.ops.rnn.walk import Walk
from graphkit.passes.core.declare import Property, graph_pass
from graphkit.passes.core.sweep import map_bodies, rewrite


@graph_pass(requires=[Property.COMPOSITES_EXPANDED])
def merge_walks(graph: Graph) -> Graph:
    """Replace layers by walks over the same operands, in subgraphs too. Linear in nodes."""
    walks: dict[Any, Node] = {}
    for node in graph.nodes:
        if isinstance(node.op, Walk):
            walks.setdefault((node.op.forward, _operands(node)), node)
    if not walks and not any(node.op.subgraphs() for node in graph.nodes):
        return graph
    # By the walk that takes over: it is made where the first of its readers stands.
    made: dict[Node, Node] = {}

    def rule(node: Node, operands: list[Value | None]) -> Sequence[Value] | None:
        layer = node.op.forward if isinstance(node.op, Walk) else node.op
        walk = walks.get((layer, _operands(node))) if isinstance(layer, Recurrence) else None
        if walk is None:
            return map_bodies(node, operands, merge_walks).outputs
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
