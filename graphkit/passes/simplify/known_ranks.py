"""Operands of unknown rank are given the rank that their reader needs, so that what follows knows their axes."""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import TensorType
from graphkit.ops import Op
from graphkit.ops.axes import ranked
from graphkit.passes.core.declare import Property, graph_pass
from graphkit.passes.core.sweep import all_nodes, map_subgraphs, rewrite


def _lacking_ranks(graph: Graph) -> Node | None:
    return next((node for node in all_nodes(graph) if _missing(node)), None)


@graph_pass(ensures=[Property.RANKS_KNOWN], breaks=[Property.COMPOSITES_EXPANDED], check=_lacking_ranks)
def known_ranks(graph: Graph) -> Graph:
    """A Reshape to its own sizes for each operand whose rank only its reader's `operand_ranks` tells; in subgraphs too.

    Ranks that only a file's declarations told are lost where types are inferred again. Linear in nodes.
    """
    if _lacking_ranks(graph) is None:
        return graph
    made: dict[tuple[Value, int], Value] = {}

    def view(value: Value, rank: int) -> Value:
        if (value, rank) not in made:
            made[value, rank] = ranked(value, rank)
        return made[value, rank]

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        inner = map_subgraphs(node, operands, known_ranks)
        missing = _missing(inner)
        if not missing:
            return inner.outputs
        return inner.rebuilt([view(v, missing[i]) if v is not None and i in missing else v
                              for i, v in enumerate(operands)]).outputs  # fmt: skip

    return rewrite(graph, rule)


def _missing(node: Node) -> dict[int, int]:
    """The ranks of operands that have none, by position."""
    op = node.op
    unknown = [i for i, v in enumerate(node.inputs) if v is not None and _unranked(v)]
    if not unknown or not isinstance(op, Op):
        return {}
    ranks = op.operand_ranks(*(None if v is None else v.type for v in node.inputs))
    return {i: rank for i in unknown if i < len(ranks) and (rank := ranks[i]) is not None}


def _unranked(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.shape is None
