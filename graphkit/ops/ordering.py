"""Positions of the largest and smallest elements: ArgMax, ArgMin, TopK."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch
from graphkit.ir import dims
from graphkit.ir.dims import Dim
from graphkit.ir.graph import Node
from graphkit.ir.types import NUMERIC, DType, TensorType
from graphkit.ops._base import F, Onnx, Op, Sample, op
from graphkit.ops._shapes import INT64, contiguous, i64, normal_axis, shape_text, zeros_like

_TIES = np.array([[2.0, 1.0, 2.0], [-1.0, -1.0, -3.0]], np.float32)


class _ArgExtreme(Op):
    """The int64 position along `axis` of the extreme element; the first of equal ones, or the last."""

    axis: int = 0
    keepdims: bool = True
    select_last_index: bool = False
    inputs = ("x",)
    types = {"x": NUMERIC}
    samples = (
        Sample((2, 3)),
        Sample((2, 3, 4), axis=-1, keepdims=False),
        Sample((5,), axis=0, keepdims=False),
        Sample(_TIES, axis=1),
        Sample(_TIES, axis=1, select_last_index=True),
        Sample(_TIES, axis=-2, select_last_index=True, keepdims=False),
        Sample(np.array([[3, 1], [3, 0]], np.int32), axis=0),
        Sample((0, 3), axis=1),
    )

    def infer(self, x: TensorType) -> TensorType:
        if x.shape is None:
            return TensorType(DType.INT64, None)
        axis = normal_axis(self.axis, len(x.shape))
        middle: tuple[Dim, ...] = (1,) if self.keepdims else ()
        return TensorType(DType.INT64, [*x.shape[:axis], *middle, *x.shape[axis + 1 :]])

    def position(self, xp: Any, x: Any) -> Any:
        """The first extreme position along the last axis."""
        raise NotImplementedError(f"{self.name}.position")

    def reference(self, xp: Any, x: Any) -> Any:
        rows = xp.moveaxis(x, self.axis, -1)
        if self.select_last_index:
            found = x.shape[self.axis] - 1 - self.position(xp, xp.flip(rows, axis=-1))
        else:
            found = self.position(xp, rows)
        found = xp.asarray(found, dtype=np.int64)
        return xp.expand_dims(found, self.axis % x.ndim) if self.keepdims else found

    def grad(self, node: Node, dy: Any) -> Any:
        return None


@op
class ArgMax(_ArgExtreme):
    """Position of the maximum along `axis`."""

    onnx = Onnx("ArgMax", since=13)

    def position(self, xp: Any, x: Any) -> Any:
        return xp.argmax(x, axis=-1)


@op
class ArgMin(_ArgExtreme):
    """Position of the minimum along `axis`."""

    onnx = Onnx("ArgMin", since=13)

    def position(self, xp: Any, x: Any) -> Any:
        return xp.argmin(x, axis=-1)


@op
class TopK(Op):
    """The k largest (or smallest) elements along `axis` and their int64 positions.

    k: int64 vector of one element. In order, equal elements by position, also where `sorted` is off and the standard
    leaves the order open.
    """

    axis: int = -1
    largest: bool = True
    sorted: bool = True
    inputs = ("x", "k")
    outputs = ("values", "indices")
    types = {"x": NUMERIC, "k": INT64}
    onnx = Onnx("TopK", since=24)
    samples = (
        Sample((3, 4), i64(2)),
        Sample((3, 4), i64(3), axis=0, largest=False),
        Sample((2, 3, 2), i64(1), axis=-2),
        Sample((2, 3), i64(1), sorted=False),
        Sample((2, 3), i64(0)),
        # Equal elements have no derivative.
        Sample(_TIES, i64(2), grad=False),
        Sample(_TIES, i64(2), largest=False, grad=False),
        Sample(np.array([[3, 1, 3, 2]], np.uint8), i64(3)),
    )

    def infer(self, x: TensorType, k: TensorType) -> tuple[TensorType, TensorType]:
        if x.shape is None:
            return TensorType(x.dtype, None), TensorType(DType.INT64, None)
        axis = normal_axis(self.axis, len(x.shape))
        count = dims.fresh() if k.value is None else k.value[0]
        size = x.shape[axis]
        if dims.is_static(count) and (count < 0 or (dims.is_static(size) and count > size)):
            raise TypeMismatch(f"k = {count} for axis {axis} of {shape_text(x.shape)}")
        shape = [*x.shape[:axis], count, *x.shape[axis + 1 :]]
        return TensorType(x.dtype, shape), TensorType(DType.INT64, shape)

    def reference(self, xp: Any, x: Any, k: Any) -> tuple[Any, Any]:
        count = int(k.reshape(()))
        rows = xp.moveaxis(x, self.axis, -1)
        size = rows.shape[-1]
        if count > size:
            raise TypeMismatch(f"k = {count} for axis {self.axis} of {list(x.shape)}")
        if self.largest:
            # Sorting the reversed row and reversing the result keeps equal elements in their order.
            order = size - 1 - xp.flip(xp.argsort(xp.flip(rows, axis=-1), axis=-1, kind="stable"), axis=-1)
        else:
            order = xp.argsort(rows, axis=-1, kind="stable")
        order = order[..., :count].astype(np.int64)
        values = xp.take_along_axis(rows, order, axis=-1)
        return tuple(contiguous(xp, xp.moveaxis(v, -1, self.axis)) for v in (values, order))

    def grad(self, node: Node, dvalues: Any, dindices: Any) -> Any:
        x = node.inputs[0]
        assert x is not None
        if dvalues is None:
            return None, None
        # Positions within a row do not repeat.
        return F.scatter_elements(zeros_like(x), node.outputs[1], dvalues, axis=self.axis), None
