"""Common subexpression elimination: nodes with equal operators and the same operands become one node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from graphkit.ir.context import GROUP
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ops import Op
from graphkit.ops._op import number_of
from graphkit.passes.core.declare import Property, graph_pass
from graphkit.passes.core.draws import is_undetermined
from graphkit.passes.core.sweep import map_subgraphs, rewrite

if TYPE_CHECKING:
    from graphkit.ir.sweeps import NativeSweeps

# Fact about graphs that the pass returned: a further sweep would change nothing.
_MERGED = "no two equal nodes"


def _first_duplicate(graph: Graph) -> Node | None:
    seen = _Seen()
    return next((n for n in graph.nodes if seen.first_equal(n) is not n and not is_undetermined(n)), None)


@graph_pass(ensures=[Property.EQUALS_MERGED], check=_first_duplicate)
def cse(graph: Graph) -> Graph:
    """Merge equal nodes. Takes linear time.

    Small constants are compared by their bytes, large ones by identity. Random nodes are equal if they have the same
    state and stream; nodes without a random state are never merged. Nodes with operands are not merged if they are in
    different groups (`ctx_group`), because different processes may compute them.
    """
    if graph.is_noted(_MERGED):
        return graph
    seen = _Seen()
    merged_inside = seen.merged_inside

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value]:
        op = node.op
        if not isinstance(op, Op) or not op.subgraphs() or number_of(op) in merged_inside:
            node = node.rebuilt(operands)
        else:
            node = map_subgraphs(node, operands, cse)
            if node.op is op and not is_undetermined(node):
                seen.accept(op)
        if is_undetermined(node):
            return node.outputs
        return seen.first_equal(node).outputs

    merged = rewrite(graph, rule, advance=seen.advance)
    merged.note(_MERGED)
    return merged


class _Seen:
    """The nodes that the sweep has visited, without duplicates."""

    def __init__(self) -> None:
        self._first: dict[tuple[Any, ...], Node] = {}
        # Further nodes with the same key, in other groups than the first one.
        self._further: dict[tuple[Any, ...], list[Node]] = {}
        # Numbers of the operators that native sweeps have visited. Their nodes have keys with these numbers.
        self._numbers: dict[Any, int] = {}
        # The numbers of operators whose subgraphs contain neither equal nodes nor random nodes.
        self.merged_inside: set[int] = set()

    def accept(self, op: Op) -> None:
        """Let native sweeps merge nodes with this operator: its subgraphs contain neither equal nor random nodes."""
        self.merged_inside.add(number_of(op))
        # Native sweeps give the operator a number. Nodes that Python visits must have the same key.
        self._numbers.setdefault(op, len(self._numbers) + 1)

    def advance(self, sweeps: NativeSweeps, nodes: tuple[Node, ...], position: int, table: dict[Any, Value]) -> int:
        """Add nodes that equal no earlier one. See `Advance`."""
        return sweeps.merge_until(nodes, position, table, self._numbers, self._first, number_of, self.merged_inside)

    def first_equal(self, node: Node) -> Node:
        """Return the first visited node that may replace this one; the node itself if there is none."""
        key = (self._numbers.get(node.op, node.op), node.inputs)
        first = self._first.setdefault(key, node)
        if first is node or _may_merge(node, first):
            return first
        further = self._further.setdefault(key, [])
        for other in further:
            if _may_merge(node, other):
                return other
        further.append(node)
        return node


def _may_merge(a: Node, b: Node) -> bool:
    """Return whether the nodes may be merged: they have the same group, one has none, or they have no operands."""
    mine, other = a.meta.get(GROUP), b.meta.get(GROUP)
    return mine == other or mine is None or other is None or not a.inputs
