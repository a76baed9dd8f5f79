"""MaxUnpool: put the elements that a max pool selected back to their positions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch, UnsupportedError
from graphkit.ir import dims
from graphkit.ir.dims import Dim
from graphkit.ir.graph import Node
from graphkit.ir.types import FLOATS, TensorType
from graphkit.ops._base import F, Onnx, Op, Sample, op
from graphkit.ops.axes import INT64, i64
from graphkit.ops.operands import fits

_PLACES = np.array([[[[5, 7], [13, 15]], [[16, 19], [25, 31]]]])


@op
class MaxUnpool(Op):
    """Put the elements of x back to the positions from which MaxPool took them; all other elements are 0.

    x: [N, C, *positions]; indices: int64 of the same shape, indices into a flattened tensor whose spatial sizes are
    (positions - 1) * strides + kernel_shape - pads. The result has these sizes. If `output_shape` [N, C, *spatial] is
    larger, zeros are added at the end of each axis. If several elements have the same position, it is undefined which
    of them is taken; each gets the gradient of that position.
    """

    kernel_shape: tuple[int, ...]
    pads: tuple[int, ...] | None = None
    strides: tuple[int, ...] | None = None
    inputs = ("x", "indices", "output_shape?")
    types = {"x": FLOATS, "indices": INT64, "output_shape": INT64}
    onnx = Onnx("MaxUnpool", since=22)
    composite = True
    checks_values = True
    samples = lambda: (
        Sample((1, 2, 2, 2), _PLACES, kernel_shape=(2, 2), strides=(2, 2)),
        Sample((1, 2, 2, 2), _PLACES, i64(1, 2, 5, 6), kernel_shape=(2, 2), strides=(2, 2)),
        Sample((2, 1, 3), np.array([[[0, 2, 4]], [[5, 7, 9]]]), kernel_shape=(3,), strides=(2,), pads=(1, 1)),
        Sample((0, 2, 2), np.zeros((0, 2, 2), np.int64), kernel_shape=(2,)),
    )

    def pooled_shape(self, shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """Return the shape of the tensor that `indices` refer to, from x's shape. Raises TypeMismatch."""
        rank = len(self.kernel_shape)
        pads, strides = self.pads or (0,) * (2 * rank), self.strides or (1,) * rank
        if len(shape) != rank + 2 or len(pads) != 2 * rank or len(strides) != rank:
            raise TypeMismatch(
                f"x has {len(shape)} axes; for each axis after the first two, kernel_shape={self.kernel_shape} and "
                f"strides={strides} need one entry, pads={pads} two"
            )
        spatial = (
            (n - 1) * strides[i] + self.kernel_shape[i] - pads[i] - pads[rank + i] for i, n in enumerate(shape[2:])
        )
        return (*shape[:2], *spatial)

    def infer(self, x: TensorType, indices: TensorType, output_shape: TensorType | None = None) -> TensorType:
        if not fits(x.shape, indices.shape):
            raise TypeMismatch(f"{x} and its indices {indices} must have the same shape")
        rank = len(self.kernel_shape) + 2
        pooled = self.pooled_shape(tuple(dims.fresh() for _ in range(rank)) if x.shape is None else x.shape)
        if output_shape is None:
            return TensorType(x.dtype, pooled)
        if not fits(output_shape.shape, (rank,)):
            raise TypeMismatch(f"output_shape {output_shape} does not have {rank} elements")
        if output_shape.value is None:
            return TensorType(x.dtype, tuple(dims.fresh() for _ in range(rank)))
        for given, least in zip(output_shape.value, pooled, strict=True):
            if dims.is_static(given) and dims.is_static(least) and given < least:
                raise TypeMismatch(f"output_shape {list(output_shape.value)} is smaller than {list(pooled)}")
        return TensorType(x.dtype, output_shape.value)

    def reference(self, xp: Any, x: Any, indices: Any, output_shape: Any = None) -> Any:
        shape: Any = self.pooled_shape(x.shape)
        flat = xp.zeros(math.prod(shape), dtype=x.dtype)
        if indices.size and not 0 <= int(indices.min()) <= int(indices.max()) < flat.size:
            raise TypeMismatch(f"an index is outside a tensor of shape {list(shape)}")
        flat[indices.reshape(-1)] = x.reshape(-1)
        y = flat.reshape(shape)
        if output_shape is None:
            return y
        widened = xp.zeros([int(n) for n in output_shape], dtype=x.dtype)
        widened[tuple(slice(0, n) for n in shape)] = y
        return widened

    def expand(self, x: Any, indices: Any, output_shape: Any = None) -> Any:
        if x.shape is None:
            raise UnsupportedError(f"MaxUnpool in other operators needs an operand of known rank, not {x}")
        shape, flat = self._pooled_sizes(x), i64(-1)
        count = F.reduce_prod(shape, keepdims=True)
        zeros = F.constant_of_shape(count, value=np.zeros(1, x.dtype.numpy))
        y = F.reshape(F.scatter_elements(zeros, F.reshape(indices, flat), F.reshape(x, flat)), shape)
        if output_shape is None:
            return y
        return F.pad(y, F.concat(F.sub(shape, shape), F.sub(output_shape, shape), axis=0))

    def _pooled_sizes(self, x: Any) -> Any:
        """Build the shape that `indices` refer to, as an int64 vector."""
        rank = len(self.kernel_shape)
        pads = np.array(self.pads or (0,) * (2 * rank), np.int64)
        strides = np.array(self.strides or (1,) * rank, np.int64)
        fixed = np.array(self.kernel_shape, np.int64) - strides - pads[:rank] - pads[rank:]
        return F.concat(F.shape(x, end=2), F.add(F.mul(F.shape(x, start=2), strides), fixed), axis=0)

    def grad(self, node: Node, dy: Any) -> Any:
        x, indices, *rest = node.operands
        if rest:
            axes = np.arange(len(self.kernel_shape) + 2)
            dy = F.slice(dy, np.zeros_like(axes), self._pooled_sizes(x), axes)
        return (F.gather(F.reshape(dy, i64(-1)), indices), *(None for _ in node.inputs[1:]))
