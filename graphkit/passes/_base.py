"""The one sweep that every pass is written with, use counts, and the runner that logs what a pass did."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from graphkit import config
from graphkit.ir import context
from graphkit.ir.collector import uncollected
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ops import Op

Rule: TypeAlias = Callable[[Node, list[Value | None]], Sequence[Value] | None]
Pass: TypeAlias = Callable[[Graph], Graph]


@uncollected
def rewrite(
    graph: Graph,
    rule: Rule,
    *,
    inputs: Mapping[Value, Value] | None = None,
    extra_inputs: Sequence[Value] = (),
) -> Graph:
    """One topological sweep. `rule(node, operands)` returns one value per output, or None to keep the node.

    `operands` are the node's inputs in the new graph; a kept node is rebuilt on them (itself when nothing
    changed). `inputs` replaces graph inputs; `extra_inputs` are appended. Names of outputs stay.
    Linear in nodes. Subgraphs are not entered: see `map_subgraphs`.
    """
    table: dict[Value, Value] = {v: v for v in graph.inputs}
    table.update(inputs or {})
    with context.detached():
        for node in graph.nodes:
            operands = [None if v is None else table[v] for v in node.inputs]
            replacement = rule(node, operands)
            if replacement is None:
                replacement = node.rebuilt(operands).outputs
            table.update(zip(node.outputs, replacement, strict=True))
    return Graph(
        [*(table[v] for v in graph.inputs), *extra_inputs],
        [table[v] for v in graph.outputs],
        [(table[state], table[new]) for state, new in graph.updates],
        graph.name,
        output_names=graph.output_names,
        meta=graph.meta,
    )


def map_subgraphs(node: Node, operands: Sequence[Value | None], transform: Pass) -> Node:
    """The node with `transform` applied to each Graph-valued attribute (which must keep its signature)."""
    changed = {k: new for k, g in node.op.subgraphs().items() if (new := transform(g)) is not g}
    operator = node.op.replace(**changed) if changed and isinstance(node.op, Op) else None
    return node.rebuilt(operands, operator)


def use_counts(graph: Graph) -> Counter[Value]:
    """How many times each value is read: by nodes, as an output, as an update."""
    counts: Counter[Value] = Counter(v for node in graph.nodes for v in node.inputs if v is not None)
    counts.update(graph.outputs)
    counts.update(new for _, new in graph.updates)
    return counts


def run_passes(graph: Graph, passes: Sequence[tuple[str, Pass]]) -> Graph:
    """Apply passes in order; with GRAPHKIT_DEBUG=1 each one's node counts go to stderr."""
    debug = config.DEBUG.get()
    for name, transform in passes:
        before = len(graph.nodes)
        graph = transform(graph)
        if debug:
            sys.stderr.write(f"graphkit: pass {name}: {before} -> {len(graph.nodes)} nodes\n")
    return graph
