"""Insert a Reshape where a reader determines the rank of an operand of unknown rank."""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import TensorType
from graphkit.ops import Op
from graphkit.ops.axes import ranked
from graphkit.passes.core.declare import Property, graph_pass
from graphkit.passes.core.sweep import all_nodes, map_subgraphs, rewrite


def _first_unranked(graph: Graph) -> Node | None:
    return next((node for node in all_nodes(graph) if _missing(node)), None)


@graph_pass(ensures=[Property.RANKS_KNOWN], breaks=[Property.COMPOSITES_EXPANDED], check=_first_unranked)
def known_ranks(graph: Graph) -> Graph:
    """Insert a Reshape before each operand of unknown rank whose rank is determined by its reader's `operand_ranks`.

    Also applies to subgraphs. The Reshape keeps all sizes. The sweep infers types again, which loses ranks that only
    the file declares. Takes linear time.
    """
    if _first_unranked(graph) is None:
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
    """Return the required ranks of operands of unknown rank, by position."""
    op = node.op
    unknown = [i for i, v in enumerate(node.inputs) if v is not None and _unranked(v)]
    if not unknown or not isinstance(op, Op):
        return {}
    ranks = op.operand_ranks(*(None if v is None else v.type for v in node.inputs))
    return {i: rank for i in unknown if i < len(ranks) and (rank := ranks[i]) is not None}


def _unranked(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.shape is None
