"""DeformConv: a convolution whose elements are read at learned offsets. (Dai et al. 2017, Zhu et al. 2019.)"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch, UnsupportedError
from graphkit.ir import dims
from graphkit.ir.dims import Dim
from graphkit.ir.types import FLOATS, TensorType
from graphkit.ops._base import F, Onnx, Op, Rand, Sample, op
from graphkit.ops.axes import i64
from graphkit.ops.image.interpolation import ArrayImage, GraphImage, interpolated, linear_taps
from graphkit.ops.operands import converted, fits, wide_type


def _samples() -> tuple[Sample, ...]:
    return (
        Sample((1, 2, 4, 4), (3, 2, 2, 2), Rand((1, 8, 3, 3), -1.5, 1.5)),
        Sample(
            (2, 4, 5, 4),
            (2, 2, 3, 2),
            Rand((2, 24, 3, 5), -1.5, 1.5),
            (2,),
            (2, 12, 3, 5),
            group=2,
            offset_group=2,
            strides=(2, 1),
            pads=(1, 1, 1, 1),
        ),
        Sample((1, 2, 6, 5), (2, 2, 2, 2), Rand((1, 8, 4, 2), -1.5, 1.5), None, (1, 4, 4, 2), dilations=(2, 3)),
        # onnx's evaluator and ONNX Runtime have two spatial axes only.
        Sample((1, 1, 6), (2, 1, 3), Rand((1, 3, 4), -1.5, 1.5), (2,), onnx=False),
    )


@op
class DeformConv(Op):
    """Deformable convolution: each kernel element reads x at its position plus a learned offset, interpolated.

    x: [N, C, *spatial]; w: [M, C / group, *kernel]; bias: [M]. offset: [N, offset_group * prod(kernel) * axes,
    *positions]: for each element of the kernel, its displacement along each spatial axis, in elements of x. mask: [N,
    offset_group * prod(kernel), *positions], factors for the elements that are read (default: 1). Interpolation is
    linear; outside of x, elements are 0. The channels of x are divided into `offset_group` groups, each with its own
    offsets and mask. The other attributes are those of Conv. The result is [N, M, *positions]. Zhu et al. 2018,
    arXiv:1811.11168.
    """

    dilations: tuple[int, ...] | None = None
    group: int = 1
    kernel_shape: tuple[int, ...] | None = None
    offset_group: int = 1
    pads: tuple[int, ...] | None = None
    strides: tuple[int, ...] | None = None
    inputs = ("x", "w", "offset", "bias?", "mask?")
    types = {"x": FLOATS, "w": "x", "offset": "x", "bias": "x", "mask": "x"}
    composite = True
    onnx = Onnx("DeformConv", since=22)
    samples = staticmethod(_samples)

    def multiply_adds(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Dim:
        return dims.product((*outputs[0].known_shape, *inputs[1].known_shape[1:]))

    def infer(
        self,
        x: TensorType,
        w: TensorType,
        offset: TensorType,
        bias: TensorType | None = None,
        mask: TensorType | None = None,
    ) -> TensorType:
        known = next((t.shape for t in (w, x, offset) if t.shape is not None), None)
        if known is None:
            return TensorType(x.dtype)
        rank = len(known) - 2
        if self.group < 1 or self.offset_group < 1:
            raise TypeMismatch(f"group and offset_group must be at least 1, not {self.group} and {self.offset_group}")
        if rank < 1:
            raise TypeMismatch(f"DeformConv needs at least one spatial axis: x is {x}, and the weights are {w}")
        batch, channels, *spatial = _shape(x, rank, "the image")
        outputs, per_group, *kernel = _shape(w, rank, "weights")
        if self.kernel_shape is not None and not fits(self.kernel_shape, kernel):
            raise TypeMismatch(f"kernel_shape={self.kernel_shape}, but the weights are {w}")
        if not dims.may_equal(channels, per_group * self.group):
            raise TypeMismatch(f"{x} has {channels} channels; weights {w} take {per_group * self.group}")
        size = dims.product(kernel) * self.offset_group
        for operand, rows in ((offset, size * rank), (mask, size)):
            if operand is not None and not fits(_shape(operand, rank, "offsets or a mask")[:2], (batch, rows)):
                raise TypeMismatch(f"{operand} does not have {rows} rows for each of {batch} images")
        if bias is not None and not fits(bias.shape, (outputs,)):
            raise TypeMismatch(f"bias {bias} does not fit {outputs} output channels")
        positions = tuple(
            dims.floordiv(n + begin + end - ((k - 1) * dilation + 1), stride) + 1
            for n, k, (stride, dilation, begin, end) in zip(spatial, kernel, self._window(rank), strict=True)
        )
        if not fits(offset.shape and offset.shape[2:], positions):
            raise TypeMismatch(f"offsets {offset} do not fit positions {list(positions)}")
        return TensorType(x.dtype, (batch, outputs, *positions))

    def _window(self, rank: int) -> list[tuple[int, int, int, int]]:
        """Return (stride, dilation, padding before, padding after) of each axis. Raises TypeMismatch."""
        strides, dilations = self.strides or (1,) * rank, self.dilations or (1,) * rank
        pads = self.pads or (0,) * (2 * rank)
        if (len(strides), len(dilations), len(pads)) != (rank, rank, 2 * rank):
            raise TypeMismatch(f"{self} does not have {rank} spatial axes")
        return list(zip(strides, dilations, pads[:rank], pads[rank:], strict=True))

    def reference(self, xp: Any, x: Any, w: Any, offset: Any, bias: Any = None, mask: Any = None) -> Any:
        rank, groups = x.ndim - 2, self.offset_group
        kernel, positions = w.shape[2:], offset.shape[2:]
        size = math.prod(kernel)
        images = x.shape[0] * groups
        offsets = offset.reshape(images, size, rank, *positions)
        grid = [xp.arange(n).reshape(-1, *(1,) * (rank - 1 - axis)) for axis, n in enumerate(positions)]
        inside = [xp.asarray(o).reshape(-1, *(1,) * rank) for o in np.indices(kernel)]
        at = [
            offsets[:, :, axis] + (grid[axis] * stride - begin + inside[axis] * dilation).astype(x.dtype)
            for axis, (stride, dilation, begin, _) in enumerate(self._window(rank))
        ]
        image = ArrayImage(xp, x.reshape(images, x.shape[1] // groups, *x.shape[2:]))
        read = self._read(image, at, None if mask is None else mask.reshape(images, size, *positions))
        # [N * offset groups, size, *positions, channels] to [N, group, channels * size, positions]
        columns = xp.moveaxis(read, -1, 1).reshape(x.shape[0], self.group, -1, math.prod(positions))
        y = xp.matmul(w.reshape(self.group, w.shape[0] // self.group, -1), columns)
        y = y.reshape(x.shape[0], w.shape[0], *positions)
        return y if bias is None else y + bias.reshape(-1, *(1,) * rank)

    def expand(self, x: Any, w: Any, offset: Any, bias: Any = None, mask: Any = None) -> Any:
        if x.rank is None:
            raise UnsupportedError(f"DeformConv in standard operators needs an operand of known rank, not {x}")
        rank, groups, wide = x.rank - 2, self.offset_group, wide_type(x.dtype)
        kernel, positions = F.shape(w, start=2), F.shape(offset, start=2)
        size = F.reduce_prod(kernel)
        offsets = F.reshape(converted(offset, wide), F.concat(i64(-1), size, i64(rank), positions, axis=0))
        # The indices of a kernel element along the axes are the digits of its row-major number.
        inside = _count(size, 0)
        at: list[Any] = [None] * rank
        for axis, (stride, dilation, begin, _) in reversed(list(enumerate(self._window(rank)))):
            length = F.gather(kernel, np.array(axis, np.int64))
            place = F.mul(F.mod(inside, length), np.array(dilation, np.int64))
            inside = F.div(inside, length)
            grid = F.sub(F.mul(_count(positions, axis), np.array(stride, np.int64)), np.array(begin, np.int64))
            if axis < rank - 1:
                grid = F.unsqueeze(grid, np.arange(1, rank - axis))
            fixed = F.add(grid, F.unsqueeze(place, np.arange(1, rank + 1)))
            at[axis] = F.add(F.gather(offsets, np.array(axis, np.int64), axis=2), F.cast(fixed, to=wide))
        channels = F.div(F.shape(x, start=1, end=2), i64(groups))
        images = F.reshape(x, F.concat(i64(-1), channels, F.shape(x, start=2), axis=0))
        factors = None if mask is None else F.reshape(mask, F.concat(i64(-1), size, positions, axis=0))
        if rank == 2:
            read = F.linear_sample(images, *at)
            read = read if factors is None else F.mul(read, F.unsqueeze(factors, np.array([-1], np.int64)))
        else:
            read = self._read(GraphImage(images), at, factors)
        last = F.transpose(read, perm=(0, rank + 2, *range(1, rank + 2)))
        batch, outputs = F.shape(x, start=0, end=1), F.shape(w, start=0, end=1)
        rows = F.mul(F.shape(w, start=1, end=2), size)
        columns = F.reshape(last, F.concat(batch, i64(self.group), rows, F.reduce_prod(positions), axis=0))
        per_group = F.div(outputs, i64(self.group))
        y = F.mat_mul(F.reshape(w, F.concat(i64(self.group), per_group, rows, axis=0)), columns)
        y = F.reshape(y, F.concat(batch, outputs, positions, axis=0))
        return y if bias is None else F.add(y, F.unsqueeze(bias, np.arange(1, rank + 1)))

    @staticmethod
    def _read(image: Any, at: list[Any], mask: Any) -> Any:
        """Read [N * offset groups, prod(kernel), *positions, C / offset groups] at coordinates along each axis."""
        taps = []
        for axis, column in enumerate(at):
            # All elements farther outside are 0. Clipping prevents overflow.
            near = image.clip(column, -2.0, image.length(axis, column) + 1.0)
            taps.append(linear_taps(image, axis, near, None))
        read = interpolated(image, image.batch(len(at) + 2), taps)
        return read if mask is None else image.weighted(read, mask)


def _shape(operand: TensorType, rank: int, what: str) -> tuple[Dim, ...]:
    """Return the dimensions, new symbols if unknown. Raises TypeMismatch unless there are `rank` spatial axes."""
    if operand.shape is None:
        return tuple(dims.fresh() for _ in range(rank + 2))
    if len(operand.shape) != rank + 2:
        raise TypeMismatch(f"{what} {operand} does not have {rank} spatial axes")
    return operand.shape


def _count(sizes: Any, axis: int) -> Any:
    """Return 0, 1, ..., sizes[axis] - 1."""
    return F.range(np.array(0, np.int64), F.gather(sizes, np.array(axis, np.int64)), np.array(1, np.int64))
