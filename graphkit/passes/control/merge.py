"""Merge If, Loop and Scan nodes that do the same on the same operands into one node with the results of both.

Differentiation makes such pairs: the backward pass reads a copy of a forward node that has more results. Two loops are
merged if their states and conditions are equal expressions; two If, if their conditions are the same value.
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

# Attributes that Scan nodes must have in common to be one.
_OF_SCANS = ("captures", "num_scan_inputs", "scan_input_axes", "scan_input_directions")

# The node that takes over, and the positions of the results among its results, for each merged node.
_Merged: TypeAlias = dict[Node, tuple[Node, Sequence[int]]]


@graph_pass(ensures=[Property.CONTROL_MERGED], at=CONTROL)
def merge_control(graph: Graph) -> Graph:
    """Merge nodes of control flow, with CSE before and after; a graph with less than two is returned as it is."""
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
            groups.setdefault((node.inputs, _form(node.op)), []).append(node)
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


def _form(op: Operator) -> tuple[Any, ...]:
    """What operators of control flow on the same operands must have in common to be one."""
    common = {"If": (), "Loop": ("captures",), "Scan": _OF_SCANS}[op.name]
    return op.name, *(getattr(op, name) for name in common)


class _Outputs:
    """The outputs of a merged node: those of the first, and what others have beside them."""

    def __init__(self, first: Sequence[Any]):
        self.items = list(first)
        self._places = {item: i for i, item in reversed([*enumerate(first)])}

    def places(self, items: Iterable[Any]) -> list[int]:
        """Where the items stand; those that are not there yet are appended."""
        found = []
        for item in items:
            place = self._places.setdefault(item, len(self.items))
            if place == len(self.items):
                self.items.append(item)
            found.append(place)
        return found


def _joint(graphs: Sequence[Graph]) -> list[Sequence[Value]]:
    """The outputs of graphs of the same inputs, on those of the first; equal expressions are one value."""
    inputs = graphs[0].inputs
    outputs = [graphs[0].outputs, *(inline(g, inputs) for g in graphs[1:])]
    joint = iter(merge_control(cse(Graph(inputs, itertools.chain(*outputs)))).outputs)
    return [[*itertools.islice(joint, len(values))] for values in outputs]


def _merged_ifs(nodes: Sequence[Node]) -> _Merged:
    view = IfView.of(nodes[0])
    branches = zip(*(IfView.of(node).branches for node in nodes), strict=True)
    then, other = (_joint(graphs) for graphs in branches)
    pairs = [list(zip(*sides, strict=True)) for sides in zip(then, other, strict=True)]
    outputs = _Outputs(pairs[0])
    places = [outputs.places(own) for own in pairs]
    graphs = (Graph(g.inputs, [p[i] for p in outputs.items], name=g.name) for i, g in enumerate(view.branches))
    made = _on_same_operands(nodes[0], view.with_branches(*graphs))
    return {node: (made, own) for node, own in zip(nodes, places, strict=True)}


def _merged_loops(nodes: Sequence[Node]) -> _Merged:
    """Of loops with as many states, those that carry the same."""
    results = _joint([repeating(node).body for node in nodes])
    lead = LoopView.of(nodes[0]).at_after.stop
    alike: dict[tuple[Value, ...], list[tuple[Node, Sequence[Value]]]] = {}
    for node, values in zip(nodes, results, strict=True):
        alike.setdefault(tuple(values[:lead]), []).append((node, values[lead:]))
    merged: _Merged = {}
    for carried, members in alike.items():
        if len(members) > 1:
            merged |= _merged_alike(carried, members, nodes[0])
    return merged


def _merged_alike(carried: Sequence[Value], members: Sequence[tuple[Node, Sequence[Value]]], owner: Node) -> _Merged:
    """One loop in the place of `members`, each with slices of its own; all are on the inputs of the owner's body."""
    items = [list(zip(slices, LoopView.of(node).scan_output_places, strict=True)) for node, slices in members]
    outputs = _Outputs(items[0])
    first = members[0][0]
    view, op = LoopView.of(first), repeating(first)
    states = range(view.state_count)
    places = [[*states, *(view.state_count + i for i in outputs.places(own))] for own in items]
    body = Graph(repeating(owner).body.inputs, [*carried, *(v for v, _ in outputs.items)], name=op.body.name)
    changes: dict[str, Any] = {"body": body}
    if not view.is_loop:
        changes["scan_output_axes"] = tuple(axis for _, (axis, _) in outputs.items)
        changes["scan_output_directions"] = tuple(direction for _, (_, direction) in outputs.items)
    made = _on_same_operands(first, op.replace(**changes))
    return {node: (made, own) for (node, _), own in zip(members, places, strict=True)}


def _on_same_operands(node: Node, op: Operator) -> Node:
    return Node(op, node.inputs, node.name, node.meta, output_names=[v.name for v in node.outputs])
