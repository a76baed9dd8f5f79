"""CropAndResize: crop boxes from images, and resize them to one size."""

from __future__ import annotations

from typing import Any

from graphkit.errors import UnsupportedError
from graphkit.ir.types import DType
from graphkit.onnx_io.upgrade import NodeView, Results
from graphkit.onnx_io.upgrade.contrib import contrib
from graphkit.onnx_io.upgrade.contrib.scores import int64
from graphkit.ops import F
from graphkit.ops.axes import i64
from graphkit.ops.pointwise import scalar_like


def _positions(low: Any, high: Any, extent: Any, count: Any) -> Any:
    """Positions along an axis to sample for each box: [boxes, count]. If `count` is 1, the position is the middle."""
    one, half = scalar_like(1.0, low), scalar_like(0.5, low)
    last = F.sub(F.cast(extent, to=low.dtype), one)
    steps = F.cast(F.range(int64(0), count, int64(1)), to=low.dtype)
    apart = F.div(F.mul(F.sub(high, low), last), F.max(F.sub(F.cast(count, to=low.dtype), one), one))
    spread = F.add(F.mul(low, last), F.mul(steps, apart))
    middle = F.mul(F.mul(half, F.add(low, high)), last)
    return F.where(F.greater(count, int64(1)), spread, F.add(middle, F.mul(steps, scalar_like(0.0, low))))


def _picked(pictures: Any, batch: Any, rows: Any, columns: Any, sizes: Any) -> Any:
    """Gather pixels of images [N, H, W, C] at positions [boxes, h, w]."""
    place = [F.expand(F.cast(v, to=DType.INT64), sizes) for v in (batch, rows, columns)]
    return F.gather_nd(pictures, F.concat(*(F.unsqueeze(v, i64(-1)) for v in place), axis=-1))


@contrib("CropAndResize")
def _crop_and_resize(node: NodeView) -> Results:
    """Resize boxes [y1, x1, y2, x2], in fractions of the image size, to one size. Corners are aligned."""
    x, boxes, which, size = (node.operand(i) for i in range(4))
    mode, outside = node.take("mode", "bilinear"), node.take("extrapolation_value", 0.0)
    if mode not in ("bilinear", "nearest"):
        raise UnsupportedError(f"{node.label}: mode {mode!r} is not supported")
    size = F.cast(size, to=DType.INT64)
    height, width = (F.gather(size, int64(i)) for i in (0, 1))
    extents = [F.gather(F.shape(x), int64(i)) for i in (2, 3)]
    y1, x1, y2, x2 = (F.slice(boxes, i64(i), i64(i + 1), i64(1)) for i in range(4))
    rows = F.unsqueeze(_positions(y1, y2, extents[0], height), i64(2))
    columns = F.unsqueeze(_positions(x1, x2, extents[1], width), i64(1))
    inside: Any = None
    limits = []
    for place, extent in ((rows, extents[0]), (columns, extents[1])):
        last = F.sub(F.cast(extent, to=place.dtype), scalar_like(1.0, place))
        zero = scalar_like(0.0, place)
        within = F.and_(F.greater_or_equal(place, zero), F.less_or_equal(place, last))
        inside = within if inside is None else F.and_(inside, within)
        # Positions outside the image get the extrapolation value at the end.
        limits.append((F.where(within, place, zero), last))
    pictures = F.transpose(x, perm=(0, 2, 3, 1))
    batch = F.unsqueeze(F.cast(which, to=DType.INT64), i64(1, 2))
    sizes = F.concat(F.shape(which), size, axis=0)
    found = _nearest(pictures, batch, limits, sizes) if mode == "nearest" else _linear(pictures, batch, limits, sizes)
    filled = F.where(F.unsqueeze(F.expand(inside, sizes), i64(3)), found, scalar_like(outside, found))
    return (F.transpose(filled, perm=(0, 3, 1, 2)),)


def _nearest(pictures: Any, batch: Any, limits: list[tuple[Any, Any]], sizes: Any) -> Any:
    # Round to nearest; 0.5 is rounded up.
    rows, columns = (F.floor(F.add(place, scalar_like(0.5, place))) for place, _ in limits)
    return _picked(pictures, batch, rows, columns, sizes)


def _linear(pictures: Any, batch: Any, limits: list[tuple[Any, Any]], sizes: Any) -> Any:
    (row, last_row), (column, last_column) = limits
    top, left = F.floor(row), F.floor(column)
    one = scalar_like(1.0, row)
    bottom, right = F.min(F.add(top, one), last_row), F.min(F.add(left, one), last_column)
    down, across = (F.unsqueeze(F.sub(a, b), i64(3)) for a, b in ((row, top), (column, left)))
    lines = []
    for line in (top, bottom):
        first, second = (_picked(pictures, batch, line, c, sizes) for c in (left, right))
        lines.append(F.add(first, F.mul(F.sub(second, first), across)))
    return F.add(lines[0], F.mul(F.sub(lines[1], lines[0]), down))
