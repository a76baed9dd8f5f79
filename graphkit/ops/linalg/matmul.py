"""Matrix products: MatMul (numpy's rules, batches broadcast) and Gemm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch, UnsupportedError
from graphkit.ir import dims
from graphkit.ir.dims import Dim
from graphkit.ir.graph import Node
from graphkit.ir.types import FLOATS, DType, TensorType, broadcast_shapes
from graphkit.ops._base import F, Onnx, Op, Sample, op
from graphkit.ops.pointwise import scalar_like, unbroadcast

_OPERANDS = FLOATS | {DType.INT32, DType.INT64, DType.UINT32, DType.UINT64}
_LEFT = np.arange(6, dtype=np.int32).reshape(2, 3)


@op
class MatMul(Op):
    """Matrix product with numpy's rules: [..., m, k] @ [..., k, n] -> [..., m, n]; leading axes broadcast.

    A 1-d operand is taken as a row (left) or a column (right); the added axis is dropped from the result. Elements are
    floats, or integers of 32 or 64 bits (which wrap around).
    """

    inputs = ("a", "b")
    types = {"a": _OPERANDS, "b": "a"}
    symbolic_inference = True
    onnx = Onnx("MatMul", since=13)
    samples = lambda: (
        Sample((2, 3), (3, 4)),
        Sample((2, 3), (3, 1)),
        Sample((5, 2, 3), (3, 1)),
        Sample((5, 2, 3), (3, 4)),
        Sample((2, 3), (5, 3, 4)),
        Sample((2, 1, 2, 3), (4, 3, 2)),
        Sample((3,), (3,)),
        Sample((3,), (3, 2)),
        Sample((3,), (4, 3, 2)),
        Sample((2, 3), (3,)),
        Sample((4, 2, 3), (3,)),
        Sample((0, 3), (3, 2)),
        Sample((2, 0), (0, 3)),
        Sample(_LEFT, _LEFT.T.copy()),
        Sample(_LEFT.astype(np.int64), _LEFT.T.astype(np.int64)),
    )

    def is_batchwise(self, inputs: Sequence[Any], batched: Sequence[bool]) -> bool:
        a, b = (len(t.known_shape) for t in inputs)
        return batched[0] and ((not batched[1] and a >= 2 >= b) or (batched[1] and a == b >= 3))

    def multiply_adds(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Dim:
        return dims.product((*outputs[0].known_shape, inputs[0].known_shape[-1]))

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        if a.shape is None or b.shape is None:
            return TensorType(a.dtype)
        if not a.shape or not b.shape:
            raise TypeMismatch(f"a matrix product takes no 0-d operand: {a} and {b}")
        left = a.shape if len(a.shape) > 1 else (1, *a.shape)
        right = b.shape if len(b.shape) > 1 else (*b.shape, 1)
        if not dims.may_equal(left[-1], right[-2]):
            raise TypeMismatch(f"the inner dimensions of {a} and {b} differ")
        batch = broadcast_shapes([left[:-2], right[:-2]])
        assert batch is not None
        rows = left[-2:-1] if len(a.shape) > 1 else ()
        columns = right[-1:] if len(b.shape) > 1 else ()
        return TensorType(a.dtype, (*batch, *rows, *columns))

    def reference(self, xp: Any, a: Any, b: Any) -> Any:
        if a.ndim > 2 and b.ndim == 2:
            # numpy multiplies each batch on its own. If batches have few rows, one product of all rows is much faster.
            rows = a.reshape(math.prod(a.shape[:-1]), a.shape[-1])
            return xp.matmul(rows, b).reshape(*a.shape[:-1], b.shape[-1])
        return xp.matmul(a, b)

    def grad(self, node: Node, dy: Any) -> Any:
        operands: Any = node.inputs
        a, b = operands
        if a.rank is None or b.rank is None:
            raise UnsupportedError(f"{node.describe()}: the gradient of a matrix product needs operands of known rank")
        if a.rank == b.rank == 2:
            return F.gemm(dy, b, transB=True), _summed_over_rows(a, dy)
        if a.rank == b.rank == 1:
            return F.mul(dy, b), F.mul(dy, a)
        from graphkit.ops.linalg.matrices import transposed

        row, column = a, b
        if a.rank == 1:
            row, dy = F.unsqueeze(a, np.array([0])), F.unsqueeze(dy, np.array([-2]))
        if b.rank == 1:
            column, dy = F.unsqueeze(b, np.array([1])), F.unsqueeze(dy, np.array([-1]))
        da = F.mat_mul(dy, transposed(column))
        if column.rank == 2:
            # One product over all batches at once, instead of a batch of products to be summed.
            db = _summed_over_rows(F.flatten(row, axis=-1), F.flatten(dy, axis=-1))
        else:
            db = F.mat_mul(transposed(row), dy)
        if b.rank == 1:
            db = F.squeeze(db, np.array([-1]))
        return unbroadcast(da, a), unbroadcast(db, b)


def _summed_over_rows(a: Any, dy: Any, alpha: float = 1.0) -> Any:
    """alpha * a^T @ dy: [k, n]. a: [m, k]; dy: [m, n]. One column: dy^T @ a, which reads a in memory order."""
    if dy.shape is not None and dy.shape[1] == 1:
        return F.transpose(F.gemm(dy, a, alpha=alpha, transA=True), perm=(1, 0))
    return F.gemm(a, dy, alpha=alpha, transA=True)


@op
class Gemm(Op):
    """alpha * op(a) @ op(b) + beta * c; op transposes a if transA is set, and b if transB is set.

    a: [m, k] ([k, m] with transA); b: [k, n] ([n, k] with transB); c broadcasts to [m, n] and is 0 when absent.
    """

    alpha: float = 1.0
    beta: float = 1.0
    transA: bool = False  # noqa: N815 (ONNX's names)
    transB: bool = False  # noqa: N815
    inputs = ("a", "b", "c?")
    types = {"a": _OPERANDS, "b": "a", "c": "a"}
    onnx = Onnx("Gemm", since=13)
    symbolic_inference = True
    samples = lambda: (
        Sample((2, 3), (3, 4)),
        Sample((2, 3), (3, 4), (4,)),
        Sample((3, 2), (3, 4), (2, 1), transA=True, alpha=0.5, dtypes=FLOATS),
        Sample((2, 3), (4, 3), (2, 4), transB=True, beta=0.25, dtypes=FLOATS),
        Sample((3, 2), (4, 3), (), transA=True, transB=True, alpha=1.5, beta=-2.0, dtypes=FLOATS),
        Sample((0, 3), (3, 4), (4,)),
        Sample((2, 0), (0, 4), (1, 4)),
        # ONNX Runtime has no integer Gemm; onnx's evaluator has.
        Sample(_LEFT, _LEFT, np.ones((1, 2), np.int32), transB=True),
    )

    def is_batchwise(self, inputs: Sequence[Any], batched: Sequence[bool]) -> bool:
        c = inputs[2] if len(inputs) > 2 else None
        row = c is None or len(c.known_shape) < 2 or c.known_shape[0] == 1
        return not self.transA and row and self._has_examples(("a",), inputs, batched)

    def multiply_adds(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Dim:
        return dims.product((*outputs[0].known_shape, inputs[0].known_shape[0 if self.transA else 1]))

    def infer(self, a: TensorType, b: TensorType, c: TensorType | None = None) -> TensorType:
        for operand in (a, b):
            if operand.shape is not None and len(operand.shape) != 2:
                raise TypeMismatch(f"Gemm takes matrices, not {operand}")
        m, k = (dims.fresh(), dims.fresh()) if a.shape is None else a.shape[:: -1 if self.transA else 1]
        inner, n = (k, dims.fresh()) if b.shape is None else b.shape[:: -1 if self.transB else 1]
        if a.shape is not None and not dims.may_equal(k, inner):
            flags = f"transA={int(self.transA)}, transB={int(self.transB)}"
            raise TypeMismatch(f"the inner dimensions of {a} and {b} differ ({flags})")
        if c is not None and c.shape is not None:
            joint = broadcast_shapes([(m, n), c.shape])
            if joint is None or len(joint) != 2 or not all(map(dims.may_equal, joint, (m, n))):
                raise TypeMismatch(f"{c} does not broadcast to [{m}, {n}]")
        return TensorType(a.dtype, (m, n))

    def reference(self, xp: Any, a: Any, b: Any, c: Any = None) -> Any:
        y = xp.matmul(a.T if self.transA else a, b.T if self.transB else b)
        if self.alpha != 1.0:
            y = (y * self.alpha).astype(a.dtype)
        if c is not None and self.beta != 0.0:
            y = y + (c if self.beta == 1.0 else (c * self.beta).astype(a.dtype))
        return y

    def grad(self, node: Node, dy: Any) -> Any:
        operands: Any = node.inputs
        a, b = operands[:2]
        alpha = self.alpha
        if self.transA:
            da = F.gemm(b, dy, alpha=alpha, transA=self.transB, transB=True)
        else:
            da = F.gemm(dy, b, alpha=alpha, transB=not self.transB)
        if self.transB:
            db = F.gemm(dy, a, alpha=alpha, transA=True, transB=self.transA)
        elif self.transA:
            db = F.gemm(a, dy, alpha=alpha)
        else:
            db = _summed_over_rows(a, dy, alpha)
        if len(operands) < 3:
            return da, db
        dc = dy if self.beta == 1.0 else F.mul(dy, scalar_like(self.beta, dy))
        return da, db, unbroadcast(dc, operands[2])
