"""Merge If, Loop and Scan nodes that differ only in their results into one node with all of these results.

Differentiation creates such pairs: the backward pass reads a copy of a forward node that has more results. Two loops
are merged if their operands are the same, and their states and conditions are equal expressions. Two If nodes are
merged if their operands are the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from graphkit.ir.graph import Graph, Node, Operator, Value
from graphkit.ir.subgraph import inline
from graphkit.ops.control.views import IfView, LoopView, is_if, repeating
from graphkit.passes.core.declare import CONTROL, Property, graph_pass
from graphkit.passes.core.sweep import is_control, rewrite
from graphkit.passes.simplify.cse import cse

# Attributes in which merged Scan nodes must agree.
_OF_SCANS = ("captures", "num_scan_inputs", "scan_input_axes", "scan_input_directions")

# For each merged node: the node that replaces it, and the positions of its results among the results of the latter.
_Merged: TypeAlias = dict[Node, tuple[Node, Sequence[int]]]


@graph_pass(ensures=[Property.CONTROL_MERGED], at=CONTROL)
def merge_control(graph: Graph) -> Graph:
    """Merge If, Loop and Scan nodes. Runs CSE before and after. A graph with fewer than two of them is not changed."""
    if graph.operators.isdisjoint(CONTROL) or sum(is_control(node) for node in graph.nodes) < 2:
        return graph
    graph, changed = cse(graph), True
    while changed:
        graph, changed = _merge_once(graph)
        if changed:
            graph = cse(graph)
    return graph


def _merge_once(graph: Graph) -> tuple[Graph, bool]:
    groups: dict[Any, list[Node]] = {}
    for node in graph.nodes:
        if is_control(node):
            groups.setdefault((node.inputs, _merge_key(node.op)), []).append(node)
    merged: _Merged = {}
    for nodes in groups.values():
        if len(nodes) > 1:
            merged |= _merged_ifs(nodes) if is_if(nodes[0]) else _merged_loops(nodes)
    if not merged:
        return graph, False
    made: dict[Node, Node] = {}

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        if node not in merged:
            return None
        joint, positions = merged[node]
        if joint not in made:
            made[joint] = joint.rebuilt(operands)
        return [made[joint].outputs[i] for i in positions]

    return rewrite(graph, rule, at=CONTROL), True


def _merge_key(op: Operator) -> tuple[Any, ...]:
    """Return a key. Operators with the same operands may only be merged if their keys are equal."""
    common = {"If": (), "Loop": ("captures",), "Scan": _OF_SCANS}[op.name]
    return op.name, *(getattr(op, name) for name in common)


class _Outputs:
    """The outputs of a merged node: those of the first node, and additional ones of the others."""

    def __init__(self, first: Sequence[Any]):
        self.items = list(first)
        self._places = {item: i for i, item in reversed([*enumerate(first)])}

    def positions(self, items: Iterable[Any]) -> list[int]:
        """Return the positions of the items. Missing items are appended."""
        found = []
        for item in items:
            place = self._places.setdefault(item, len(self.items))
            if place == len(self.items):
                self.items.append(item)
            found.append(place)
        return found


def _on_same_inputs(graphs: Sequence[Graph]) -> list[Sequence[Value]]:
    """Return the outputs of each graph, all computed from the inputs of the first graph.

    Equal expressions become one value.
    """
    inputs = graphs[0].inputs
    outputs = [graphs[0].outputs, *(inline(g, inputs) for g in graphs[1:])]
    joint = iter(merge_control(cse(Graph(inputs, itertools.chain(*outputs)))).outputs)
    return [[*itertools.islice(joint, len(values))] for values in outputs]


def _merged_ifs(nodes: Sequence[Node]) -> _Merged:
    view = IfView.of(nodes[0])
    branches = zip(*(IfView.of(node).branches for node in nodes), strict=True)
    then, other = (_on_same_inputs(graphs) for graphs in branches)
    pairs = [list(zip(*sides, strict=True)) for sides in zip(then, other, strict=True)]
    outputs = _Outputs(pairs[0])
    places = [outputs.positions(own) for own in pairs]
    graphs = (Graph(g.inputs, [p[i] for p in outputs.items], name=g.name) for i, g in enumerate(view.branches))
    made = _on_same_operands(nodes[0], view.with_branches(*graphs))
    return {node: (made, own) for node, own in zip(nodes, places, strict=True)}


def _merged_loops(nodes: Sequence[Node]) -> _Merged:
    """Merge loops whose conditions and states are equal."""
    results = _on_same_inputs([repeating(node).body for node in nodes])
    lead = LoopView.of(nodes[0]).at_after.stop
    by_states: dict[tuple[Value, ...], list[tuple[Node, Sequence[Value]]]] = {}
    for node, values in zip(nodes, results, strict=True):
        by_states.setdefault(tuple(values[:lead]), []).append((node, values[lead:]))
    merged: _Merged = {}
    for carried, members in by_states.items():
        if len(members) > 1:
            merged |= _merged_members(carried, members, nodes[0])
    return merged


def _merged_members(carried: Sequence[Value], members: Sequence[tuple[Node, Sequence[Value]]], owner: Node) -> _Merged:
    """Return the merge of `members`, which differ only in their scan outputs.

    Their values use the inputs of owner's body.
    """
    items = [list(zip(slices, LoopView.of(node).scan_output_places, strict=True)) for node, slices in members]
    outputs = _Outputs(items[0])
    first = members[0][0]
    view, op = LoopView.of(first), repeating(first)
    states = range(view.state_count)
    places = [[*states, *(view.state_count + i for i in outputs.positions(own))] for own in items]
    body = Graph(repeating(owner).body.inputs, [*carried, *(v for v, _ in outputs.items)], name=op.body.name)
    changes: dict[str, Any] = {"body": body}
    if not view.is_loop:
        changes["scan_output_axes"] = tuple(axis for _, (axis, _) in outputs.items)
        changes["scan_output_directions"] = tuple(direction for _, (_, direction) in outputs.items)
    made = _on_same_operands(first, op.replace(**changes))
    return {node: (made, own) for (node, _), own in zip(members, places, strict=True)}


def _on_same_operands(node: Node, op: Operator) -> Node:
    return Node(op, node.inputs, node.name, node.meta, output_names=[v.name for v in node.outputs])
