"""Pointwise updates of a table, such as an embedding, whose gradient consists of some of its rows."""

from __future__ import annotations

import math

from graphkit.executor.devices.cpu._base import kernel, native
from graphkit.executor.devices.cpu.pointwise import kernel_of
from graphkit.executor.devices.kernel import Kernel, KernelContext
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.subgraph import inline
from graphkit.ir.types import DType, TensorType
from graphkit.ops._base import DOMAIN, operator
from graphkit.ops.internal.fused import Fused
from graphkit.ops.optim.table_update import TableUpdate

# Elements of a table's tile: large enough that the start of a kernel takes little of the time, small enough for the
# second-level cache.
_TILE = 4096


@kernel("TableUpdate", DOMAIN)
def _table_update(node: Node, context: KernelContext) -> Kernel | None:
    op = operator(node, TableUpdate)
    table = op.body.inputs[0].tensor
    indices = node.inputs[1]
    assert indices is not None
    size, *rest = table.static_shape
    rows = max(1, min(size, _TILE // max(1, math.prod(rest))))
    if table.dtype is not DType.FLOAT32 or not table.static_shape or not math.prod(table.static_shape):
        return None

    def tile(count: int) -> native.Pointwise | None:
        def cut(value: Value) -> Value:
            return value if value.tensor.shape == () else Value(TensorType(value.dtype, (count, *rest)))

        inputs = [cut(v) for v in op.body.inputs]
        results = inline(op.body, inputs)
        stand_in = Node(Fused(body=Graph(inputs, results)), inputs)
        return kernel_of("TableUpdate", stand_in, inputs, results, context._replace(threads=1))

    whole = tile(rows)
    left = tile(size % rows) if size % rows else None
    if whole is None or (size % rows and left is None):
        return None
    dtype = indices.dtype.value
    return native.TableUpdate(
        whole, left, size=size, indices=indices.tensor.static_shape, index_dtype=dtype, threads=context.threads
    )
