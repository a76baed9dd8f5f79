"""Tensors made from a few numbers: constants of a shape, ranges, one-hot rows, identity matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch
from graphkit.ir import dims
from graphkit.ir.bounds import at_least_zero
from graphkit.ir.dims import Dim
from graphkit.ir.graph import Node
from graphkit.ir.tensor import Tensor
from graphkit.ir.types import ANY, FLOATS, MAX_KNOWN_ELEMENTS, NUMERIC, DType, TensorType, type_of_array
from graphkit.ops._base import F, Onnx, Op, Rand, Sample, op
from graphkit.ops.axes import INT64, fresh_shape, i64, length_of, reshape_like
from graphkit.ops.pointwise import scalar_like


@op
class ConstantOfShape(Op):
    """A tensor of the given shape (an int64 vector), filled with the one element of `value`; default: float32 0."""

    value: Tensor | None = None
    inputs = ("shape",)
    types = {"shape": INT64}
    onnx = Onnx("ConstantOfShape", since=25)
    symbolic_inference = True
    samples = lambda: (
        Sample(i64(2, 3)),
        Sample(i64(2, 0)),
        Sample(np.zeros(0, np.int64)),
        Sample(i64(3), value=np.array([7], np.int64)),
        Sample(i64(2, 2), value=np.array([True])),
        Sample(i64(2), value=np.array([-0.5], np.float64)),
    )

    def _element(self) -> np.ndarray:
        if self.value is None:
            return np.zeros((), np.float32)
        if self.value.array.size != 1:
            raise TypeMismatch(f"ConstantOfShape: value has {self.value.array.size} elements, one is expected")
        return self.value.array.reshape(())

    def infer(self, shape: TensorType) -> TensorType:
        element = type_of_array(self._element())
        if shape.value is None:
            return TensorType(element.dtype, fresh_shape(length_of(shape)))
        if any(dims.is_static(d) and d < 0 for d in shape.value):
            raise TypeMismatch(f"the dimensions of a shape must not be negative: {shape}")
        size = dims.product(shape.value)
        known = None
        if element.value is not None and dims.is_static(size) and size <= MAX_KNOWN_ELEMENTS:
            known = element.value * size
        return TensorType(element.dtype, shape.value, known)

    def reference(self, xp: Any, shape: Any) -> Any:
        element = self._element()
        return xp.full(tuple(shape.tolist()), element[()], dtype=element.dtype)

    def grad(self, node: Node, dy: Any) -> Any:
        return None


@op
class Range(Op):
    """start, start + delta, ... below `limit` (above it for a negative delta).

    The result has max(ceil((limit - start) / delta), 0) elements. start, limit, delta: 0-d tensors of one dtype. For
    float16 and bfloat16, the number of elements and the elements are computed in float32.
    """

    stash_type: int = 1
    inputs = ("start", "limit", "delta")
    types = {"start": FLOATS | {DType.INT16, DType.INT32, DType.INT64}, "limit": "start", "delta": "start"}
    symbolic_inference = True
    onnx = Onnx("Range", since=27)
    samples = lambda: (
        Sample(np.int64(3), np.int64(9), np.int64(3)),
        Sample(np.int64(10), np.int64(4), np.int64(-2)),
        Sample(np.int32(1), np.int32(1), np.int32(1)),
        # grad=False: finite differences may change the length of the result.
        Sample(np.float32(0.25), np.float32(2.0), np.float32(0.5), grad=False),
        Sample(np.float32(1.0), np.float32(-1.0), np.float32(0.5), grad=False),
    )

    def infer(self, start: TensorType, limit: TensorType, delta: TensorType) -> TensorType:
        for operand in (start, limit, delta):
            if operand.shape is not None and any(d != 1 for d in operand.shape if dims.is_static(d)):
                raise TypeMismatch(f"the operands of Range must be scalars, not {operand}")
        if start.value is None or limit.value is None or delta.constants is None:
            return TensorType(start.dtype, [dims.fresh()])
        first, step = start.value[0], delta.constants[0]
        if step == 0:
            raise TypeMismatch("delta must not be 0")
        distance = limit.value[0] - first if step > 0 else first - limit.value[0]
        count = at_least_zero(dims.ceildiv(distance, abs(step)))
        value: tuple[Dim, ...] | None = None
        if dims.is_static(count) and count <= MAX_KNOWN_ELEMENTS:
            value = tuple(first + i * step for i in range(count))
        return TensorType(start.dtype, [count], value)

    def reference(self, xp: Any, start: Any, limit: Any, delta: Any) -> Any:
        first, last, step = start.reshape(()), limit.reshape(()), delta.reshape(())
        if step == 0:
            raise TypeMismatch("delta must not be 0")
        if first.dtype.kind in "iu":
            a, b, s = int(first), int(last), int(step)
            count = -((a - b) // s) if s > 0 else -((b - a) // -s)
        else:
            count = int(np.ceil((float(last) - float(first)) / float(step)))
        return first + xp.arange(max(count, 0)).astype(first.dtype) * step

    def grad(self, node: Node, dy: Any) -> Any:
        start, _, delta = node.inputs
        assert start is not None
        assert delta is not None
        steps = F.cast(F.range(np.int64(0), F.size(node.output), np.int64(1)), to=dy.dtype)
        totals = [F.reduce_sum(g, keepdims=False) for g in (dy, F.mul(dy, steps))]
        first, step = (reshape_like(g, v) for g, v in zip(totals, (start, delta), strict=True))
        return first, None, step


@op
class EyeLike(Op):
    """A matrix of x's shape with ones on diagonal `k`, else zeros.

    k: 0 is the main diagonal, positive ones are above it. `dtype` defaults to x's.
    """

    dtype: DType | None = None
    k: int = 0
    inputs = ("x",)
    types = {"x": NUMERIC | {DType.BOOL}}
    shape_only = ("x",)
    onnx = Onnx("EyeLike", since=22)
    symbolic_inference = True
    samples = lambda: (Sample((3, 4)), Sample((3, 2), k=1), Sample((2, 3), k=-1, dtype=DType.INT64), Sample((0, 2)))

    def infer(self, x: TensorType) -> TensorType:
        if x.rank not in (None, 2):
            raise TypeMismatch(f"EyeLike takes a matrix, not {x}")
        return TensorType(self.dtype or x.dtype, fresh_shape(2) if x.shape is None else x.shape)

    def reference(self, xp: Any, x: Any) -> Any:
        dtype = x.dtype if self.dtype is None else self.dtype.numpy
        return xp.eye(*x.shape, k=self.k, dtype=np.float32).astype(dtype)

    def grad(self, node: Node, dy: Any) -> Any:
        return None


@op
class OneHot(Op):
    """`values[1]` where the position along the new axis equals the index, `values[0]` elsewhere.

    indices: any numeric tensor, in [-depth, depth - 1] (others give rows of values[0]); depth: one element; values:
    [off, on], of any dtype. The result has the dtype of `values`.
    """

    axis: int = -1
    inputs = ("indices", "depth", "values")
    types = {"indices": NUMERIC, "depth": NUMERIC, "values": ANY}
    onnx = Onnx("OneHot", since=28)
    symbolic_inference = True
    samples = lambda: (
        Sample(i64(0, 2, 1), np.int64(3), Rand((2,))),
        Sample(i64(0, -2, 5), i64(3), Rand((2,)), axis=0),
        Sample(np.array([[1, 0], [-3, 3]]), np.int64(3), Rand((2,)), axis=1),
        Sample(np.array([[1, 0], [-3, 2]]), np.int64(3), Rand((2,)), axis=-2),
        # onnx's shape inference refuses 0-d indices.
        Sample(np.array(1), np.int64(2), Rand((2,)), onnx=False),
        Sample(np.array([1.0, 0.0], np.float32), np.float32(2), np.array([5, 9])),
        Sample(np.zeros((0, 2), np.int64), np.int64(4), Rand((2,))),
    )

    def _axis(self, rank: int) -> int:
        if not -rank - 1 <= self.axis <= rank:
            raise TypeMismatch(f"axis {self.axis} is outside [{-rank - 1}, {rank}]")
        return self.axis + rank + 1 if self.axis < 0 else self.axis

    def infer(self, indices: TensorType, depth: TensorType, values: TensorType) -> TensorType:
        if values.shape is not None and (len(values.shape) != 1 or not dims.may_equal(values.shape[0], 2)):
            raise TypeMismatch(f"OneHot's values must be [off, on], not {values}")
        if indices.shape is None:
            return TensorType(values.dtype, None)
        axis = self._axis(len(indices.shape))
        size = dims.fresh() if depth.value is None else depth.value[0]
        return TensorType(values.dtype, [*indices.shape[:axis], size, *indices.shape[axis:]])

    def reference(self, xp: Any, indices: Any, depth: Any, values: Any) -> Any:
        axis = self._axis(indices.ndim)
        size = int(depth.reshape(()))
        whole = indices.astype(np.int64)
        whole = xp.expand_dims(xp.where(whole < 0, whole + size, whole), axis)
        classes = xp.arange(size).reshape((-1,) + (1,) * (indices.ndim - axis))
        return xp.where(whole == classes, values[1:], values[:1])

    def grad(self, node: Node, dy: Any) -> Any:
        indices, depth, _ = node.operands
        on = F.one_hot(indices, depth, np.array([False, True]), axis=self.axis)
        zero = scalar_like(0.0, dy)
        sums = [F.reduce_sum(F.where(on, *pair), keepdims=False) for pair in ((zero, dy), (dy, zero))]
        return None, None, F.concat(*(F.reshape(s, i64(1)) for s in sums), axis=0)
