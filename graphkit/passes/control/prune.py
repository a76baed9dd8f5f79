"""Remove unused parts of If, Loop and Scan: results, states that affect only themselves, and operands.

Differentiation creates such parts: the backward pass may contain a copy of a forward loop that returns saved values,
besides the results of the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphkit.ir.graph import Graph, Node, Value, topological
from graphkit.ops.control.views import IfView, LoopView, is_if, repeating
from graphkit.passes.core.declare import CONTROL, Property, graph_pass
from graphkit.passes.core.sweep import is_control, rewrite, use_counts


@graph_pass(requires=[Property.CONTROL_MERGED], at=CONTROL)
def prune_control(graph: Graph) -> Graph:
    """Remove unused results of If, Loop and Scan, and the nodes that compute only these. Also applies to subgraphs.

    The condition of a Loop is kept, and so is at least one scan input of a Scan: they determine the number of
    iterations. Takes linear time.
    """
    if graph.operators.isdisjoint(CONTROL):
        return graph
    counts = use_counts(graph)

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        if not is_control(node):
            return None
        read = [i for i, v in enumerate(node.outputs) if counts[v]]
        pruned, kept = (_pruned_if if is_if(node) else _pruned_loop)(node, operands, read)
        results = dict(zip(kept, pruned.outputs, strict=True))
        # An unused result may be replaced by any value: the old one.
        return [results.get(i, old) for i, old in enumerate(node.outputs)]

    return rewrite(graph, rule, at=CONTROL)


def _pruned_if(node: Node, operands: Sequence[Value | None], read: list[int]) -> tuple[Node, list[int]]:
    view = IfView.of(node, operands)
    read = read or [0]
    then, other = (prune_control(_with_outputs(g, read)) for g in view.branches)
    captures = sorted(_inputs_read(then, other))
    if len(read) == len(node.outputs) and len(captures) == len(view.captures):
        same = all(new is old for new, old in zip((then, other), view.branches, strict=True))
        return node.rebuilt(operands, None if same else view.with_branches(then, other)), read
    then, other = (_with_inputs(g, captures) for g in (then, other))
    given = [view.condition, *(view.captures[k] for k in captures)]
    return _rebuilt(node, view.with_branches(then, other), given, read), read


def _pruned_loop(node: Node, operands: Sequence[Value | None], read: list[int]) -> tuple[Node, list[int]]:
    op = repeating(node)
    view = LoopView.of(node, operands)
    lead, first, count = view.lead, view.flag, view.state_count
    stacks = [i for i in read if i >= count]
    states = _live_states(op.body, lead, first, count, [i for i in read if i < count], stacks)
    if not states and not stacks:
        states = [0] if count else []
        stacks = [] if count else [0]
    kept = [*states, *stacks]
    body = prune_control(_with_outputs(op.body, [*range(first), *(first + i for i in kept)]))
    used = _inputs_read(body)
    positions = range(len(view.operands))
    scanned, captured = positions[view.at_scan_inputs], positions[view.at_captures]
    slices = [k for k in scanned if k in used] or [*scanned[:1]]
    captures = [k for k in captured if k in used]
    inputs = [*range(lead), *(lead + i for i in states), *slices, *captures]
    if len(kept) == len(node.outputs) and len(inputs) == len(view.operands):
        return node.rebuilt(operands, None if body is op.body else op.replace(body=body)), kept
    changes: dict[str, Any] = {"body": _with_inputs(body, inputs), "captures": len(captures)}
    if not view.is_loop:
        changes["num_scan_inputs"] = len(slices)
        for kind, chosen, offset in (("input", slices, scanned.start), ("output", stacks, count)):
            for what in ("axes", "directions"):
                along = getattr(op, f"scan_{kind}_{what}")
                changes[f"scan_{kind}_{what}"] = None if along is None else [along[k - offset] for k in chosen]
    return _rebuilt(node, op.replace(**changes), [view.operands[k] for k in inputs], kept), kept


def _live_states(body: Graph, lead: int, first: int, count: int, read: list[int], stacks: list[int]) -> list[int]:
    """Return the states that are read after the loop, or that affect the condition, live states or stacked results."""
    live = set(read)
    while True:
        wanted = [*body.outputs[:first], *(body.outputs[first + i] for i in (*sorted(live), *stacks))]
        used = {*wanted, *(v for n in topological(wanted) for v in n.operands)}
        more = {i for i in range(count) if body.inputs[lead + i] in used} - live
        if not more:
            return sorted(live)
        live |= more


def _inputs_read(*graphs: Graph) -> set[int]:
    """Return the positions of the inputs that one of the graphs reads or returns."""
    found: set[int] = set()
    for graph in graphs:
        used = {*graph.outputs, *(v for node in graph.nodes for v in node.operands)}
        found.update(k for k, v in enumerate(graph.inputs) if v in used)
    return found


def _with_outputs(graph: Graph, chosen: list[int]) -> Graph:
    return graph if len(chosen) == len(graph.outputs) else graph.replace(outputs=[graph.outputs[i] for i in chosen])


def _with_inputs(graph: Graph, chosen: list[int]) -> Graph:
    return graph if len(chosen) == len(graph.inputs) else graph.replace(inputs=[graph.inputs[i] for i in chosen])


def _rebuilt(node: Node, op: Any, operands: Sequence[Value | None], kept: list[int]) -> Node:
    return Node(op, operands, node.name, node.meta, output_names=[node.outputs[i].name for i in kept])
