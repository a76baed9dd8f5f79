"""Elements taken by index: Gather, GatherElements, GatherND, and the gradient of Gather."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit.errors import RuntimeFailure, TypeMismatch
from graphkit.ir import dims
from graphkit.ir.dims import Dim
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import ANY, FLOATS, INDICES, TensorType
from graphkit.ops._base import DOMAIN, F, Onnx, Op, Sample, op
from graphkit.ops.axes import INT64, flat_positions, i64, normal_axis, scatter_flat, shape_text, zeros_like
from graphkit.ops.known_elements import index_array, known_array, moved

_SAMPLES: tuple[tuple[tuple[int, ...], np.ndarray, int], ...] = (
    ((4, 3), i64(0, 2, 2, -1), 0),
    ((4, 3), np.array([[0, 2], [1, 1]]), 1),
    ((2, 3, 4), np.array(1), -2),
    ((2, 3, 4), np.array([[1, -3]], np.int32), 1),
    ((5,), np.zeros((2, 0), np.int64), 0),
    ((3, 0), i64(0, 2), 0),
)


def refused_indices(x: Value, indices: Value, axis: int) -> tuple[Any, ...]:
    """Return the key of Op.value_check for indices along an axis of x."""
    shape = x.tensor.shape
    return "indices", indices, x if shape is None else shape[axis % len(shape)]


def refused_slices(x: Value, indices: Value, axis: int) -> tuple[Any, ...] | None:
    """Return the same key; None if the indices are known and within the axis."""
    found, known = refused_indices(x, indices, axis), indices.tensor.constants
    size = found[-1]
    is_inside = known is not None and isinstance(size, int) and all(-size <= index < size for index in known)
    return None if is_inside else found


def refused_tuples(x: Value, indices: Value, batch_dims: int = 0) -> tuple[Any, ...]:
    """Return the key of Op.value_check for tuples of indices into the axes of x after the shared batch axes."""
    shape, depth = x.tensor.shape, None if indices.tensor.shape is None else indices.tensor.shape[-1]
    if shape is None or not isinstance(depth, int):
        return "tuples", indices, x
    # Tuples of one index have the same key as indices along an axis.
    return ("indices" if depth == 1 else "tuples"), indices, *shape[batch_dims : batch_dims + depth]


@op
class Gather(Op):
    """Slices of x along `axis` at the given indices (negative ones count from the back).

    x: [*a, n, *b]; indices: int32 or int64 of any shape, in [-n, n - 1]; the result is [*a, *indices, *b]. Other
    indices raise RuntimeFailure in the run.
    """

    axis: int = 0
    inputs = ("x", "indices")
    types = {"x": ANY, "indices": INDICES}
    symbolic_inference = True
    onnx = Onnx("Gather", since=13)
    samples = lambda: tuple(Sample(shape, indices, axis=axis) for shape, indices, axis in _SAMPLES)

    def value_check(self, inputs: Sequence[Any]) -> tuple[Any, ...] | None:
        x, indices = inputs
        return refused_slices(x, indices, self.axis)

    def is_batchwise(self, inputs: Sequence[Any], batched: Sequence[bool]) -> bool:
        first = self.axis % len(inputs[0].known_shape) == 0
        return self._has_examples(("indices",) if first else ("x",), inputs, batched)

    def infer(self, x: TensorType, indices: TensorType) -> TensorType:
        if x.shape is None or indices.shape is None:
            return TensorType(x.dtype, None)
        axis = normal_axis(self.axis, len(x.shape))
        size = x.shape[axis]
        for index in indices.constants or ():
            if not dims.may_reach(size, index + 1 if index >= 0 else -index):
                raise TypeMismatch(f"index {index} is outside axis {axis} of {shape_text(x.shape)}")
        shape = [*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]]
        return TensorType(x.dtype, shape, moved(self.reference, known_array(x), index_array(indices)))

    def reference(self, xp: Any, x: Any, indices: Any) -> Any:
        check_range(indices, x.shape, self.axis % x.ndim)
        return xp.asarray(xp.take(x, indices, axis=self.axis), dtype=x.dtype)

    def grad(self, node: Node, dy: Any) -> Any:
        x, indices = node.operands
        return F.gather_grad(dy, x, indices, axis=self.axis), None


@op
class GatherGrad(Op):
    """Gradient of Gather: zeros of x's shape, to which slices of dy are added at their indices.

    dy: [*a, *indices, *b], for x: [*a, n, *b]. Only the shape of x is read. The result has dy's dtype.
    """

    axis: int = 0
    domain = DOMAIN
    inputs = ("dy", "x", "indices")
    types = {"dy": FLOATS, "x": ANY, "indices": INDICES}
    shape_only = ("x",)
    samples = lambda: tuple(
        Sample(np.take(np.empty(shape), indices, axis=axis).shape, shape, indices, axis=axis)
        for shape, indices, axis in _SAMPLES
    )

    def value_check(self, inputs: Sequence[Any]) -> tuple[Any, ...] | None:
        _, x, indices = inputs
        return refused_slices(x, indices, self.axis)

    def infer(self, dy: TensorType, x: TensorType, indices: TensorType) -> TensorType:
        return TensorType(dy.dtype, x.shape)

    def reference(self, xp: Any, dy: Any, x: Any, indices: Any) -> Any:
        axis = self.axis % x.ndim
        result = xp.zeros(x.shape, dtype=dy.dtype)
        xp.scatter_add(result, (*(slice(None),) * axis, indices), dy)
        return result

    def grad(self, node: Node, dy: Any) -> Any:
        return F.gather(dy, node.operands[2], axis=self.axis), None, None

    def expand(self, dy: Any, x: Any, indices: Any) -> Any:
        if self.axis == 0 or x.rank == 1:
            index = indices if indices.dtype in INT64 else F.cast(indices, to="int64")
            zeros = F.constant_of_shape(F.shape(x), value=np.zeros(1, dy.dtype.numpy))
            return F.scatter_nd(zeros, F.unsqueeze(index, i64(-1)), dy, reduction="add")
        return scatter_flat(dy, F.gather(flat_positions(x), indices, axis=self.axis), x)


def check_range(indices: Any, shape: tuple[int, ...], axis: int) -> None:
    """Raise RuntimeFailure for an index outside the axis, even if the result is empty."""
    size = shape[axis]
    if indices.size and (int(indices.min()) < -size or int(indices.max()) >= size):
        raise RuntimeFailure(f"an index is outside axis {axis} of {list(shape)}")


def along_axis(xp: Any, shape: tuple[int, ...], indices: Any, axis: int) -> tuple[Any, ...]:
    """Return the numpy index of x[..., indices, ...], elementwise along `axis`; negative ones count from the back.

    Raises TypeMismatch for an index outside the axis, and for more indices along another axis than x has elements.
    """
    if any(n > shape[other] for other, n in enumerate(indices.shape) if other != axis):
        raise TypeMismatch(f"indices {list(indices.shape)} must not be larger than {list(shape)} except on axis {axis}")
    check_range(indices, shape, axis)
    size = shape[axis]
    index = []
    for other, n in enumerate(indices.shape):
        grid = xp.arange(n).reshape((n,) + (1,) * (indices.ndim - other - 1))
        index.append(xp.where(indices < 0, indices + size, indices) if other == axis else grid)
    return tuple(index)


@op
class GatherElements(Op):
    """Take one element of x along `axis` for each index: y[i, j, ...] = x[i, indices[i, j, ...], ...] for axis 1.

    The result has the shape of `indices`: int32 or int64, with the rank of x, in [-n, n - 1] for an axis of n elements.
    Other indices raise RuntimeFailure in the run.
    """

    axis: int = 0
    inputs = ("x", "indices")
    types = {"x": ANY, "indices": INDICES}
    symbolic_inference = True
    onnx = Onnx("GatherElements", since=13)
    samples = lambda: (
        Sample((3, 3), np.array([[1, 2, 0], [2, 0, -3]])),
        Sample((2, 2), np.array([[0, 0], [1, -1]]), axis=1),
        Sample((2, 3, 2), np.array([[[1], [-1], [0]], [[1], [-2], [0]]], np.int32), axis=2),
        # onnx's evaluator compares the wrong dimensions for a negative axis.
        Sample((2, 3, 2), np.array([[[1], [-1], [0]], [[1], [-2], [0]]], np.int32), axis=-1, onnx=False),
        Sample((3, 2), np.zeros((0, 2), np.int64)),
    )

    def value_check(self, inputs: Sequence[Any]) -> tuple[Any, ...] | None:
        x, indices = inputs
        return refused_indices(x, indices, self.axis)

    def infer(self, x: TensorType, indices: TensorType) -> TensorType:
        if x.shape is not None:
            normal_axis(self.axis, len(x.shape))
            if indices.shape is not None and len(indices.shape) != len(x.shape):
                raise TypeMismatch(f"indices {shape_text(indices.shape)} and x {shape_text(x.shape)} differ in rank")
        return TensorType(x.dtype, indices.shape, moved(self.reference, known_array(x), index_array(indices)))

    def reference(self, xp: Any, x: Any, indices: Any) -> Any:
        return x[along_axis(xp, x.shape, indices, self.axis % x.ndim)]

    def grad(self, node: Node, dy: Any) -> Any:
        x, indices = node.operands
        return F.scatter_elements(zeros_like(x), indices, dy, axis=self.axis, reduction="add"), None


def nd_index(xp: Any, shape: tuple[int, ...], indices: Any, batch_dims: int = 0) -> tuple[Any, ...]:
    """Return the numpy index for tuples in the last axis of `indices`; `batch_dims` axes are shared with x."""
    depth = indices.shape[-1]
    for k in range(depth):
        check_range(indices[..., k], shape, batch_dims + k)
    lead = indices.ndim - 1
    batch = [xp.arange(indices.shape[i]).reshape((-1,) + (1,) * (lead - i - 1)) for i in range(batch_dims)]
    return (*batch, *(indices[..., k] for k in range(depth)))


def nd_pair(xp: Any, x: Any, indices: Any, batch_dims: int = 0) -> tuple[Any, Any]:
    """Return x and tuples of at least one index.

    Empty tuples select everything after the batch axes: they become index 0 into a new axis of size 1.
    """
    if indices.shape[-1]:
        return x, indices
    shape = (*x.shape[:batch_dims], 1, *x.shape[batch_dims:])
    return x.reshape(shape), xp.zeros((*indices.shape[:-1], 1), dtype=indices.dtype)


@op
class GatherND(Op):
    """Slices of x at index tuples.

    x: [*batch, *a, *b]; indices: int64 [*batch, *c, len(a)]: the numbers along the last axis are one index tuple into
    *a. The result is [*batch, *c, *b]. *batch are the first `batch_dims` axes.
    """

    batch_dims: int = 0
    inputs = ("x", "indices")
    types = {"x": ANY, "indices": INT64}
    symbolic_inference = True
    onnx = Onnx("GatherND", since=13)
    samples = lambda: (
        Sample((2, 2), np.array([[0, 0], [1, -1]])),
        Sample((2, 3), np.array([[1], [0], [1]])),
        Sample((2, 2, 3), np.array([[[0, 1]], [[1, 0]]])),
        Sample((2, 2, 3), np.array([[1], [0]]), batch_dims=1),
        Sample((2, 3, 4), np.array([[[0, 1], [2, -1]], [[1, 1], [0, 0]]]), batch_dims=1),
        Sample((2, 2, 3), np.array([[[2], [0]], [[1], [1]]]), batch_dims=2),
        Sample((3,), np.zeros((0, 1), np.int64)),
        # The standard requires at least one index in a tuple; ONNX Runtime also accepts empty tuples.
        *(Sample((3,), np.zeros((*lead, 0), np.int64), onnx=False) for lead in ((), (2,), (0, 1))),
        Sample((2, 3), np.zeros((2, 4, 0), np.int64), batch_dims=1, onnx=False),
    )

    def value_check(self, inputs: Sequence[Any]) -> tuple[Any, ...] | None:
        x, indices = inputs
        return refused_tuples(x, indices, self.batch_dims)

    def infer(self, x: TensorType, indices: TensorType) -> TensorType:
        if x.shape is None or indices.shape is None:
            return TensorType(x.dtype, None)
        if not indices.shape or self.batch_dims >= min(len(indices.shape), len(x.shape)):
            raise TypeMismatch(
                f"batch_dims={self.batch_dims} must be below the rank of x {shape_text(x.shape)} and of indices "
                f"{indices}"
            )
        depth = indices.shape[-1]
        if not dims.is_static(depth):
            return TensorType(x.dtype, None)
        start = self.batch_dims + depth
        if start > len(x.shape):
            batch = f", of which {self.batch_dims} are batch axes" if self.batch_dims else ""
            raise TypeMismatch(
                f"index tuples of length {depth} are too long for x of shape {shape_text(x.shape)}: it has "
                f"{len(x.shape)} axes{batch}"
            )
        for a, b in zip(x.shape[: self.batch_dims], indices.shape, strict=False):
            if not dims.may_equal(a, b):
                raise TypeMismatch(f"batch axes of x {shape_text(x.shape)} and indices {indices} differ")
        shape: list[Dim] = [*indices.shape[:-1], *x.shape[start:]]
        return TensorType(x.dtype, shape, moved(self.reference, known_array(x), index_array(indices)))

    def reference(self, xp: Any, x: Any, indices: Any) -> Any:
        batch = x.shape[: self.batch_dims]
        if batch != indices.shape[: self.batch_dims]:
            raise TypeMismatch(f"batch axes of x {list(x.shape)} and indices {list(indices.shape)} differ")
        slices, tuples = nd_pair(xp, x, indices, self.batch_dims)
        return xp.asarray(slices[nd_index(xp, slices.shape, tuples, self.batch_dims)], dtype=x.dtype)

    def grad(self, node: Node, dy: Any) -> Any:
        x, indices = node.operands
        if self.batch_dims == 0:
            return F.scatter_nd(zeros_like(x), indices, dy, reduction="add"), None
        return scatter_flat(dy, F.gather_nd(flat_positions(x), indices, batch_dims=self.batch_dims), x), None
