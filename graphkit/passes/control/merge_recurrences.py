"""Take the results of a recurrent layer from the recurrence that its gradient reads.

Differentiation makes such pairs: the layer itself, and the recurrence that saves the values its gradient needs.
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
    """Replace layers by recurrences over the same operands, in subgraphs too. Linear in nodes."""
    recurrences: dict[Any, Node] = {}
    for node in graph.nodes:
        if isinstance(node.op, SavingRecurrence):
            recurrences.setdefault((node.op.forward, _operands(node)), node)
    if not recurrences and not any(node.op.subgraphs() for node in graph.nodes):
        return graph
    # By the recurrence that takes over: it is made where the first of its readers stands.
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
    """Without those that are absent at the end."""
    given = list(node.inputs)
    while given and given[-1] is None:
        given.pop()
    return tuple(given)
