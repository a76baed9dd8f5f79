"""Elements chosen by conditions and positions: Where, Compress, NonZero, Trilu."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch
from graphkit.ir import dims
from graphkit.ir.dims import Dim
from graphkit.ir.graph import Node
from graphkit.ir.types import ANY, BOOLS, NUMERIC, DType, TensorType, broadcast_shapes
from graphkit.ops._base import F, Onnx, Op, Sample, op
from graphkit.ops.axes import INT64, blank, i64, length_of, normal_axis, reshape_like, shape_text
from graphkit.ops.known_elements import decided, known_array, moved
from graphkit.ops.pointwise import scalar_like, unbroadcast


@op
class Where(Op):
    """a where the condition is true, b elsewhere, with broadcasting. condition: bool; a, b: tensors of one dtype."""

    inputs = ("condition", "a", "b")
    types = {"condition": BOOLS, "a": ANY, "b": "a"}
    pointwise = True
    inplace = ((1, 0), (2, 0))
    onnx = Onnx("Where", since=16)
    symbolic_inference = True
    samples = lambda: (
        Sample(np.array([[True, False, True], [False, False, True]]), (2, 3), (2, 3)),
        Sample(np.array([True, False, True]), (2, 3), ()),
        Sample(np.array([[True], [False]]), (3,), (2, 1)),
        Sample(np.array(True), (2,), (0, 1)),
        Sample(np.array([True, False]), np.array(["a", "b"], object), np.array(["c"], object)),
    )

    def infer(self, condition: TensorType, a: TensorType, b: TensorType) -> TensorType:
        shape = broadcast_shapes([condition.shape, a.shape, b.shape])
        return TensorType(a.dtype, shape, decided(_chosen, [condition, a, b]))

    def reference(self, xp: Any, condition: Any, a: Any, b: Any) -> Any:
        return xp.where(condition, a, b)

    def grad(self, node: Node, dy: Any) -> Any:
        condition, a, b = node.operands
        zero = scalar_like(0.0, dy)
        return None, unbroadcast(F.where(condition, dy, zero), a), unbroadcast(F.where(condition, zero, dy), b)


def _chosen(condition: Dim, a: Dim, b: Dim) -> Dim | None:
    if dims.is_static(condition):
        return a if condition else b
    return a if a == b else None


@op
class Compress(Op):
    """Slices of x along `axis` where the boolean vector `condition` is true; without `axis`, single elements.

    Without `axis`, x is flattened. If the condition is shorter than the axis, the remaining slices are dropped.
    """

    axis: int | None = None
    inputs = ("x", "condition")
    types = {"x": ANY, "condition": BOOLS}
    onnx = Onnx("Compress", since=28)
    samples = lambda: (
        Sample((3, 2), np.array([False, True, True]), axis=0),
        Sample((3, 2), np.array([False, True]), axis=-1),
        Sample((3, 2), np.array([False, True, False, False, True])),
        Sample((3, 2), np.array([True]), axis=0),
        Sample((3, 2), np.array([False, False]), axis=1),
    )

    def infer(self, x: TensorType, condition: TensorType) -> TensorType:
        length = length_of(condition)
        picks = condition.constants
        count: Dim = dims.fresh() if picks is None else sum(1 for p in picks if p)
        if self.axis is None:
            return TensorType(x.dtype, [count])
        if x.shape is None:
            return TensorType(x.dtype, None)
        axis = normal_axis(self.axis, len(x.shape))
        size = x.shape[axis]
        if length is not None and dims.is_static(size) and length > size:
            raise TypeMismatch(f"condition has {length} elements, more than axis {axis} of {shape_text(x.shape)}")
        return TensorType(x.dtype, [*x.shape[:axis], count, *x.shape[axis + 1 :]])

    def reference(self, xp: Any, x: Any, condition: Any) -> Any:
        return xp.take(x, xp.nonzero(condition)[0], axis=self.axis)

    def grad(self, node: Node, dy: Any) -> Any:
        x, condition = node.operands
        kept = F.squeeze(F.non_zero(condition), i64(0))
        if self.axis is not None:
            return F.gather_grad(dy, x, kept, axis=self.axis), None
        return reshape_like(F.gather_grad(dy, F.reshape(x, i64(-1)), kept), x), None


@op
class NonZero(Op):
    """The indices of all elements that are not 0, or not empty strings, in row-major order: int64 [rank, count]."""

    inputs = ("x",)
    types = {"x": NUMERIC | BOOLS | {DType.STRING}}
    onnx = Onnx("NonZero", since=13)
    samples = lambda: (
        Sample(np.array([[1, 0], [1, 1]])),
        Sample(np.array([0.0, -2.0, 0.5], np.float32)),
        Sample(np.array([[True, False], [False, False]])),
        Sample(np.zeros((0, 2), np.int32)),
        Sample(np.array([["a", ""], ["", "b"]], object)),
        # ONNX Runtime gives [1, count], against the standard's text; onnx's evaluator cannot run it.
        Sample(np.array(3), onnx=False),
    )

    def infer(self, x: TensorType) -> TensorType:
        count = dims.fresh() if x.constants is None else sum(1 for v in x.constants if v)
        return TensorType(DType.INT64, [dims.fresh() if x.shape is None else len(x.shape), count])

    def reference(self, xp: Any, x: Any) -> Any:
        if x.ndim == 0:
            return xp.zeros((0, int(bool(x))), dtype=np.int64)
        return xp.stack(xp.nonzero(x)).astype(np.int64)

    def grad(self, node: Node, dy: Any) -> Any:
        return None


@op
class Trilu(Op):
    """The upper (or with upper=False the lower) triangle of the last two axes, zeros elsewhere.

    k: int64 scalar (default: 0), the diagonal at the border of the triangle. k > 0 is above the main diagonal.
    """

    upper: bool = True
    inputs = ("x", "k?")
    types = {"x": NUMERIC | BOOLS | {DType.STRING}, "k": INT64}
    symbolic_inference = True
    inplace = ((0, 0),)
    onnx = Onnx("Trilu", since=14)
    samples = lambda: (
        Sample((3, 4)),
        Sample((3, 4), upper=False),
        Sample((2, 3, 3), np.int64(1)),
        Sample((2, 4, 3), np.int64(-1), upper=False),
        Sample((3, 3), np.int64(9)),
        Sample((3, 3), i64(-9)[0]),
        Sample((0, 3)),
        Sample(np.array([[True, True], [True, True]]), upper=False),
        # onnx's evaluator fills with numbers.
        Sample(np.array([["a", "b"], ["c", "d"]], object), onnx=False),
    )

    def infer(self, x: TensorType, k: TensorType | None = None) -> TensorType:
        if x.shape is not None and len(x.shape) < 2:
            raise TypeMismatch(f"Trilu takes a matrix or a batch of them, not {shape_text(x.shape)}")
        value = None if k is not None else moved(self._triangle, known_array(x))
        return TensorType(x.dtype, x.shape, value)

    def reference(self, xp: Any, x: Any, k: Any = None) -> Any:
        return self._triangle(xp, x, 0 if k is None else int(k.reshape(())), blank(xp, (), x.dtype))

    def _triangle(self, xp: Any, x: Any, diagonal: int = 0, outside: Any = 0) -> Any:
        offset = xp.arange(x.shape[-1]) - xp.arange(x.shape[-2])[:, None]
        inside = offset >= diagonal if self.upper else offset <= diagonal
        return xp.where(inside, x, outside)

    def grad(self, node: Node, dy: Any) -> Any:
        return (F.trilu(dy, *node.inputs[1:], upper=self.upper), None)[: len(node.inputs)]
