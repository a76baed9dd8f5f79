"""Compute a recurrent layer only once if its gradient reads a second copy that saves gates.

Differentiation creates such pairs: the layer itself, and a recurrence that also saves the values for the gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ops.rnn.backward import SavingRecurrence
from graphkit.ops.rnn.recurrence import Recurrence
from graphkit.passes.core.declare import Property, graph_pass
from graphkit.passes.core.sweep import map_bodies, rewrite


@graph_pass(requires=[Property.COMPOSITES_EXPANDED], at=["RNNRecurrence", "GRURecurrence", "LSTMRecurrence"])
def merge_recurrences(graph: Graph) -> Graph:
    """Replace layers by saving recurrences with the same operands, also in subgraphs. Takes linear time."""
    recurrences: dict[Any, Node] = {}
    for node in graph.nodes:
        if isinstance(node.op, SavingRecurrence):
            recurrences.setdefault((node.op.forward, _operands(node)), node)
    if not recurrences and not any(node.op.subgraphs() for node in graph.nodes):
        return graph
    # The new nodes, by the old recurrence. Each is made at the place of the first node that it replaces.
    made: dict[Node, Node] = {}

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        layer = node.op.forward if isinstance(node.op, SavingRecurrence) else node.op
        recurrence = recurrences.get((layer, _operands(node))) if isinstance(layer, Recurrence) else None
        if recurrence is None:
            return map_bodies(node, operands, merge_recurrences).outputs
        if recurrence not in made:
            made[recurrence] = recurrence.rebuilt(operands)
        return made[recurrence].outputs[: len(node.outputs)]

    return rewrite(graph, rule)


def _operands(node: Node) -> tuple[Value | None, ...]:
    """Return the operands without absent ones at the end."""
    given = list(node.inputs)
    while given and given[-1] is None:
        given.pop()
    return tuple(given)
