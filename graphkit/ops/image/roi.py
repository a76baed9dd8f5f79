"""Regions of interest: RoiAlign and MaxRoiPool pool them, NonMaxSuppression selects them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch, UnsupportedError, UsageError
from graphkit.ir import dims
from graphkit.ir.dims import Dim
from graphkit.ir.graph import Node
from graphkit.ir.types import FLOATS, DType, TensorType
from graphkit.named_tuples import NamedTuple
from graphkit.ops._base import F, Onnx, Op, Rand, Sample, op
from graphkit.ops.axes import INT64, i64
from graphkit.ops.image.interpolation import ArrayImage, GraphImage, Tap, interpolated, linear_taps, terms, unmoved
from graphkit.ops.operands import converted, fits, wide_type

_ROIS = np.array([[0.3, 0.2, 3.6, 4.1], [1.2, 1.7, 5.9, 3.8], [-1.6, 0.4, 9.3, 2.9]], np.float32)
_IMAGES = i64(1, 0, 1)


def _check_image(x: TensorType) -> tuple[Dim, Dim]:
    """Return (batch size, channels) of images x: [N, C, H, W]. Raises TypeMismatch for another rank."""
    if x.shape is None:
        return dims.fresh(), dims.fresh()
    if len(x.shape) != 4:
        raise TypeMismatch(f"{x} is not a batch of images [N, C, H, W]")
    return x.shape[0], x.shape[1]


def _roi_samples() -> tuple[Sample, ...]:
    x = (2, 2, 5, 6)
    return (
        Sample(x, _ROIS, _IMAGES, output_height=2, output_width=3, sampling_ratio=2),
        Sample(x, Rand((3, 4), 0.6, 4.2), _IMAGES, output_height=2, sampling_ratio=2),
        Sample(x, _ROIS, _IMAGES, output_height=2, output_width=2),
        Sample(
            x,
            _ROIS * 2,
            _IMAGES,
            output_height=3,
            output_width=2,
            spatial_scale=0.5,
            coordinate_transformation_mode="output_half_pixel",
        ),
        Sample(x, _ROIS, _IMAGES, output_height=2, output_width=2, mode="max"),
        # A region without area holds no samples.
        Sample(x, np.array([[2.0, 2.0, 1.0, 1.0]], np.float32), i64(0), output_height=2, grad=False),
        Sample(x, np.zeros((0, 4), np.float32), np.zeros(0, np.int64), output_height=2, sampling_ratio=1),
    )


@op
class RoiAlign(Op):
    """Pool regions of images into bins of equal size: each bin is the mean (or maximum) of interpolated samples.

    He et al. 2017, Mask R-CNN. x: [N, C, H, W]; rois: [R, 4] as x1, y1, x2, y2, which are multiplied by
    `spatial_scale`; batch_indices: int64 [R], the image of each region. The result is [R, C, output_height,
    output_width].

    Along each axis a bin has `sampling_ratio` samples, at equal distances. With 0, their number is the size of the bin
    in elements, rounded up. Each sample is interpolated bilinearly, from four elements. With mode="avg", a bin is the
    mean of its samples. With mode="max", it is the largest product of an element and its interpolation weight.
    coordinate_transformation_mode="half_pixel" shifts the corners by -0.5; "output_half_pixel" does not, and makes
    regions at least one element wide.
    """

    coordinate_transformation_mode: str = "half_pixel"
    mode: str = "avg"
    output_height: int = 1
    output_width: int = 1
    sampling_ratio: int = 0
    spatial_scale: float = 1.0
    inputs = ("x", "rois", "batch_indices")
    checks_values = True
    types = {"x": FLOATS, "rois": "x", "batch_indices": INT64}
    onnx = Onnx("RoiAlign", since=22)
    samples = staticmethod(_roi_samples)

    def infer(self, x: TensorType, rois: TensorType, batch_indices: TensorType) -> TensorType:
        if self.mode not in ("avg", "max"):
            raise UsageError(f"RoiAlign: mode={self.mode!r} is not one of avg, max")
        if self.coordinate_transformation_mode not in ("half_pixel", "output_half_pixel"):
            known = "half_pixel, output_half_pixel"
            raise UsageError(f"RoiAlign: {self.coordinate_transformation_mode!r} is not one of {known}")
        _, channels = _check_image(x)
        if not fits(rois.shape, (dims.fresh(), 4)) or not fits(batch_indices.shape, (dims.fresh(),)):
            raise TypeMismatch(f"regions {rois} of images {batch_indices} are not [R, 4] and [R]")
        count = dims.fresh() if rois.shape is None else rois.shape[0]
        if batch_indices.shape is not None:
            if not dims.may_equal(count, batch_indices.shape[0]):
                raise TypeMismatch(f"regions {rois} and their images {batch_indices} differ in number")
            count = batch_indices.shape[0] if rois.shape is None else count
        return TensorType(x.dtype, (count, channels, self.output_height, self.output_width))

    def reference(self, xp: Any, x: Any, rois: Any, batch_indices: Any) -> Any:
        if not rois.shape[0]:
            return xp.zeros((0, x.shape[1], self.output_height, self.output_width), dtype=x.dtype)
        if not 0 <= int(batch_indices.min()) <= int(batch_indices.max()) < x.shape[0]:
            raise TypeMismatch(f"batch_indices must be from 0 to {x.shape[0] - 1}")
        pooled = self._pooled(ArrayImage(xp, x), [rois[:, i] for i in range(4)], batch_indices)
        return xp.ascontiguousarray(xp.moveaxis(pooled, -1, 1))

    def expand(self, x: Any, rois: Any, batch_indices: Any) -> Any:
        if x.rank is None:
            raise UnsupportedError(f"RoiAlign in standard operators needs an operand of known rank, not {x}")
        wide = wide_type(x.dtype)
        corners = converted(rois, wide)
        columns = [F.gather(corners, np.array(i, np.int64), axis=1) for i in range(4)]
        pooled = self._pooled(GraphImage(converted(x, wide)), columns, batch_indices)
        return converted(F.transpose(pooled, perm=(0, 3, 1, 2)), x.dtype)

    def _pooled(self, image: Any, corners: list[Any], batch: Any) -> Any:
        """Return [R, output_height, output_width, C] for the corners x1, y1, x2, y2, each [R]."""
        x1, y1, x2, y2 = corners
        rows = self._bins(image, 0, y1, y2, self.output_height)
        columns = self._bins(image, 1, x1, x2, self.output_width)
        # Samples are [R, output_height, output_width, rows in a bin, columns in a bin].
        taps = [
            [Tap(image.with_axes(t.place, *axes), image.with_axes(t.weight, *axes)) for t in each.taps]
            for each, axes in ((rows, (2, 4)), (columns, (1, 3)))
        ]
        image.admit(*(each[0].weight for each in taps))
        place = image.with_axes(batch, 1, 2, 3, 4)
        if self.sampling_ratio > 0:
            held, count = None, float(self.sampling_ratio**2)
        else:
            held = image.both(image.with_axes(rows.held, 2, 4), image.with_axes(columns.held, 1, 3))
            held = image.with_axes(held, 5)
            count = image.with_axes(image.maximum(rows.count * columns.count, 1.0), 1, 2, 3)
        if self.mode == "avg":
            total = interpolated(image, place, taps)
            return image.total(total if held is None else image.where(held, total, 0.0), 3, 4) / count
        largest = None
        for term in terms(image, place, taps):
            largest = term if largest is None else image.maximum(largest, term)
        if held is None:
            return image.peak(largest, 3, 4)
        peak = image.peak(image.where(held, largest, -np.inf), 3, 4)
        return image.where(peak <= -np.inf, 0.0, peak)

    def _bins(self, image: Any, axis: int, first: Any, last: Any, bins: int) -> _Bins:
        """Return the samples of all bins along one axis, for regions from `first` to `last`."""
        aligned = self.coordinate_transformation_mode == "half_pixel"
        start = first * self.spatial_scale - (0.5 if aligned else 0.0)
        length = (last - first) * self.spatial_scale
        if not aligned:
            length = image.maximum(length, 1.0)
        size = length / float(bins)
        held: Any = None
        if self.sampling_ratio > 0:
            count: Any = float(self.sampling_ratio)
            number, spacing = image.steps(self.sampling_ratio, size), size / count
        else:
            count = image.maximum(image.ceil(size), 0.0)
            present = image.maximum(count, 1.0)
            number, spacing = image.steps(image.largest(present), size), size / present
            held = number < image.with_axes(count, 1, 2)
        edges = image.with_axes(image.steps(bins, size), 1) * image.with_axes(size, 1, 2)
        at = image.with_axes(start, 1, 2) + edges + (number + 0.5) * image.with_axes(spacing, 1, 2)
        extent = image.length(axis, at)
        # A sample may lie up to one element beyond the border, where the border is repeated.
        near = image.both(at >= -1.0, at <= extent)
        taps = linear_taps(image, axis, image.clip(at, 0.0, extent - 1.0), unmoved)
        return _Bins([Tap(t.place, image.where(near, t.weight, 0.0)) for t in taps], held, count)


class _Bins(NamedTuple):
    """Samples along one axis: taps [R, bins, samples]; held: mask of those that a region has; count: their number."""

    taps: list[Tap]
    held: Any
    count: Any


def _max_roi_samples() -> tuple[Sample, ...]:
    rois = np.array([[0, 0.2, 0.6, 3.7, 4.2], [1, 1.2, 1.9, 5.8, 3.2], [1, 4.0, 3.0, 12.0, 9.0]], np.float32)
    doubled = np.array([1, 2, 2, 2, 2], np.float32)
    return (
        # Corners are rounded: their derivative is 0, but finite differences across a step are not.
        Sample((2, 2, 5, 6), rois, pooled_shape=(2, 3), dtypes=FLOATS),
        Sample((2, 2, 5, 6), rois * doubled, pooled_shape=(3, 2), spatial_scale=0.5, dtypes=FLOATS),
        Sample((1, 2, 3, 3), np.array([[0, 5, 5, 7, 7]], np.float32), pooled_shape=(2, 2), dtypes=FLOATS),
    )


@op
class MaxRoiPool(Op):
    """Maximum over the bins of each region; corners and bins are rounded to whole elements. Girshick 2015.

    x: [N, C, H, W]; rois: [R, 5], each (index of the image, x1, y1, x2, y2); corners are multiplied by `spatial_scale`
    and belong to the region. The result is [R, C, *pooled_shape], 0 for a bin outside the image. If elements tie, they
    share the gradient equally.
    """

    pooled_shape: tuple[int, ...]
    spatial_scale: float = 1.0
    inputs = ("x", "rois")
    types = {"x": FLOATS, "rois": "x"}
    composite = True
    onnx = Onnx("MaxRoiPool", since=22)
    samples = staticmethod(_max_roi_samples)

    def infer(self, x: TensorType, rois: TensorType) -> TensorType:
        if len(self.pooled_shape) != 2 or min(self.pooled_shape) < 1:
            raise TypeMismatch(f"pooled_shape={self.pooled_shape} is not a height and a width")
        _, channels = _check_image(x)
        if not fits(rois.shape, (dims.fresh(), 5)):
            raise TypeMismatch(f"regions {rois} are not [R, 5]")
        count = dims.fresh() if rois.shape is None else rois.shape[0]
        return TensorType(x.dtype, (count, channels, *self.pooled_shape))

    def reference(self, xp: Any, x: Any, rois: Any) -> Any:
        return self._pooled(ArrayImage(xp, x), x[rois[:, 0].astype(np.int64)], [rois[:, i] for i in range(1, 5)])

    def expand(self, x: Any, rois: Any) -> Any:
        if x.rank is None:
            raise UnsupportedError(f"MaxRoiPool in standard operators needs an operand of known rank, not {x}")
        wide = wide_type(x.dtype)
        image, *corners = (F.gather(converted(rois, wide), np.array(i, np.int64), axis=1) for i in range(5))
        chosen = F.gather(converted(x, wide), F.cast(image, to=DType.INT64), axis=0)
        return converted(self._pooled(GraphImage(x), chosen, corners), x.dtype)

    def _pooled(self, image: Any, chosen: Any, corners: list[Any]) -> Any:
        """Return [R, C, *pooled_shape] from each region's image [R, C, H, W] and corners x1, y1, x2, y2, each [R]."""
        x1, y1, x2, y2 = corners
        y = chosen
        for axis, (first, last) in enumerate(((y1, y2), (x1, x2))):
            # The pooled axis moves to the end, so the next one to pool is at the same position.
            bins = self._bins(image, axis, first, last)
            masked = (image.where(image.with_axes(inside, 1, 3), y, -np.inf) for inside in bins)
            y = image.join(*(image.with_axes(image.peak(each, 2), 3) for each in masked))
        return image.where(y <= -np.inf, 0.0, y)

    def _bins(self, image: Any, axis: int, first: Any, last: Any) -> Iterator[Any]:
        """Yield a mask for each bin along one axis: the elements of the bin in each region, bool [R, size]."""
        start, end = (_rounded(image, corner * self.spatial_scale) for corner in (first, last))
        count = self.pooled_shape[axis]
        size = image.maximum(end - start + 1.0, 1.0) / float(count)
        place = image.steps(image.sizes[axis], size)
        for number in range(count):
            low = image.with_axes(start + image.floor(size * float(number)), 1)
            high = image.with_axes(start + image.ceil(size * float(number + 1)), 1)
            yield image.both(place >= low, place < high)


def _rounded(image: Any, at: Any) -> Any:
    """Round to the nearest whole number, ties away from zero."""
    return image.where(at >= 0.0, image.floor(at + 0.5), image.ceil(at - 0.5))


def _nms_samples() -> tuple[Sample, ...]:
    rng = np.random.default_rng(5)
    corners = rng.uniform(0, 4, (2, 8, 2))
    boxes = np.concatenate([corners, corners + rng.uniform(-3, 3, (2, 8, 2))], axis=-1).astype(np.float32)
    centred = np.abs(boxes) + np.float32(0.1)
    scores = rng.uniform(0, 1, (2, 3, 8)).astype(np.float32)
    scores[:, 1, ::2] = 0.5
    most, overlap, least = i64(3), np.array([0.3], np.float32), np.array([0.4], np.float32)
    return (
        Sample(boxes, scores, most, overlap, least),
        Sample(boxes, scores, i64(8), overlap),
        Sample(centred, scores, most, overlap, least, center_point_box=1),
        Sample(boxes, scores, i64(0), overlap),
        # onnx's evaluator needs all operands.
        Sample(boxes, scores, i64(8), onnx=False),
        Sample(boxes, scores, onnx=False),
    )


@op
class NonMaxSuppression(Op):
    """Select the boxes with the highest scores, and drop boxes that overlap a selected one.

    For each image and class, boxes are visited by descending score; if scores are equal, by index. A box is selected
    if its intersection over union with each box selected before is at most `iou_threshold` (0 by default), and if its
    score is above `score_threshold` (no limit by default). At most `max_output_boxes_per_class` boxes are selected; it
    is 0 by default, which selects none.

    boxes: [N, B, 4] as y1, x1, y2, x2 of any two opposite corners, or with center_point_box=1 as x, y of the centre,
    width, height; scores: [N, classes, B]. The result, int64 [selected, 3], contains (image, class, box) of each
    selected box.
    """

    center_point_box: int = 0
    inputs = ("boxes", "scores", "max_output_boxes_per_class?", "iou_threshold?", "score_threshold?")
    outputs = ("selected_indices",)
    types = {
        "boxes": frozenset({DType.FLOAT32}),
        "scores": frozenset({DType.FLOAT32}),
        "max_output_boxes_per_class": INT64,
        "iou_threshold": frozenset({DType.FLOAT32}),
        "score_threshold": frozenset({DType.FLOAT32}),
    }
    onnx = Onnx("NonMaxSuppression", since=11)
    samples = staticmethod(_nms_samples)

    def infer(self, boxes: TensorType, scores: TensorType, *limits: TensorType | None) -> TensorType:
        if self.center_point_box not in (0, 1):
            raise UsageError(f"NonMaxSuppression: center_point_box={self.center_point_box} is neither 0 nor 1")
        if not fits(boxes.shape, (dims.fresh(), dims.fresh(), 4)):
            raise TypeMismatch(f"boxes {boxes} are not [N, B, 4]")
        images, count = (dims.fresh(), dims.fresh()) if boxes.shape is None else boxes.shape[:2]
        if not fits(scores.shape, (images, dims.fresh(), count)):
            raise TypeMismatch(f"scores {scores} do not belong to boxes {boxes}")
        return TensorType(DType.INT64, (dims.fresh(), 3))

    def reference(
        self, xp: Any, boxes: Any, scores: Any, most: Any = None, overlap: Any = None, least: Any = None
    ) -> Any:
        limit = 0 if most is None else max(int(most.reshape(-1)[0]), 0)
        threshold = 0.0 if overlap is None else float(overlap.reshape(-1)[0])
        low, high = self._corners(xp, boxes)
        selected = []
        for image, label in np.ndindex(*scores.shape[:2]):
            score = scores[image, label]
            # A detector's scores are mostly low: only those above the threshold are worth sorting.
            above = xp.arange(score.shape[0]) if least is None else xp.nonzero(score > least.reshape(-1)[0])[0]
            # Sorting the reversed scores and reversing the result keeps equal ones in their order.
            order = above[above.shape[0] - 1 - xp.flip(xp.argsort(xp.flip(score[above]), kind="stable"))]
            chosen = _greedy(xp, low[image][order], high[image][order], threshold, limit)
            selected += [(image, label, box) for box in order[chosen].tolist()]
        return xp.asarray(np.array(selected, np.int64).reshape(-1, 3))

    def _corners(self, xp: Any, boxes: Any) -> tuple[Any, Any]:
        """Return the lower and the upper corners of the boxes, each [N, B, 2]."""
        first, second = boxes[..., :2], boxes[..., 2:]
        if self.center_point_box:
            return first - second / 2, first + second / 2
        return xp.minimum(first, second), xp.maximum(first, second)

    def grad(self, node: Node, dy: Any) -> Any:
        return None


def _greedy(xp: Any, low: Any, high: Any, threshold: float, limit: int) -> Any:
    """Return at most `limit` positions: of the boxes, best first, those that overlap no box chosen before.

    low, high: [B, 2], the corners. The overlap is the area shared by two boxes over that of their union.
    """
    y1, x1, y2, x2 = (xp.ascontiguousarray(c) for c in (low[:, 0], low[:, 1], high[:, 0], high[:, 1]))
    area = (y2 - y1) * (x2 - x1)
    alive = xp.ones(area.shape, dtype=bool)
    chosen: list[int] = []
    for box in range(area.shape[0]):
        if len(chosen) >= limit:
            break
        if not alive[box]:
            continue
        chosen.append(box)
        rest = slice(box + 1, None)
        height = xp.minimum(y2[rest], y2[box]) - xp.maximum(y1[rest], y1[box])
        width = xp.minimum(x2[rest], x2[box]) - xp.maximum(x1[rest], x1[box])
        shared = xp.maximum(height, 0) * xp.maximum(width, 0)
        # Boxes of area 0 do not overlap: 0 / 0 is NaN, which exceeds no threshold.
        alive[rest] &= ~(shared / (area[rest] + area[box] - shared) > threshold)
    return xp.asarray(chosen, dtype=np.int64)
