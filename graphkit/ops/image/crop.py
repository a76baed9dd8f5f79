"""CenterCropPad: sizes changed at both ends of an axis."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch, UnsupportedError
from graphkit.ir import dims
from graphkit.ir.dims import Dim
from graphkit.ir.graph import Node
from graphkit.ir.types import BOOLS, INDICES, NUMERIC, DType, TensorType
from graphkit.ops._base import F, Onnx, Op, Sample, op
from graphkit.ops.axes import blank, fresh_shape, i64, length_of, normal_axes


@op
class CenterCropPad(Op):
    """Crop or pad x to the given sizes along `axes`, by default all.

    The middle of a longer axis is kept; a shorter axis gets zeros at both ends. shape: int32 or int64 vector, one size
    for each of `axes`. If a difference is odd, the larger part is at the end.
    """

    axes: tuple[int, ...] | None = None
    inputs = ("x", "shape")
    types = {"x": NUMERIC | BOOLS | {DType.STRING}, "shape": INDICES}
    onnx = Onnx("CenterCropPad", since=18)
    composite = True
    samples = lambda: (
        Sample((5, 6), i64(2, 3)),
        Sample((2, 3), i64(5, 6)),
        Sample((3, 4, 5), np.array([6, 3], np.int32), axes=(-1, 0)),
        Sample((3, 4, 5), i64(1, 7), axes=(2, 1)),
        Sample((3, 2), i64(3, 0)),
        Sample((0, 2), i64(2, 2)),
        # onnx's evaluator pads strings with numbers.
        Sample(np.array([["a", "b", "c"]], object), i64(2, 2), onnx=False),
    )

    def infer(self, x: TensorType, shape: TensorType) -> TensorType:
        count = length_of(shape)
        if x.shape is None:
            # Without axes there is a size for each axis.
            known = shape.value if shape.value is not None else fresh_shape(count)
            return TensorType(x.dtype, known if self.axes is None else None)
        axes = self._axes(len(x.shape))
        if count is not None and count != len(axes):
            raise TypeMismatch(
                f"shape needs {len(axes)} sizes, one for each of axes {list(axes)} of {x}; it has {count}"
            )
        sizes: tuple[Dim, ...] = shape.value or tuple(dims.fresh() for _ in axes)
        result = list(x.shape)
        for axis, size in zip(axes, sizes, strict=True):
            result[axis] = size
        return TensorType(x.dtype, result)

    def _axes(self, rank: int) -> tuple[int, ...]:
        return tuple(range(rank)) if self.axes is None else normal_axes(self.axes, rank)

    def reference(self, xp: Any, x: Any, shape: Any) -> Any:
        taken, placed, result = [slice(None)] * x.ndim, [slice(None)] * x.ndim, list(x.shape)
        for axis, size in zip(self._axes(x.ndim), (int(n) for n in shape), strict=True):
            have = x.shape[axis]
            kept = min(have, size)
            taken[axis] = slice((have - kept) // 2, (have - kept) // 2 + kept)
            placed[axis] = slice((size - kept) // 2, (size - kept) // 2 + kept)
            result[axis] = size
        y = blank(xp, result, x.dtype)
        y[tuple(placed)] = x[tuple(taken)]
        return y

    def expand(self, x: Any, shape: Any) -> Any:
        if x.rank is None:
            raise UnsupportedError(f"CenterCropPad in other operators needs an operand of known rank, not {x}")
        axes = np.array(self._axes(x.rank), np.int64)
        have, want = F.gather(F.shape(x), axes), F.cast(shape, to=DType.INT64)
        kept, two = F.min(have, want), i64(2)
        first = F.div(F.sub(have, kept), two)
        before = F.div(F.sub(want, kept), two)
        cut = F.slice(x, first, F.add(first, kept), axes)
        return F.pad(cut, F.concat(before, F.sub(F.sub(want, kept), before), axis=0), None, axes)

    def grad(self, node: Node, dy: Any) -> Any:
        x = node.operands[0]
        sizes = F.shape(x)
        if self.axes is not None:
            sizes = F.gather(sizes, np.array(self.axes, np.int64))
        return F.center_crop_pad(dy, sizes, axes=self.axes), None
