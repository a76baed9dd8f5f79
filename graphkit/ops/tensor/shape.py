"""Shapes as data, and the operators that only reinterpret them: the bytes stay where they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch
from graphkit.ir import dims
from graphkit.ir.dims import Dim
from graphkit.ir.graph import Node
from graphkit.ir.types import ANY, MAX_KNOWN_ELEMENTS, DType, TensorType, Type
from graphkit.ops._base import F, Onnx, Op, Sample, op
from graphkit.ops.axes import INT64, fresh_shape, i64, length_of, normal_axes, reshape_like, shape_text


@op
class Identity(Op):
    """Return x unchanged: a tensor, a sequence or an optional."""

    inputs = ("x",)
    views = ((0, 0),)
    onnx = Onnx("Identity", since=25)
    samples = lambda: (Sample((2, 3)), Sample(()), Sample((0, 2)))

    def infer(self, x: Type) -> Type:
        return x

    def reference(self, xp: Any, x: Any) -> Any:
        return x

    def grad(self, node: Node, dy: Any) -> Any:
        return F.identity(dy)


@op
class Shape(Op):
    """The dimensions [start, end) of x as an int64 vector; negative bounds count from the back, all are clamped."""

    start: int = 0
    end: int | None = None
    inputs = ("x",)
    types = {"x": ANY}
    shape_only = ("x",)
    onnx = Onnx("Shape", since=25)
    symbolic_inference = True
    samples = lambda: (
        Sample((2, 3, 4)),
        Sample(()),
        Sample((0, 3)),
        Sample((2, 3, 4), start=1),
        Sample((2, 3, 4), start=-2, end=-1),
        Sample((2, 3, 4), start=-9, end=9),
        Sample((2, 3, 4), start=2, end=1),
    )

    def infer(self, x: TensorType) -> TensorType:
        if x.shape is None:
            return TensorType(DType.INT64, [dims.fresh()])
        known = self._bounded(x.shape)
        return TensorType(DType.INT64, [len(known)], known if len(known) <= MAX_KNOWN_ELEMENTS else None)

    def _bounded(self, shape: Sequence[Any]) -> Sequence[Any]:
        # Python's slices clamp as the standard requires.
        return tuple(shape)[self.start : self.end]

    def reference(self, xp: Any, x: Any) -> Any:
        return xp.array(self._bounded(x.shape), dtype=np.int64)


@op
class Size(Op):
    """The number of elements of x, a 0-d int64 tensor."""

    inputs = ("x",)
    types = {"x": ANY}
    shape_only = ("x",)
    onnx = Onnx("Size", since=25)
    samples = lambda: (Sample((2, 3)), Sample(()), Sample((0, 2)))

    def infer(self, x: TensorType) -> TensorType:
        return TensorType(DType.INT64, (), None if x.shape is None else (x.size,))

    def reference(self, xp: Any, x: Any) -> Any:
        return xp.array(x.size, dtype=np.int64)


def reshaped(source: tuple[Dim, ...] | None, wanted: Sequence[Dim], allowzero: bool) -> tuple[Dim, ...]:
    """Return the dimensions after Reshape: 0 copies (unless `allowzero`), one -1 is computed from the rest.

    Works on integers and on symbolic dimensions alike; dimensions on both sides cancel before -1 is computed, so it is
    known even if the batch is empty or symbolic. Raises TypeMismatch where sizes cannot agree.
    """

    def misfit(why: str) -> TypeMismatch:
        return TypeMismatch(f"shape {shape_text(source)} cannot be reshaped to {shape_text(wanted)}: {why}")

    result: list[Dim] = []
    open_axis: int | None = None
    for axis, dim in enumerate(wanted):
        if dims.is_static(dim) and dim < 0:
            if dim != -1 or open_axis is not None:
                raise misfit("only one dimension may be -1, and none may be smaller")
            open_axis = axis
        if dim == 0 and not allowzero:
            if source is not None and axis >= len(source):
                raise misfit(f"there is no dimension {axis} to copy")
            dim = dims.fresh() if source is None else source[axis]
        elif not allowzero and (source is None or axis >= len(source) or dim != source[axis]):
            dims.may_reach(dim, 1)  # record that it is at least 1, because 0 would copy a dimension
        result.append(dim)
    if source is None:
        return tuple(dims.fresh() if axis == open_axis else d for axis, d in enumerate(result))
    if open_axis is None:
        if not dims.may_equal(dims.product(source), dims.product(result)):
            raise misfit(f"{dims.product(source)} and {dims.product(result)} elements")
        return tuple(result)
    left, right = list(source), result[:open_axis] + result[open_axis + 1 :]
    for dim in tuple(right):
        if dim in left:
            left.remove(dim)
            right.remove(dim)
    have, taken = dims.product(left), dims.product(right)
    if not dims.may_reach(taken, 1) or not dims.may_equal(dims.mod(have, taken), 0):
        raise misfit(f"{have} elements are not divisible by {taken}")
    result[open_axis] = dims.floordiv(have, taken)
    return tuple(result)


@op
class Reshape(Op):
    """Give x another shape; elements keep their row-major order.

    shape: int64 vector. 0 copies x's dimension (unless `allowzero`); one -1 is computed from the other dimensions.
    """

    allowzero: bool = False
    inputs = ("x", "shape")
    types = {"x": ANY, "shape": INT64}
    views = ((0, 0),)
    symbolic_inference = True
    onnx = Onnx("Reshape", since=25)
    samples = lambda: (
        Sample((2, 6), i64(3, 4)),
        Sample((2, 6), i64(-1)),
        Sample((2, 3, 4), i64(0, -1)),
        Sample((2, 3, 4), i64(4, 0, -1, 1)),
        Sample((1,), np.zeros(0, np.int64)),
        Sample((), i64(1, 1)),
        Sample((0, 3), i64(0, 7), allowzero=True),
        Sample((0, 3, 4), i64(0, 12)),
    )

    def infer(self, x: TensorType, shape: TensorType) -> TensorType:
        if shape.value is not None:
            return TensorType(x.dtype, reshaped(x.shape, shape.value, self.allowzero), x.value)
        rank = length_of(shape)
        if rank == 1 and x.shape is not None:
            return TensorType(x.dtype, [x.size], x.value)
        return TensorType(x.dtype, fresh_shape(rank))

    def reference(self, xp: Any, x: Any, shape: Any) -> Any:
        return x.reshape(reshaped(x.shape, shape.tolist(), self.allowzero))

    def grad(self, node: Node, dy: Any) -> Any:
        return reshape_like(dy, node.operands[0]), None


@op
class Flatten(Op):
    """Reshape x to a matrix: the dimensions before `axis` form its rows, the others its columns."""

    axis: int = 1
    inputs = ("x",)
    types = {"x": ANY}
    views = ((0, 0),)
    onnx = Onnx("Flatten", since=25)
    symbolic_inference = True
    samples = lambda: (
        *(Sample((2, 3, 4), axis=axis) for axis in (0, 1, 3, -1, -3)),
        Sample((5,)),
        Sample((), axis=0),
        Sample((0, 2), axis=0),
    )

    def infer(self, x: TensorType) -> TensorType:
        if x.shape is None:
            return TensorType(x.dtype, fresh_shape(2))
        return TensorType(x.dtype, self._matrix(x.shape), x.value)

    def _matrix(self, shape: tuple[Dim, ...]) -> tuple[Dim, Dim]:
        rank = len(shape)
        if not -rank <= self.axis <= rank:
            raise TypeMismatch(f"axis {self.axis} is outside [{-rank}, {rank}]")
        split = self.axis + rank if self.axis < 0 else self.axis
        return dims.product(shape[:split]), dims.product(shape[split:])

    def reference(self, xp: Any, x: Any) -> Any:
        return x.reshape(self._matrix(x.shape))

    def grad(self, node: Node, dy: Any) -> Any:
        return reshape_like(dy, node.operands[0])


@op
class Squeeze(Op):
    """Remove the given axes, whose dimensions must be 1; without `axes`, remove all dimensions of 1."""

    inputs = ("x", "axes?")
    types = {"x": ANY, "axes": INT64}
    views = ((0, 0),)
    onnx = Onnx("Squeeze", since=25)
    symbolic_inference = True
    samples = lambda: (
        Sample((1, 3, 1, 2), i64(0, 2)),
        Sample((1, 3, 1), i64(-1)),
        Sample((1, 3, 1)),
        Sample((1, 1), i64(-1, 0)),
        Sample((1, 0), i64(0)),
        Sample((2, 3)),
    )

    def is_batchwise(self, inputs: Sequence[Any], batched: Sequence[bool]) -> bool:
        # Without axes, a batch of one example would lose its batch axis.
        return self._has_examples(("x",), inputs, batched) and len(inputs) > 1 and inputs[1] is not None

    def infer(self, x: TensorType, axes: TensorType | None = None) -> TensorType:
        if x.shape is None:
            return TensorType(x.dtype, None)
        if axes is None:
            # A symbolic dimension may turn out to be 1, and would then be removed.
            kept = [d for d in x.shape if d != 1] if x.is_static else None
            return TensorType(x.dtype, kept, x.value)
        if axes.constants is None:
            count = length_of(axes)
            return TensorType(x.dtype, None if count is None else fresh_shape(len(x.shape) - count))
        drop = normal_axes(axes.constants, len(x.shape))
        for axis in drop:
            if not dims.may_equal(x.shape[axis], 1):
                raise TypeMismatch(f"axis {axis} of shape {shape_text(x.shape)} is not 1 and cannot be squeezed")
        return TensorType(x.dtype, [d for axis, d in enumerate(x.shape) if axis not in drop], x.value)

    def reference(self, xp: Any, x: Any, axes: Any = None) -> Any:
        return xp.squeeze(x, axis=None if axes is None else tuple(axes.tolist()))

    def grad(self, node: Node, dy: Any) -> Any:
        if len(node.inputs) == 2:
            return F.unsqueeze(dy, node.operands[1]), None
        return reshape_like(dy, node.operands[0])


@op
class Unsqueeze(Op):
    """Insert a dimension of 1 at each of `axes`, which are positions in the result."""

    inputs = ("x", "axes")
    types = {"x": ANY, "axes": INT64}
    views = ((0, 0),)
    onnx = Onnx("Unsqueeze", since=25)
    symbolic_inference = True
    samples = lambda: (
        Sample((2, 3), i64(0)),
        Sample((2, 3), i64(-1, 1)),
        Sample((), i64(0)),
        Sample((0, 2), i64(2, 0)),
    )

    def infer(self, x: TensorType, axes: TensorType) -> TensorType:
        count = length_of(axes)
        if x.shape is None or count is None:
            return TensorType(x.dtype, None)
        rank = len(x.shape) + count
        if axes.constants is None:
            return TensorType(x.dtype, fresh_shape(rank), None)
        added = normal_axes(axes.constants, rank)
        source = iter(x.shape)
        return TensorType(x.dtype, [1 if axis in added else next(source) for axis in range(rank)], x.value)

    def reference(self, xp: Any, x: Any, axes: Any) -> Any:
        return xp.expand_dims(x, tuple(axes.tolist()))

    def grad(self, node: Node, dy: Any) -> Any:
        return F.squeeze(dy, node.inputs[1]), None
