"""If, Loop and Scan that do the same on the same operands become one node with the results of both.

Differentiation makes such pairs: the backward pass reads a forward node that has more results than the one that the
graph had. Two loops are one when their states and conditions are equal expressions; two If, when their conditions
are the same value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphkit.ir.graph import Graph, Node, Operator, Value
from graphkit.ir.subgraph import inline
from graphkit.ops.control.operators import Scan
from graphkit.ops.control.views import IfView, LoopView, is_if, repeating
from graphkit.passes.core.declare import Property, graph_pass
from graphkit.passes.core.sweep import CONTROL, is_control, rewrite
from graphkit.passes.simplify.cse import cse


@graph_pass(ensures=[Property.CONTROL_MERGED])
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
            op = node.op
            scan = (op.num_scan_inputs, op.scan_input_axes, op.scan_input_directions) if isinstance(op, Scan) else ()
            groups.setdefault((op.name, node.inputs, scan), []).append(node)
    # The node that takes over, and the positions of the results among its results, for each merged node.
    merged: dict[Node, tuple[Node, Sequence[int]]] = {}
    for first, *others in groups.values():
        for other in others:
            base = merged[first][0] if first in merged else first
            joint = _merged_if(base, other) if is_if(base) else _merged_loop(base, other)
            if joint is not None:
                node, positions = joint
                for member in [m for m, (taken, _) in merged.items() if taken is base] or [first]:
                    kept = merged[member][1] if member in merged else range(len(member.outputs))
                    merged[member] = (node, kept)
                merged[other] = (node, positions)
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


def _joint(a: Graph, b: Graph) -> tuple[list[Value], list[Value]]:
    """The outputs of two graphs of the same inputs, on the inputs of `a`; equal expressions are one value."""
    outputs = [*a.outputs, *inline(b, a.inputs)]
    graph = merge_control(cse(Graph(a.inputs, outputs)))
    return list(graph.outputs[: len(a.outputs)]), list(graph.outputs[len(a.outputs) :])


def _merged_if(a: Node, b: Node) -> tuple[Node, list[int]]:
    view = IfView.of(a)
    then, other = view.branches
    joint = zip(view.branches, IfView.of(b).branches, strict=True)
    (then_a, then_b), (else_a, else_b) = (_joint(*pair) for pair in joint)
    outputs = list(zip(then_a, else_a, strict=True))
    positions = [_position(outputs, pair) for pair in zip(then_b, else_b, strict=True)]
    op = view.with_branches(
        Graph(then.inputs, [t for t, _ in outputs], name=then.name),
        Graph(other.inputs, [e for _, e in outputs], name=other.name),
    )
    return _on_same_operands(a, op), positions


def _merged_loop(a: Node, b: Node) -> tuple[Node, list[int]] | None:
    """None when the loops do not carry the same."""
    op_a, op_b = repeating(a), repeating(b)
    if op_a.captures != op_b.captures:
        return None
    view_a, view_b = LoopView.of(a), LoopView.of(b)
    states, lead = view_a.state_count, view_a.at_after.stop
    results_a, results_b = _joint(op_a.body, op_b.body)
    if results_a[:lead] != results_b[:lead]:
        return None
    outputs = list(zip(results_a[lead:], view_a.scan_output_places, strict=True))
    positions = [*range(states)]
    items = zip(results_b[lead:], view_b.scan_output_places, strict=True)
    positions += [states + _position(outputs, item) for item in items]
    body = Graph(op_a.body.inputs, [*results_a[:lead], *(v for v, _ in outputs)], name=op_a.body.name)
    changes: dict[str, Any] = {"body": body}
    if not view_a.is_loop:
        changes["scan_output_axes"] = tuple(axis for _, (axis, _) in outputs)
        changes["scan_output_directions"] = tuple(direction for _, (_, direction) in outputs)
    return _on_same_operands(a, op_a.replace(**changes)), positions


def _position(known: list[Any], item: Any) -> int:
    """Where `item` stands among `known`; it is appended when it is new."""
    if item not in known:
        known.append(item)
    return known.index(item)


def _on_same_operands(node: Node, op: Operator) -> Node:
    return Node(op, node.inputs, node.name, node.meta, output_names=[v.name for v in node.outputs])
