"""Images resampled at given coordinates, and the coordinates of an affine transformation: GridSample, AffineGrid."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch, UnsupportedError, UsageError
from graphkit.ir import dims
from graphkit.ir.dims import Dim
from graphkit.ir.types import BOOLS, FLOATS, NUMERIC, DType, TensorType
from graphkit.ops._base import F, Onnx, Op, Rand, Sample, op
from graphkit.ops.axes import INT64, fresh_shape, i64, length_of
from graphkit.ops.image.interpolation import (
    ArrayImage,
    GraphImage,
    Tap,
    check_sampled,
    cubic_taps,
    interpolated,
    length_of_axis,
    linear_taps,
    tap,
    unmoved,
)
from graphkit.ops.operands import converted, fits, wide_type

_MODES = ("linear", "nearest", "cubic")
_PADDINGS = ("zeros", "border", "reflection")


def _grid_samples() -> tuple[Sample, ...]:
    x, grid = (2, 2, 3, 4), Rand((2, 3, 2, 2), -1.3, 1.3)
    return (
        *(
            Sample(x, grid, mode=mode, padding_mode=padding, align_corners=corners, dtypes=FLOATS)
            for mode in ("linear", "cubic")
            for padding in _PADDINGS
            for corners in (False, True)
        ),
        *(
            # "nearest" is a step function of the grid: its derivative is 0, but finite differences across a step are
            # not.
            Sample(x, Rand((2, 3, 2, 2), -1.3, 1.3, "float32"), mode="nearest", padding_mode=padding)
            for padding in _PADDINGS
        ),
        Sample((1, 2, 2, 3, 4), Rand((1, 2, 1, 3, 3), -1.2, 1.2), dtypes=FLOATS),
        Sample((2, 1, 5), Rand((2, 4, 1), -1.2, 1.2), padding_mode="border", dtypes=FLOATS),
        # onnx's evaluator returns an empty vector.
        Sample((0, 2, 3, 3), (0, 2, 2, 2), dtypes=FLOATS, onnx=False),
    )


@op
class GridSample(Op):
    """Sample x: [N, C, *spatial] at the coordinates of grid: [N, *out, rank]; the result is [N, C, *out].

    Coordinates are given for the last axis first (x, y, z). -1 and 1 are the outer edges of the first and last element,
    or with `align_corners` their centres. mode: "linear", "nearest" or "cubic"; elements that are not floats need
    "nearest", whose derivative with respect to grid is 0. padding_mode: beyond the edges, "zeros" gives 0, "border" the
    last element, "reflection" the mirror image.
    """

    align_corners: bool = False
    mode: str = "linear"
    padding_mode: str = "zeros"
    inputs = ("x", "grid")
    types = {"x": NUMERIC | BOOLS | {DType.STRING}, "grid": FLOATS}
    composite = True
    onnx = Onnx("GridSample", since=22)
    samples = staticmethod(_grid_samples)

    def infer(self, x: TensorType, grid: TensorType) -> TensorType:
        for key, known in (("mode", _MODES), ("padding_mode", _PADDINGS)):
            if getattr(self, key) not in known:
                raise UsageError(f"{self.name}: {key}={getattr(self, key)!r} is not one of {', '.join(known)}")
        if self.mode != "nearest" and x.dtype not in FLOATS:
            raise TypeMismatch(f"{x} cannot be interpolated; mode='nearest' takes any element type")
        if x.shape is None and grid.shape is None:
            return TensorType(x.dtype)
        rank = len(x.shape if x.shape is not None else grid.known_shape)
        if rank < 3 or (grid.shape is not None and len(grid.shape) != rank):
            raise TypeMismatch(f"grid {grid} does not have the rank of the image {x}")
        if grid.shape is not None and not dims.may_equal(grid.shape[-1], rank - 2):
            raise TypeMismatch(f"grid {grid} does not have {rank - 2} coordinates in its last axis")
        batch, channels = (dims.fresh(), dims.fresh()) if x.shape is None else x.shape[:2]
        out = tuple(dims.fresh() for _ in range(rank - 2)) if grid.shape is None else grid.shape[1:-1]
        if grid.shape is not None and not dims.may_equal(batch, grid.shape[0]):
            raise TypeMismatch(f"grid {grid} and image {x} differ in batch size")
        y = TensorType(x.dtype, (batch, channels, *out))
        check_sampled(x, y)
        return y

    def reference(self, xp: Any, x: Any, grid: Any) -> Any:
        if x.dtype == object:
            places = np.arange(1, x.size + 1).reshape(x.shape)
            return np.append(np.array("", object), x)[self.reference(xp, places, grid)]
        rank = x.ndim - 2
        columns = [grid[..., rank - 1 - axis] for axis in range(rank)]
        if not grid.size:
            return xp.zeros((*x.shape[:2], *grid.shape[1:-1]), dtype=x.dtype)
        result = self._sampled(ArrayImage(xp, x), columns, rank + 1)
        return xp.ascontiguousarray(xp.moveaxis(result, -1, 1))

    def expand(self, x: Any, grid: Any) -> Any:
        if x.rank is None:
            raise UnsupportedError(f"GridSample in standard operators needs an operand of known rank, not {x}")
        if x.dtype is DType.STRING:
            # Sample the positions 1, 2, ... of the strings; 0, which padding gives, is the empty string.
            one, all_of = np.array(1, np.int64), np.array([-1])
            places = F.reshape(F.range(one, F.add(F.size(x), one), one), F.shape(x))
            words = F.concat(np.array([""], object), F.reshape(x, all_of), axis=0)
            return F.gather(words, F.grid_sample(places, grid, **self.attributes()))
        if x.dtype is DType.BOOL:
            bits = F.grid_sample(F.cast(x, to=DType.UINT8), grid, **self.attributes())
            return F.cast(bits, to=DType.BOOL)
        rank = x.rank - 2
        points = converted(grid, wide_type(grid.dtype))
        columns = [F.gather(points, np.array(rank - 1 - axis, np.int64), axis=-1) for axis in range(rank)]
        if self.mode == "linear" and rank == 2 and self.padding_mode != "reflection":
            at = [self._places(column, length_of_axis(x, axis, column)) for axis, column in enumerate(columns)]
            result = F.linear_sample(x, *at, border=self.padding_mode == "border")
        else:
            result = self._sampled(GraphImage(x), columns, rank + 1)
        return F.transpose(result, perm=(0, rank + 1, *range(1, rank + 1)))

    def _sampled(self, image: Any, columns: list[Any], rank: int) -> Any:
        """Return samples [N, *out, C] at the coordinates `columns`, one [N, *out] per axis, of this rank."""
        taps = []
        for axis, column in enumerate(columns):
            size = image.length(axis, column)
            at = self._places(column, size)
            if self.mode == "nearest":
                at = image.round(at)
            taps.append(self._taps(image, axis, at, size))
        return interpolated(image, image.batch(rank), taps)

    def _places(self, column: Any, size: Any) -> Any:
        """Convert coordinates of the grid to positions along an axis of this size."""
        width = size - 1.0 if self.align_corners else size
        return (column + 1.0) * width * 0.5 - (0.0 if self.align_corners else 0.5)

    def _taps(self, image: Any, axis: int, at: Any, size: Any) -> list[Tap]:
        fold: Any = None
        if self.padding_mode == "reflection":
            low, high = (0.0, size - 1.0) if self.align_corners else (-0.5, size - 0.5)

            def fold(places: Any) -> Any:
                return _reflected(image, places, low, high)

            at = fold(at)
        else:
            # Farther points have all their taps beyond the border, too. Clipping prevents overflow.
            at = image.clip(at, -4.0, size + 4.0)
            if self.padding_mode == "border":
                fold = unmoved
        if self.mode == "nearest":
            return [tap(image, axis, at, None, fold)]
        return (linear_taps if self.mode == "linear" else cubic_taps)(image, axis, at, fold)


def _reflected(image: Any, at: Any, low: float, high: Any) -> Any:
    """Mirror coordinates at `low` and `high` until they lie between them: a triangular wave."""
    span = high - low
    # With align_corners, the ends of an axis with one element coincide: avoid 0 / 0.
    period = image.clip(span * 2.0, 1.0, span * 2.0 + 1.0)
    shifted = at - low
    shifted = shifted - image.floor(shifted / period) * period
    return image.where(shifted <= span, shifted, period - shifted) + low


def _affine_samples() -> tuple[Sample, ...]:
    return (
        Sample((2, 2, 3), np.array([2, 3, 4, 5])),
        Sample((2, 2, 3), np.array([2, 3, 4, 5]), align_corners=True),
        Sample((1, 3, 4), np.array([1, 2, 2, 3, 4])),
        Sample((1, 3, 4), np.array([1, 2, 2, 3, 4]), align_corners=True),
        # onnx's evaluator divides by zero.
        Sample((1, 2, 3), np.array([1, 1, 1, 3]), align_corners=True, onnx=False),
    )


@op
class AffineGrid(Op):
    """The grid for GridSample that applies an affine transformation to images of `size`.

    theta: [N, r, r + 1] for r = 2 or 3 spatial axes; size: int64, the sizes N, C, *spatial. The result is [N, *spatial,
    r]: for each position, theta times (x, y, 1) or (x, y, z, 1), where x is the coordinate along the last axis and y
    along the one before it. Positions are the centres of elements; -1 and 1 are the outer edges of the image. With
    `align_corners`, -1 and 1 are the centres of the first and last element, and a single element is at 0.
    """

    align_corners: bool = False
    inputs = ("theta", "size")
    outputs = ("grid",)
    types = {"theta": FLOATS, "size": INT64}
    composite = True
    onnx = Onnx("AffineGrid", since=20)
    samples = staticmethod(_affine_samples)

    def infer(self, theta: TensorType, size: TensorType) -> TensorType:
        length = length_of(size)
        if theta.shape is not None and len(theta.shape) != 3:
            raise TypeMismatch(f"{theta} is not a batch of matrices")
        rows = None if theta.shape is None else theta.shape[1]
        if length is None:
            if not isinstance(rows, int):
                return TensorType(theta.dtype)
            length = rows + 2
        rank = length - 2
        if rank not in (2, 3):
            raise TypeMismatch(f"size {size} has {rank} spatial axes, not 2 or 3")
        if not fits(theta.shape, (dims.fresh(), rank, rank + 1)):
            raise TypeMismatch(f"{theta} does not transform {rank} axes")
        batch = dims.fresh() if theta.shape is None else theta.shape[0]
        spatial: tuple[Dim, ...] = fresh_shape(rank) or ()
        if size.value is not None:
            spatial = size.value[2:]
            if not dims.may_equal(batch, size.value[0]):
                raise TypeMismatch(f"{theta} is not a batch of {size.value[0]} matrices")
        return TensorType(theta.dtype, (batch, *spatial, rank))

    def reference(self, xp: Any, theta: Any, size: Any) -> Any:
        spatial = [int(n) for n in size[2:]]
        rank = len(spatial)
        scaled = [self._positions(xp.arange(n).astype(theta.dtype), theta.dtype.type(n), xp.maximum) for n in spatial]
        columns = xp.meshgrid(*scaled, indexing="ij")[::-1]
        homogeneous = xp.stack([*columns, xp.ones(spatial, dtype=theta.dtype)], axis=-1).reshape(-1, rank + 1)
        grid = xp.matmul(homogeneous[None], xp.swapaxes(theta, 1, 2))
        return grid.reshape(theta.shape[0], *spatial, rank)

    def expand(self, theta: Any, size: Any) -> Any:
        grid_rank = self.infer(theta.tensor, size.tensor).rank
        if grid_rank is None:
            raise UnsupportedError(f"AffineGrid in standard operators needs a size of known length, not {size}")
        rank = grid_rank - 2
        wide = wide_type(theta.dtype)
        spatial = F.slice(size, i64(2), i64(2 + rank), i64(0))
        one = F.expand(F.constant(value=np.ones((), wide.numpy)), spatial)
        columns = [one]
        for axis in range(rank):
            count = F.gather(spatial, np.array(axis, np.int64))
            index = F.cast(F.range(np.array(0, np.int64), count, np.array(1, np.int64)), to=wide)
            at = self._positions(index, F.cast(count, to=wide), F.max)
            column = F.unsqueeze(at, np.arange(1, rank - axis)) if axis < rank - 1 else at
            columns.insert(0, F.mul(column, one))
        points = F.concat(*(F.reshape(c, i64(-1, 1)) for c in columns), axis=1)
        grid = F.mat_mul(points, F.transpose(converted(theta, wide), perm=(0, 2, 1)))
        shape = F.concat(F.shape(theta, start=0, end=1), spatial, i64(rank), axis=0)
        return converted(F.reshape(grid, shape, allowzero=True), theta.dtype)

    def _positions(self, index: Any, size: Any, maximum: Any) -> Any:
        """Return the positions of the elements of one axis, in [-1, 1]."""
        if self.align_corners:
            # A single element lies at 0.
            last = size - 1.0
            return (index * 2.0 - last) / maximum(last, 1.0)
        return (index * 2.0 + 1.0) / size - 1.0
