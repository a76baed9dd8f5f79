"""Running sums along an axis."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch
from graphkit.ir import dims
from graphkit.ir.graph import Node
from graphkit.ir.types import FLOATS, INDICES, DType, TensorType
from graphkit.ops._base import F, Onnx, Op, Sample, op
from graphkit.ops._known import index_array, known_array, moved
from graphkit.ops._shapes import contiguous, normal_axis

_SUMMABLE = FLOATS | {DType.INT32, DType.INT64, DType.UINT32, DType.UINT64}


@op
class CumSum(Op):
    """Sums of the elements up to each position along `axis` (a 0-d tensor, or one element).

    exclusive: without the element itself; reverse: from the end.
    """

    exclusive: bool = False
    reverse: bool = False
    inputs = ("x", "axis")
    types = {"x": _SUMMABLE, "axis": INDICES}
    onnx = Onnx("CumSum", since=14)
    samples = (
        Sample((5,), np.int64(0)),
        Sample((2, 3), np.int32(1), exclusive=True),
        Sample((2, 3), np.int64(-2), reverse=True),
        Sample((2, 3, 2), np.int64(-1), exclusive=True, reverse=True),
        Sample((0, 3), np.int64(0)),
        Sample(np.array([[1, 2], [3, 4]]), np.int64(0)),
    )

    def infer(self, x: TensorType, axis: TensorType) -> TensorType:
        if axis.shape is not None and any(d != 1 for d in axis.shape if dims.is_static(d)):
            raise TypeMismatch(f"the axis of CumSum is one element, not {axis}")
        if x.shape is not None and axis.constants is not None:
            normal_axis(axis.constants[0], len(x.shape))
        return TensorType(x.dtype, x.shape, moved(self.reference, known_array(x), index_array(axis)))

    def reference(self, xp: Any, x: Any, axis: Any) -> Any:
        where = normal_axis(int(axis.reshape(())), x.ndim)
        rows = xp.flip(x, axis=where) if self.reverse else x
        total = xp.cumsum(rows, axis=where, dtype=x.dtype)
        if self.exclusive:
            before = (slice(None),) * where
            first = xp.zeros_like(total[(*before, slice(0, 1))])
            total = xp.concatenate((first, total[(*before, slice(0, -1))]), axis=where)
        return contiguous(xp, xp.flip(total, axis=where) if self.reverse else total)

    def grad(self, node: Node, dy: Any) -> Any:
        return F.cum_sum(dy, node.inputs[1], exclusive=self.exclusive, reverse=not self.reverse), None
