"""Optimizer update of a table whose gradient is zero except in the rows that were read, such as an embedding."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch
from graphkit.ir.graph import Graph, Value
from graphkit.ir.subgraph import inline
from graphkit.ir.types import FLOATS, INDICES, TensorType, Type
from graphkit.ops._base import DOMAIN, F, Op, Sample, op
from graphkit.ops.control.loop_state import output_types
from graphkit.ops.evaluate import evaluate
from graphkit.ops.pointwise import scalar_like
from graphkit.ops.tensor.gather import GatherGrad


def _samples() -> tuple[Sample, ...]:
    table, scalar = TensorType("float32", (5, 3)), TensorType("float32", ())
    gradient, weight, velocity, rate = inputs = [Value(t) for t in (table, table, table, scalar)]
    new = F.add(F.mul(velocity, scalar_like(0.5, velocity)), gradient)
    momentum = Graph(inputs, [F.sub(weight, F.mul(rate, new)), new])
    rng = np.random.default_rng(0)
    rows, w, v = (rng.standard_normal(s).astype(np.float32) for s in ((2, 2, 3), (5, 3), (5, 3)))
    lr = np.array(0.125, np.float32)
    repeated = np.array([[1, -1], [1, 3]])
    return (
        Sample(rows, repeated, w, v, lr, body=momentum),
        Sample(rows, repeated.astype(np.int32), w, v, lr, body=momentum),
        Sample(rows[:0], repeated[:0], w, v, lr, body=momentum),
    )


@op
class TableUpdate(Op):
    """Update a table and its optimizer states from a row-sparse gradient. `body` contains pointwise operators.

    rows: [*indices.shape, *table.shape[1:]]. The first input of `body` is the gradient: zeros of the table's shape, to
    which each slice of `rows` is added at its index along axis 0. The other inputs of `body` are `xs`, such as the
    table, its states and the learning rate: each has the table's shape or is a scalar. All outputs have the table's
    shape.
    """

    body: Graph
    domain = DOMAIN
    inputs = ("rows", "indices", "xs*")
    outputs = ("ys*",)
    types = {"rows": FLOATS, "indices": INDICES}
    samples = staticmethod(_samples)

    def infer(self, rows: TensorType, indices: TensorType, *xs: Type) -> tuple[Type, ...]:
        table = self.body.inputs[0].tensor
        if rows.dtype is not table.dtype:
            raise TypeMismatch(f"rows {rows} must have the element type of the table {table}")
        return output_types(self.body, (table, *xs))

    def reference(self, xp: Any, rows: Any, indices: Any, *xs: Any) -> Any:
        table = xp.empty(self.body.inputs[0].tensor.static_shape, dtype=rows.dtype)
        gradient = GatherGrad(axis=0).reference(xp, rows, table, indices)
        return tuple(evaluate(self.body, (gradient, *xs), xp))

    def expand(self, rows: Any, indices: Any, *xs: Any) -> Any:
        table = F.constant_of_shape(
            np.array(self.body.inputs[0].tensor.static_shape, np.int64), value=np.zeros(1, rows.dtype.numpy)
        )
        return tuple(inline(self.body, (F.gather_grad(rows, table, indices, axis=0), *xs)))
