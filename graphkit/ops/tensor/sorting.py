"""Positions of the largest and smallest elements, elements without repetition: ArgMax, ArgMin, TopK, Unique."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch
from graphkit.ir import dims
from graphkit.ir.dims import Dim
from graphkit.ir.graph import Node
from graphkit.ir.types import BOOLS, HALVES, NUMERIC, DType, TensorType, dtype_of
from graphkit.ops._base import F, Onnx, Op, Sample, op
from graphkit.ops.axes import INT64, contiguous, i64, normal_axis, reshape_like, zeros_like

_TIES = np.array([[2.0, 1.0, 2.0], [-1.0, -1.0, -3.0]], np.float32)


class ArgExtreme(Op):
    """Base of ArgMax and ArgMin: int64 position of the extreme element along `axis`, the first or last of equals."""

    axis: int = 0
    keepdims: bool = True
    select_last_index: bool = False
    inputs = ("x",)
    types = {"x": NUMERIC}
    samples = lambda: (
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
        """Return the first extreme position along the last axis."""
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
class ArgMax(ArgExtreme):
    """Index of the maximum along `axis`, int64. If elements tie, the first, or with `select_last_index` the last."""

    onnx = Onnx("ArgMax", since=13)

    def position(self, xp: Any, x: Any) -> Any:
        return xp.argmax(x, axis=-1)


@op
class ArgMin(ArgExtreme):
    """Index of the minimum along `axis`, int64. If elements tie, the first, or with `select_last_index` the last."""

    onnx = Onnx("ArgMin", since=13)

    def position(self, xp: Any, x: Any) -> Any:
        return xp.argmin(x, axis=-1)


def _too_many(k: Any, axis: int, size: Any) -> str:
    if k < 0:
        return f"k = {k} must not be negative"
    return f"k = {k} is larger than axis {axis}, which has size {size}"


@op
class TopK(Op):
    """The k largest (or smallest) elements along `axis`, and their int64 indices.

    k: an integer, or int64 [] or [1]. Results are sorted; equal elements are in the order of their indices. This holds
    also with sorted=False, where the standard leaves the order open.
    """

    axis: int = -1
    largest: bool = True
    sorted: bool = True
    inputs = ("x", "k")
    outputs = ("values", "indices")
    types = {"x": NUMERIC, "k": INT64}
    onnx = Onnx("TopK", since=24)
    samples = lambda: (
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
            raise TypeMismatch(_too_many(count, axis, size))
        shape = [*x.shape[:axis], count, *x.shape[axis + 1 :]]
        return TensorType(x.dtype, shape), TensorType(DType.INT64, shape)

    def reference(self, xp: Any, x: Any, k: Any) -> tuple[Any, Any]:
        count = int(k.reshape(()))
        rows = xp.moveaxis(x, self.axis, -1)
        size = rows.shape[-1]
        if count > size:
            raise TypeMismatch(_too_many(count, self.axis % x.ndim, size))
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


@op
class Unique(Op):
    """The distinct elements of x, or its distinct slices along `axis`, sorted or in order of first occurrence.

    There are three more outputs, int64 vectors: for each distinct element, the index of its first occurrence in x; for
    each element of x, its index among the distinct elements; for each distinct element, its number of occurrences. If
    an element repeats, its first occurrence gets the gradient.
    """

    axis: int | None = None
    sorted: bool = True
    inputs = ("x",)
    outputs = ("y", "indices", "inverse_indices", "counts")
    types = {"x": NUMERIC | BOOLS | {DType.STRING}}
    onnx = Onnx("Unique", since=28)
    samples = lambda: (
        Sample((2, 3)),
        Sample((2, 3), sorted=False),
        Sample((3, 2), axis=0),
        Sample(np.array([2, 1, 1, 3, 4, 3])),
        Sample(np.array([[2, 1, 1], [3, 2, 3]]), sorted=False),
        Sample(np.array([[1, 0, 0], [1, 0, 0], [2, 3, 4]]), axis=0),
        Sample(np.array([[4, 1, 1], [3, 0, 0]]), axis=-1),
        Sample(np.array([[4, 1, 1], [3, 0, 0]]), axis=1, sorted=False),
        Sample(np.array([True, False, True])),
        Sample(np.zeros(0, np.int32)),
        Sample(np.array(["b", "a", "", "b"], object)),
        Sample(np.array([["b", "a"], ["b", "a"], ["a", "b"]], object), axis=0),
    )

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        count = dims.fresh()
        shape: list[Dim] | None = [count]
        places: Dim = dims.fresh() if x.shape is None else dims.product(x.shape)
        if self.axis is not None:
            shape = None
            if x.shape is not None:
                axis = normal_axis(self.axis, len(x.shape))
                shape, places = [*x.shape[:axis], count, *x.shape[axis + 1 :]], x.shape[axis]
        vectors = (TensorType(DType.INT64, [n]) for n in (count, places, count))
        return (TensorType(x.dtype, shape), *vectors)

    def reference(self, xp: Any, x: Any) -> tuple[Any, ...]:
        # numpy does not sort NaN last for float16 and bfloat16.
        wide = x.astype(np.float32) if dtype_of(x.dtype) in HALVES else x
        if x.dtype == object:
            # numpy cannot compare slices of strings, so each string is replaced by its rank in sorted order.
            wide = np.unique(x, return_inverse=True)[1].reshape(x.shape)
        _, first, inverse, counts = xp.unique(
            wide, return_index=True, return_inverse=True, return_counts=True, axis=self.axis
        )
        inverse = inverse.reshape(-1)
        if not self.sorted:
            order = xp.argsort(first)
            first, counts = first[order], counts[order]
            inverse = xp.argsort(order)[inverse]
        y = xp.take(x, first, axis=self.axis)
        return (y, *(v.astype(np.int64) for v in (first, inverse, counts)))

    def grad(self, node: Node, dy: Any, *_: Any) -> Any:
        x, first = node.inputs[0], node.outputs[1]
        assert x is not None
        if dy is None:
            return None
        if self.axis is not None:
            return F.gather_grad(dy, x, first, axis=self.axis)
        return reshape_like(F.gather_grad(dy, F.reshape(x, i64(-1)), first), x)
