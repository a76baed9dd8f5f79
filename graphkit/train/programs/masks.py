from __future__ import annotations

from collections.abc import Sequence

from graphkit.errors import UsageError
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ops import F
from graphkit.ops.pointwise import scalar_like
from graphkit.passes.core.sweep import rewrite
from graphkit.train.selection import Mask, TrainedParameter


def masked(value: Value, mask: Mask | None) -> Value:
    return value if mask is None else F.where(mask.value, value, scalar_like(0.0, value))


def with_masked_reads(graph: Graph, trained: Sequence[TrainedParameter]) -> Graph:
    """Return a training graph that reads 0 where masks are False, so that gradients are 0 there.

    The masks become inputs. Lazy tables must have no mask.
    """
    table = {t.value: masked(t.value, t.mask) for t in trained if t.mask is not None}
    if not table:
        return graph
    if lazy := [t.name for t in trained if t.lazy and t.mask is not None]:
        raise UsageError(f"masks= cannot be combined with row-sparse updates (lazy=, --sparse-update) of {lazy[0]!r}")

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        if table.keys().isdisjoint(node.operands):
            return None
        return node.rebuilt([v if v is None else table.get(v, v) for v in operands]).outputs

    return rewrite(graph, rule, extra_inputs=[t.mask.value for t in trained if t.mask is not None])
