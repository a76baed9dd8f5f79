"""Update embedding tables only at the rows that were read, instead of with a gradient that is mostly zero."""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import DType, TensorType
from graphkit.ops import Op, operator
from graphkit.ops._base import DOMAIN
from graphkit.ops.optim.table_update import TableUpdate
from graphkit.ops.optim.updates import Update
from graphkit.ops.tensor.gather import GatherGrad
from graphkit.passes.core.declare import graph_pass
from graphkit.passes.core.match import producer
from graphkit.passes.core.sweep import rewrite, use_counts

_GRADIENT = 1  # the position of the gradient among an update's operands


@graph_pass(at=["GatherGrad"])
def fuse_table_update(graph: Graph) -> Graph:
    """Fuse an elementwise optimizer update and the GatherGrad along axis 0 of its gradient into TableUpdate.

    The update must be the only reader of the gradient. Takes linear time.
    """
    counts = use_counts(graph)

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        if not isinstance(node.op, Update) or not node.op.elementwise:
            return None
        gradient = node.inputs[_GRADIENT]
        gather = producer(gradient, "GatherGrad", domain=DOMAIN)
        if gradient is None or gather is None or counts[gradient] != 1 or not _is_table(node, gather):
            return None
        made = producer(operands[_GRADIENT], "GatherGrad", domain=DOMAIN)
        assert made is not None
        types = [None if v is None else v.type for v in node.inputs]
        inputs = [None if t is None else Value(t) for t in types]
        results = operator(node, Op).expand(*inputs)
        others = [i for i, v in enumerate(inputs) if v is not None and i != _GRADIENT]
        body = Graph(
            [v for i in (_GRADIENT, *others) if (v := inputs[i]) is not None],
            results if isinstance(results, tuple) else (results,),
        )
        rows, _, indices = made.inputs
        names = [v.name for v in node.outputs]
        return Node(
            TableUpdate(body=body), [rows, indices, *(operands[i] for i in others)], node.name, node.meta,
            output_names=names,
        ).outputs  # fmt: skip

    return rewrite(graph, rule)


def _is_table(node: Node, gather: Node) -> bool:
    """Return whether the update can be fused: GatherGrad is along axis 0, and all tensors have the table's type or are
    scalars.

    The table must be float32, of known shape, and not empty.
    """
    op = operator(gather, GatherGrad)
    table = gather.output.tensor
    return (
        table.dtype is DType.FLOAT32
        and table.is_static
        and bool(table.nbytes)
        and table.rank is not None
        and table.rank > 0
        and op.axis % table.rank == 0
        and all(
            isinstance(v.type, TensorType) and (v.type.shape == () or v.type == table)
            for v in (*node.operands, *node.outputs)
        )
    )
