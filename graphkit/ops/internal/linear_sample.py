"""LinearSample: images at coordinates between their elements."""

from __future__ import annotations

from typing import Any

from graphkit.errors import TypeMismatch
from graphkit.ir import dims
from graphkit.ir.types import FLOATS, TensorType
from graphkit.ops._base import DOMAIN, Op, Rand, Sample, op
from graphkit.ops.image.interpolation import ArrayImage, GraphImage, check_sampled, interpolated, linear_taps, unmoved


@op
class LinearSample(Op):
    """Interpolate images linearly at points.

    Attributes:
        border: Outside of an image, read the nearest element, instead of 0.

    Operands:
        x: [N, C, height, width].
        row: [N, *points]: coordinates along the height, in elements.
        column: [N, *points]: coordinates along the width.

    Returns:
        [N, *points, C].
    """

    border: bool = False
    domain = DOMAIN
    composite = True
    inputs = ("x", "row", "column")
    types = {"x": FLOATS, "row": FLOATS, "column": "row"}
    samples = lambda: (
        Sample((2, 3, 4, 5), Rand((2, 6), -2.0, 6.0), Rand((2, 6), -2.0, 6.0), dtypes=FLOATS),
        Sample((2, 3, 4, 5), Rand((2, 3, 2), -2.0, 6.0), Rand((2, 3, 2), -2.0, 6.0), border=True, dtypes=FLOATS),
        Sample((1, 2, 1, 1), Rand((1, 4), -1.0, 1.0), Rand((1, 4), -1.0, 1.0)),
    )

    def infer(self, x: TensorType, row: TensorType, column: TensorType) -> TensorType:
        if x.shape is not None and len(x.shape) != 4:
            raise TypeMismatch(f"{x} is not a batch of images with two axes")
        points = row.shape if row.shape is not None else column.shape
        if points is None:
            return TensorType(x.dtype)
        if not points:
            raise TypeMismatch(f"{row} has no axis for the images")
        if column.shape is not None and not (
            len(points) == len(column.shape) and all(map(dims.may_equal, points, column.shape))
        ):
            raise TypeMismatch(f"{row} and {column} are not coordinates of the same points")
        channels = dims.fresh() if x.shape is None else x.shape[1]
        if x.shape is not None and not dims.may_equal(x.shape[0], points[0]):
            raise TypeMismatch(f"{row} and {x} differ in the number of images")
        y = TensorType(x.dtype, (*points, channels))
        check_sampled(x, y)
        return y

    def reference(self, xp: Any, x: Any, row: Any, column: Any) -> Any:
        return self._sampled(ArrayImage(xp, x), row, column, row.ndim)

    def expand(self, x: Any, row: Any, column: Any) -> Any:
        return self._sampled(GraphImage(x), row, column, row.rank)

    def _sampled(self, image: Any, row: Any, column: Any, rank: int) -> Any:
        taps = []
        for axis, at in enumerate((row, column)):
            # Farther points have both taps beyond the border, too. Clipping prevents overflow.
            near = image.clip(at, -4.0, image.length(axis, at) + 4.0)
            taps.append(linear_taps(image, axis, near, unmoved if self.border else None))
        return interpolated(image, image.batch(rank), taps)
