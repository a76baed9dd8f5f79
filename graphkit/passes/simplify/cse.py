"""Common subexpressions: two nodes with equal operators and the same operands become one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphkit.ir.context import GROUP
from graphkit.ir.graph import Graph, Node, Value
from graphkit.passes.core.declare import Property, graph_pass
from graphkit.passes.core.draws import is_undetermined
from graphkit.passes.core.sweep import map_subgraphs, rewrite


def _equal_to_another(graph: Graph) -> Node | None:
    seen = _Seen()
    return next((n for n in graph.nodes if seen.first_equal(n) is not n and not is_undetermined(n)), None)


@graph_pass(ensures=[Property.EQUALS_MERGED], check=_equal_to_another)
def cse(graph: Graph) -> Graph:
    """Merge equal nodes. Constants are equal by their bytes (large ones by identity). Linear.

    Random nodes are equal when they draw from one state with one stream; those without a state stay apart. So do nodes
    of different groups (`ctx_group`), which different processes may compute, but for constants.
    """
    seen = _Seen()

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value]:
        rebuilt = map_subgraphs(node, operands, cse)
        if is_undetermined(rebuilt):
            return rebuilt.outputs
        return seen.first_equal(rebuilt).outputs

    return rewrite(graph, rule)


class _Seen:
    """Nodes that came before."""

    def __init__(self) -> None:
        self._first: dict[tuple[Any, ...], Node] = {}
        # Equal ones of further groups.
        self._further: dict[tuple[Any, ...], list[Node]] = {}

    def first_equal(self, node: Node) -> Node:
        """The first node that this one is equal to, which may be itself."""
        key = (node.op, node.inputs)
        first = self._first.setdefault(key, node)
        if first is node or _in_one_place(node, first):
            return first
        further = self._further.setdefault(key, [])
        for other in further:
            if _in_one_place(node, other):
                return other
        further.append(node)
        return node


def _in_one_place(a: Node, b: Node) -> bool:
    """Whether no two groups are to compute these nodes."""
    mine, other = a.meta.get(GROUP), b.meta.get(GROUP)
    return mine == other or mine is None or other is None or not a.inputs
