"""Expand operators that are defined by other operators, such as Einsum. The latter have kernels and can be fused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from graphkit.errors import UnsupportedError
from graphkit.ir import context
from graphkit.ir.graph import Graph, Node, Value, topological
from graphkit.ir.origin import brief
from graphkit.ir.types import TensorType
from graphkit.ops import Op, operator
from graphkit.passes.core.declare import Property, graph_pass
from graphkit.passes.core.sweep import map_bodies, rewrite

Predicate: TypeAlias = Callable[[Node], bool]


@graph_pass(
    ensures=[Property.COMPOSITES_EXPANDED],
    breaks=[
        Property.SIMPLIFIED,
        Property.LAYER_NORMS_FUSED,
        Property.GELUS_FUSED,
        Property.ACTIVATIONS_FUSED,
        Property.SOFTMAXES_FUSED,
    ],
)
def expand_composites(graph: Graph, whole: Predicate = lambda node: False) -> Graph:
    """Replace each node of a `composite` operator by its expansion, also in subgraphs.

    A node is kept if `whole(node)` is true, or if its expansion needs ranks or elements that are unknown. Takes linear
    time in the number of resulting nodes.
    """

    def is_composite(node: Node) -> bool:
        return bool(getattr(node.op, "composite", False)) and not whole(node)

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        rebuilt = map_bodies(node, operands, lambda body: expand_composites(body, whole))
        return _expanded(rebuilt, is_composite) if is_composite(rebuilt) else rebuilt.outputs

    return rewrite(graph, rule)


def _expanded(node: Node, is_composite: Predicate) -> Sequence[Any]:
    """Return the values that replace a node's results. Composite operators in the expansion are expanded, too."""
    op = operator(node, Op)
    ranked = all(v is None or not isinstance(v.type, TensorType) or v.type.rank is not None for v in node.inputs)
    if not ranked:
        return node.outputs
    try:
        with context.expanding(node.meta, f"the expansion of {brief(node)}"):
            found = (op.composed or op.expand)(*node.inputs)
    except UnsupportedError:
        return node.outputs
    results: Sequence[Value] = found if isinstance(found, tuple) else (found,)
    stop = [v for v in node.inputs if v is not None]
    inner = topological(results, stop=stop)
    if not any(map(is_composite, inner)):
        return results
    table: dict[Any, Any] = {v: v for v in stop}
    for part in inner:
        rebuilt = part.rebuilt([None if v is None else table.get(v, v) for v in part.inputs])
        found = _expanded(rebuilt, is_composite) if is_composite(rebuilt) else rebuilt.outputs
        table.update(zip(part.outputs, found, strict=True))
    return [table.get(v, v) for v in results]
