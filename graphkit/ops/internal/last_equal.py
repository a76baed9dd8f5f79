"""LastEqual: which of several equal indices is the last."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch
from graphkit.ir.types import TensorType
from graphkit.ops._base import DOMAIN, F, Op, Sample, op
from graphkit.ops.axes import INT64


@op
class LastEqual(Op):
    """Return for each index the last position with the same index.

    Row-sparse updates use it: of the positions that read one row, the last one updates the row.

    Attributes:
        bound: The indices are from 0 to bound - 1.

    Operands:
        indices: int64 [K].

    Returns:
        int64 [K].
    """

    bound: int
    domain = DOMAIN
    composite = True
    inputs = ("indices",)
    types = {"indices": INT64}
    samples = lambda: (
        Sample(np.array([3, 0, 3, 2, 0]), bound=5),
        Sample(np.array([1, 1, 1]), bound=2),
        Sample(np.zeros(0, np.int64), bound=3),
    )

    def infer(self, indices: TensorType) -> TensorType:
        if indices.shape is not None and len(indices.shape) != 1:
            raise TypeMismatch(f"the indices must be a vector, not {indices}")
        return TensorType(indices.dtype, indices.shape)

    def reference(self, xp: Any, indices: Any) -> Any:
        last = xp.zeros((self.bound,), np.int64)
        last[indices] = xp.arange(len(indices))
        return xp.take(last, indices)

    def expand(self, indices: Any) -> Any:
        places = F.range(np.array(0), F.reshape(F.shape(indices), np.array([], np.int64)), np.array(1))
        none = F.constant(value=np.full(self.bound, -1, np.int64))
        return F.gather(F.scatter_elements(none, indices, places, axis=0, reduction="max"), indices, axis=0)
