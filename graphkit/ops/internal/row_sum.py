"""All-reduce of row-sparse arrays as two operators, start and wait: only rows that some rank has are sent."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch
from graphkit.ir import dims
from graphkit.ir.types import ANY, NUMERIC, DType, TensorType
from graphkit.ops._base import DOMAIN, F, Op, Sample, op
from graphkit.ops.axes import INT64


def _check(indices: TensorType, rows: TensorType) -> None:
    """Raise TypeMismatch unless the operands are a vector of indices, and one row per index."""
    if indices.shape is not None and len(indices.shape) != 1:
        raise TypeMismatch(f"indices of rows must be a vector, not {indices}")
    if rows.shape is not None and not rows.shape:
        raise TypeMismatch(f"{rows} has no rows")
    if indices.shape and rows.shape and not dims.may_equal(indices.shape[0], rows.shape[0]):
        raise TypeMismatch(f"{rows} must have one row for each of {indices}")


@op
class RowSparseAllReduceStart(Op):
    """Start an all-reduce of a row-sparse array; RowSparseAllReduceWait returns the sum.

    All ranks use the same `key`. indices: int64 [K], the rows that are not 0, each once; rows: [K, ...], their values.
    K may differ between ranks. The result is the number 0, int64 []; pass it to RowSparseAllReduceWait as `started`.
    """

    former_names = ("RowSumStart",)
    key: str
    domain = DOMAIN
    inputs = ("indices", "rows")
    outputs = ("started",)
    types = {"indices": INT64, "rows": NUMERIC}
    collective = True
    samples = lambda: (
        Sample(np.array([4, 0]), (2, 3), key="a", onnx=False),
        Sample(np.zeros(0, np.int64), (0, 2, 2), key="b", onnx=False),
    )

    def infer(self, indices: TensorType, rows: TensorType) -> TensorType:
        _check(indices, rows)
        return TensorType(DType.INT64, ())

    def reference(self, xp: Any, indices: Any, rows: Any) -> Any:
        return xp.zeros((), np.int64)

    def expand(self, indices: Any, rows: Any) -> Any:
        return F.constant(value=np.zeros((), np.int64))


@op
class RowSparseAllReduceWait(Op):
    """Wait for the all-reduce that RowSparseAllReduceStart has started with the same operands and key.

    Output `all_indices`, int64 [M], contains the indices of all ranks, each once, in ascending order. Output `sums`,
    [M, ...], contains their rows. If several ranks have a row, it is summed in the order of the ranks. The operator
    runs after `started`, whose value is not read. The numpy reference and an exported ONNX file sum over this process
    only.
    """

    former_names = ("RowSumWait",)
    key: str
    domain = DOMAIN
    inputs = ("indices", "rows", "started*")
    outputs = ("all_indices", "sums")
    types = {"indices": INT64, "rows": NUMERIC, "started": ANY}
    shape_only = ("started",)
    collective = True
    samples = lambda: (
        Sample(np.array([4, 0]), (2, 3), (), key="a", onnx=False),
        Sample(np.zeros(0, np.int64), (0, 2, 2), (), (2,), key="b", onnx=False),
    )

    def infer(self, indices: TensorType, rows: TensorType, *started: TensorType) -> tuple[TensorType, TensorType]:
        _check(indices, rows)
        count = dims.fresh()
        shape = None if rows.shape is None else (count, *rows.shape[1:])
        return TensorType(DType.INT64, (count,)), TensorType(rows.dtype, shape)

    def reference(self, xp: Any, indices: Any, rows: Any, *started: Any) -> tuple[Any, Any]:
        order = xp.argsort(indices)
        return xp.take(indices, order), xp.take(rows, order, axis=0)

    def expand(self, indices: Any, rows: Any, *started: Any) -> tuple[Any, Any]:
        _, order = F.top_k(indices, F.shape(indices), axis=0, largest=False)
        return F.gather(indices, order, axis=0), F.gather(rows, order, axis=0)
