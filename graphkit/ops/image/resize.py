"""Resize and its adjoint. Resizing is linear and separable: along each axis, a product with a matrix of weights.

Coordinates are ONNX's. If the standard's text and its evaluator differ (sizes of align_corners, a length of 1 under
pytorch_half_pixel), graphkit follows the text, as ONNX Runtime does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch, UnsupportedError, UsageError
from graphkit.ir import dims
from graphkit.ir.dims import Dim, DimExpr
from graphkit.ir.graph import Node
from graphkit.ir.types import ANY, FLOATS, INDICES, NUMERIC, DType, TensorType
from graphkit.named_tuples import NamedTuple
from graphkit.ops._base import DOMAIN, F, Onnx, Op, Sample, op
from graphkit.ops.axes import i64, shape_text
from graphkit.ops.image.resampling import Taps
from graphkit.ops.operands import fits

_MODES = ("nearest", "linear", "cubic")
_NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
_COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
    # Only in opsets 11 and 12 of the standard; ONNX Runtime accepts it in all.
    "tf_half_pixel_for_nn",
)
_POLICIES = ("stretch", "not_larger", "not_smaller")
_CROP = "tf_crop_and_resize"
# If the denominator of a scale's exact fraction is larger than this, the scaled symbolic size is unknown.
_DENOMINATOR_LIMIT = 1 << 10
# Most elements of a weight matrix that a graph stores densely. Larger ones are stored as a list of nonzero weights.
_DENSE_LIMIT = 1 << 18


class Axis(NamedTuple):
    """One resized axis: number, size before and after, requested scale, region of interest (fractions of the size)."""

    axis: int
    size: int
    resized: int
    scale: float
    start: float
    end: float


class Resizing(Op):
    """Attributes of Resize, and what follows from them and from sizes."""

    antialias: bool = False
    axes: tuple[int, ...] | None = None
    coordinate_transformation_mode: str = "half_pixel"
    cubic_coeff_a: float = -0.75
    exclude_outside: bool = False
    extrapolation_value: float = 0.0
    keep_aspect_ratio_policy: str = "stretch"
    mode: str = "nearest"
    nearest_mode: str = "round_prefer_floor"

    def checked(self) -> None:
        """Raises UsageError for an attribute value that is not known."""
        for key, known in (
            ("mode", _MODES),
            ("coordinate_transformation_mode", _COORDINATES),
            ("nearest_mode", _NEAREST),
            ("keep_aspect_ratio_policy", _POLICIES),
        ):
            if getattr(self, key) not in known:
                raise UsageError(f"{self.name}: {key}={getattr(self, key)!r} is not one of {', '.join(known)}")

    @property
    def rounds(self) -> bool:
        """Whether interpolated integers are rounded. Otherwise, their fraction is cut off, as in ONNX Runtime.

        ONNX Runtime has no cubic interpolation of integers; onnx's evaluator rounds.
        """
        return self.antialias or self.mode == "cubic"

    @property
    def reads_roi(self) -> bool:
        """Whether the region of interest is read."""
        return self.coordinate_transformation_mode == _CROP

    def resized_axes(self, rank: int) -> tuple[int, ...]:
        """Return the axes that scales and sizes refer to. Raises TypeMismatch if one is out of range."""
        if self.axes is None:
            return tuple(range(rank))
        if any(not -rank <= a < rank for a in self.axes):
            raise TypeMismatch(f"axes {self.axes} are out of range for rank {rank}")
        return tuple(a % rank for a in self.axes)

    def _wrong_length(self, name: str, given: TensorType, rank: int) -> str:
        count = None if given.shape is None or len(given.shape) != 1 else given.shape[0]
        if not isinstance(count, int):
            return f"{name} is {given}; expected a vector with one element per resized axis"
        if self.axes is not None:
            return f"{name} has {count} elements, but axes={list(self.axes)} has {len(self.axes)}"
        advice = f"; for the last ones, add axes={list(range(rank - count, rank))}" if 0 < count < rank else ""
        return f"{name} has {count} elements, but x has {rank} axes{advice}"

    def resized_shape(
        self,
        x: TensorType,
        roi: TensorType | None = None,
        scales: TensorType | None = None,
        sizes: TensorType | None = None,
    ) -> tuple[Dim, ...] | None:
        """Return the shape of the result. Unknown sizes are new symbols."""
        self.checked()
        scales, sizes = _present(scales), _present(sizes)
        if (scales is None) == (sizes is None):
            raise TypeMismatch("exactly one of scales and sizes must be given")
        if self.reads_roi and roi is None:
            raise TypeMismatch(f"coordinate_transformation_mode={_CROP} needs a region of interest")
        if x.shape is None:
            return None
        axes = self.resized_axes(len(x.shape))
        given = scales if scales is not None else sizes
        assert given is not None
        if not fits(given.shape, (len(axes),)):
            raise TypeMismatch(self._wrong_length("sizes" if scales is None else "scales", given, len(x.shape)))
        inputs = [x.shape[a] for a in axes]
        if scales is not None:
            known: Sequence[Dim] = (
                [dims.fresh() for _ in axes]
                if scales.floats is None
                else [_scaled_dim(n, s) for n, s in zip(inputs, scales.floats, strict=True)]
            )
        else:
            known = self._sized(inputs, sizes)
        shape = list(x.shape)
        for axis, size in zip(axes, known, strict=True):
            if isinstance(size, int) and (size < 0 or (size > 0 and shape[axis] == 0)):
                raise TypeMismatch(f"axis {axis} of {shape_text(x.shape)} cannot be resized to {size}")
            shape[axis] = size
        return tuple(shape)

    def _sized(self, inputs: Sequence[Dim], sizes: TensorType | None) -> Sequence[Dim]:
        if sizes is not None and sizes.value is not None and self.keep_aspect_ratio_policy == "stretch":
            return sizes.value
        wanted = None if sizes is None else sizes.constants
        known = [n for n in inputs if dims.is_static(n)]
        if wanted is None or len(known) < len(inputs):
            return [dims.fresh() for _ in inputs]
        return self._kept_aspect(known, wanted)[1]

    def _kept_aspect(self, inputs: Sequence[int], wanted: Sequence[int]) -> tuple[float, list[int]]:
        """Return the common scale, and the sizes that result from it, with halves rounded up."""
        choose = min if self.keep_aspect_ratio_policy == "not_larger" else max
        scale = choose(np.float32(w) / np.float32(n) for w, n in zip(wanted, inputs, strict=True))
        return float(scale), [int(np.floor(scale * np.float32(n) + np.float32(0.5))) for n in inputs]

    def plan(self, shape: Sequence[int], roi: Any = None, scales: Any = None, sizes: Any = None) -> list[Axis]:
        """Return the axes that change, for a static shape of x, and vectors in host memory (None or empty: absent)."""
        axes = self.resized_axes(len(shape))
        inputs = [shape[a] for a in axes]
        if scales is not None and len(scales):
            factors = [float(s) for s in scales]
            outputs = [_scaled(n, s) for n, s in zip(inputs, factors, strict=True)]
        elif self.keep_aspect_ratio_policy == "stretch":
            outputs = [int(s) for s in sizes]
            factors = [o / n if n else 1.0 for o, n in zip(outputs, inputs, strict=True)]
        else:
            scale, outputs = self._kept_aspect(inputs, [int(s) for s in sizes])
            factors = [scale] * len(axes)
        regions = [(0.0, 1.0)] * len(axes)
        if self.reads_roi:
            regions = [(float(roi[i]), float(roi[len(axes) + i])) for i in range(len(axes))]
        planned = [
            Axis(a, n, o, s, *region)
            for a, n, o, s, region in zip(axes, inputs, outputs, factors, regions, strict=True)
        ]
        return [p for p in planned if p.size != p.resized or p.scale != 1.0 or (p.start, p.end) != (0.0, 1.0)]

    def coordinates(self, plan: Axis) -> np.ndarray:
        """Return the position of each output element in the input, in units of input elements."""
        # The nearest element is chosen in float32, as in ONNX Runtime, because other rounding can choose another
        # element.
        real: Any = np.float32 if self.mode == "nearest" else np.float64
        position = np.arange(plan.resized, dtype=real)
        scale, size, resized, half = real(plan.scale), real(plan.size), real(plan.resized), real(0.5)
        where: np.ndarray
        match self.coordinate_transformation_mode:
            case "asymmetric":
                where = position / scale
            case "tf_half_pixel_for_nn":
                where = (position + half) / scale
            case "align_corners":
                where = position * (size - 1) / (resized - 1) if plan.resized > 1 else position * 0
            case "pytorch_half_pixel" if plan.resized <= 1:
                where = position * 0
            case "half_pixel_symmetric":
                offset = size * half * (1 - resized / (scale * size))
                where = offset + (position + half) / scale - half
            case "tf_crop_and_resize":
                start, end = real(plan.start), real(plan.end)
                if plan.resized > 1:
                    where = start * (size - 1) + position * (end - start) * (size - 1) / (resized - 1)
                else:
                    where = position * 0 + half * (start + end) * (size - 1)
            case _:
                where = (position + half) / scale - half
        return where

    def outside(self, plan: Axis) -> np.ndarray | None:
        """Return a mask of the output elements that get `extrapolation_value`; None if there are none."""
        if not self.reads_roi:
            return None
        where = self.coordinates(plan)
        mask = (where < 0) | (where > plan.size - 1)
        return mask if mask.any() else None

    def nearest(self, plan: Axis) -> np.ndarray:
        """Return the index of the input element that each output element copies."""
        where = self.coordinates(plan)
        if self.nearest_mode == "floor":
            chosen = np.floor(where)
        elif self.nearest_mode == "ceil":
            chosen = np.ceil(where)
        elif self.nearest_mode == "round_prefer_ceil":
            chosen = np.floor(where + np.float32(0.5))
        else:
            chosen = np.ceil(where - np.float32(0.5))
        nearest: np.ndarray = np.clip(chosen.astype(np.int64), 0, plan.size - 1)
        return nearest

    def taps(self, plan: Axis) -> Taps:
        """Return the weights [resized, size] of one axis. Rows of extrapolated elements are empty."""
        if self.mode == "nearest":
            found = Taps.copies(self.nearest(plan), plan.size)
        else:
            where = self.coordinates(plan)
            kernel, reach = (_hat, 1) if self.mode == "linear" else (_keys(self.cubic_coeff_a), 2)
            # When shrinking with antialias the kernel is stretched over more input elements.
            stretch = min(plan.scale, 1.0) if self.antialias else 1.0
            taps = int(np.ceil(reach / stretch))
            places = np.floor(where)[:, None] + np.arange(-taps, taps + 2)
            weight = kernel((places - where[:, None]) * stretch)
            if self.exclude_outside:
                weight = np.where((places >= 0) & (places <= plan.size - 1), weight, 0.0)
            if self.exclude_outside or self.antialias:
                total = weight.sum(axis=1, keepdims=True)
                weight = weight / np.where(total == 0, 1.0, total)
            # Elements beyond the border repeat it.
            clamped = np.clip(places, 0, plan.size - 1).astype(np.int64)
            found = Taps.windows(clamped, weight, plan.size)
        return found.without(self.outside(plan))


def _present(x: TensorType | None) -> TensorType | None:
    """Return x; None if it is an empty vector, which means an absent operand."""
    return None if x is None or x.shape == (0,) else x


def _scaled(size: int, scale: float) -> int:
    return int(np.float32(size) * np.float32(scale))


def _scaled_dim(size: Dim, scale: float) -> Dim:
    if not 0 < scale < np.inf:
        raise TypeMismatch(f"a size cannot be scaled by {scale:g}")
    if not isinstance(size, DimExpr):
        return _scaled(size, scale)
    from fractions import Fraction  # imports decimal

    exact = Fraction(scale)
    if exact.denominator > _DENOMINATOR_LIMIT:
        return dims.fresh()
    return dims.floordiv(size * exact.numerator, exact.denominator)


def _hat(t: np.ndarray) -> np.ndarray:
    return np.asarray(np.maximum(1.0 - np.abs(t), 0.0))


def _keys(a: float) -> Any:
    """The cubic convolution kernel of Keys (1981), equation 4."""

    def kernel(t: np.ndarray) -> np.ndarray:
        t = np.abs(t)
        near = ((a + 2) * t - (a + 3)) * t * t + 1
        far = ((t - 5) * t + 8) * t * a - 4 * a
        return np.where(t <= 1, near, np.where(t < 2, far, 0.0))

    return kernel


def _host(xp: Any, *vectors: Any) -> list[Any]:
    """Return small vectors as numpy arrays; absent ones stay None."""
    return [None if vector is None else xp.to_host(vector) for vector in vectors]


_FACTORS = np.array([1.0, 1.0, 1.5, 0.6], np.float32)
_IMAGE = (1, 2, 4, 5)


def _sizes(*sizes: int) -> np.ndarray:
    return np.array(sizes, np.int64)


_GRADIENT_CASES: tuple[tuple[tuple[int, ...], np.ndarray, dict[str, Any]], ...] = (
    # (x, sizes, attributes) of the samples of Resize and of its adjoint
    ((1, 2, 3, 4), _sizes(1, 2, 6, 8), {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}),
    (_IMAGE, _sizes(1, 2, 6, 3), {"nearest_mode": "ceil"}),
    (_IMAGE, _sizes(7, 3), {"axes": (3, 2), "nearest_mode": "round_prefer_ceil"}),
    (_IMAGE, _sizes(1, 2, 6, 3), {"mode": "linear"}),
    (_IMAGE, _sizes(7, 3), {"mode": "linear", "coordinate_transformation_mode": "align_corners", "axes": (2, 3)}),
    (_IMAGE, _sizes(1, 2, 1, 8), {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"}),
    (_IMAGE, _sizes(6, 9), {"mode": "linear", "keep_aspect_ratio_policy": "not_larger", "axes": (2, 3)}),
    ((1, 1, 3, 4), _sizes(3, 6), {"mode": "linear", "keep_aspect_ratio_policy": "not_smaller", "axes": (2, 3)}),
    (_IMAGE, _sizes(1, 2, 6, 3), {"mode": "cubic", "cubic_coeff_a": -0.5}),
    (_IMAGE, _sizes(1, 2, 3, 7), {"mode": "cubic", "exclude_outside": True}),
    ((1, 1, 7, 8), _sizes(1, 1, 3, 5), {"mode": "linear", "antialias": True}),
    ((1, 1, 7, 8), _sizes(1, 1, 3, 5), {"mode": "cubic", "antialias": True}),
    ((2, 4), _sizes(5, 3), {"mode": "linear"}),
)


def _resize_samples() -> tuple[Sample, ...]:
    counted = np.arange(8, dtype=np.int32).reshape(1, 1, 2, 4)
    region = np.array([0.0, 0.0, 0.25, 0.5, 1.0, 1.0, 1.25, 0.75], np.float32)
    crop: dict[str, Any] = {"coordinate_transformation_mode": _CROP, "extrapolation_value": 3.5}
    # grad=False: the gradient in scales and roi, which move the places where x is read, is not defined.
    scaled: dict[str, Any] = {"grad": False, "dtypes": FLOATS}
    corners: dict[str, Any] = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
    return (
        *(Sample(x, None, None, sizes, dtypes=FLOATS, **attrs) for x, sizes, attrs in _GRADIENT_CASES),
        Sample((0, 1, 2, 2), None, None, _sizes(0, 1, 4, 4), mode="linear", dtypes=FLOATS),
        *(Sample(_IMAGE, None, _FACTORS, mode=mode, **scaled) for mode in _MODES),
        *(
            Sample(_IMAGE, None, _FACTORS, mode="linear", coordinate_transformation_mode=how, **scaled)
            for how in ("asymmetric", "half_pixel_symmetric", "pytorch_half_pixel")
        ),
        # onnx's evaluator takes the fractional length for align_corners, and no negative axes.
        Sample(_IMAGE, None, _FACTORS, **corners, onnx=False, **scaled),
        Sample(_IMAGE, None, None, _sizes(7, 3), axes=(2, -1), nearest_mode="floor", onnx=False, dtypes=FLOATS),
        Sample(_IMAGE, None, np.array([2.0, 0.5], np.float32), axes=(3, 2), mode="cubic", antialias=True, **scaled),
        *(Sample(_IMAGE, region, _FACTORS, None, mode=mode, **crop, **scaled) for mode in _MODES),
        Sample(_IMAGE, region, None, _sizes(1, 2, 1, 3), mode="linear", **crop, **scaled),
        Sample((1, 1, 2, 4), None, None, _sizes(1, 1, 4, 6)),
        # ONNX Runtime cuts the fraction off, onnx's evaluator rounds.
        Sample(counted, None, None, _sizes(1, 1, 4, 6), mode="linear", onnx=False),
    )


@op
class Resize(Resizing):
    """Resample x along `axes` (default: all) to `sizes`, or to floor(size * scales).

    Give exactly one of `scales` and `sizes`.

    Args:
        x: Values of any rank. mode="nearest" takes any element type; "linear" and "cubic" need a numeric type.
        roi: Region of x that is resampled: [starts..., ends...], one entry for each of `axes`, as fractions of the
            sizes of x. It is used only if coordinate_transformation_mode="tf_crop_and_resize".
        scales: Floats, one for each of `axes`: size of the result over size of x.
        sizes: Integers, one for each of `axes`: size of the result.
        antialias: When an axis shrinks, widen the kernel of "linear" or "cubic", so that every element of x counts.
        axes: The axes to resample. The others keep their size.
        coordinate_transformation_mode: How positions of the result map to positions of x: "half_pixel" (default),
            "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_half_pixel_for_nn" or
            "tf_crop_and_resize", with the formulas of ONNX.
        cubic_coeff_a: The coefficient a of the cubic kernel (Keys, 1981).
        exclude_outside: Ignore positions outside of x, and divide by the sum of the other weights. By default, the
            border of x is repeated there.
        extrapolation_value: With "tf_crop_and_resize": value of elements whose position is outside of x.
        keep_aspect_ratio_policy: With `sizes`: "stretch" (default) gives exactly these sizes. "not_larger" and
            "not_smaller" use one scale for all axes, such that no size is larger, or smaller, than asked for.
        mode: "nearest" (default), "linear" or "cubic" (interpolation along each axis). With integers, "cubic" rounds
            the results, and "linear" cuts their fraction off, unless `antialias` is set.
        nearest_mode: With "nearest": how a position is rounded: "round_prefer_floor" (default; halves round down),
            "round_prefer_ceil", "floor" or "ceil".
    """

    inputs = ("x", "roi?", "scales?", "sizes?")
    types = {"x": ANY, "roi": FLOATS, "scales": FLOATS, "sizes": INDICES}
    onnx = Onnx("Resize", since=19)
    samples = staticmethod(_resize_samples)

    def is_batchwise(self, inputs: Sequence[Any], batched: Sequence[bool]) -> bool:
        return self._has_examples(("x",), inputs, batched) and not self.reads_roi

    def infer(self, x: TensorType, roi: Any = None, scales: Any = None, sizes: Any = None) -> TensorType:
        if self.mode != "nearest" and x.dtype not in NUMERIC:
            raise TypeMismatch(f"{x} cannot be interpolated; mode='nearest' takes any element type")
        return TensorType(x.dtype, self.resized_shape(x, roi, scales, sizes))

    def reference(self, xp: Any, x: Any, roi: Any = None, scales: Any = None, sizes: Any = None) -> Any:
        plan = self.plan(x.shape, *_host(xp, roi, scales, sizes))
        exact = self.mode == "nearest"
        y = x
        if not exact and x.dtype.kind in "iu":
            y = x.astype(np.float32 if x.dtype.itemsize < 4 else np.float64)
        for axis in plan:
            if exact:
                y = xp.take(y, xp.asarray(self.nearest(axis)), axis=axis.axis)
            else:
                y = self.taps(axis).apply(xp, y, axis.axis)
        for axis in plan:
            outside = self.outside(axis)
            if outside is not None:
                mask = xp.asarray(outside).reshape(-1, *(1,) * (x.ndim - 1 - axis.axis))
                fill = "" if y.dtype == object else self.extrapolation_value
                y = xp.where(mask, xp.asarray(fill, dtype=y.dtype), y)
        if y.dtype != x.dtype:
            bounds = np.iinfo(x.dtype)
            y = xp.clip(xp.rint(y) if self.rounds else xp.trunc(y), bounds.min, bounds.max).astype(x.dtype)
        return xp.array(y) if y is x else y

    def grad(self, node: Node, dy: Any) -> Any:
        _, *settings = node.inputs
        dx = F.resize_grad(dy, node.operands[0], *settings, **{key: getattr(self, key) for key in self.fields})
        return (dx, *(None for _ in settings))


@op
class ResizeGrad(Resizing):
    """Gradient of Resize: add each element of dy to the elements of x that it was interpolated from.

    Only the shape of x is used; roi, scales, sizes and the attributes are Resize's.
    """

    domain = DOMAIN
    inputs = ("dy", "x", "roi?", "scales?", "sizes?")
    outputs = ("dx",)
    types = {"dy": FLOATS, "roi": FLOATS, "scales": FLOATS, "sizes": INDICES}
    shape_only = ("x",)

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        def shape(x: tuple[int, ...], sizes: np.ndarray, attrs: dict[str, Any]) -> tuple[int, ...]:
            known = TensorType(DType.INT64, sizes.shape, tuple(int(v) for v in sizes))
            return Resize(**attrs).infer(TensorType(DType.FLOAT32, x), None, None, known).static_shape

        # The expansion keeps aspect ratios only for static sizes, so these cases are tested through the gradient of
        # Resize.
        return (
            *(
                Sample(shape(x, s, attrs), x, None, None, s, **attrs)
                for x, s, attrs in _GRADIENT_CASES
                if "keep_aspect_ratio_policy" not in attrs
            ),
            # ONNX Runtime's MatMul does not broadcast to an empty batch.
            Sample((0, 1, 4, 4), (0, 1, 2, 2), None, None, _sizes(0, 1, 4, 4), mode="linear", onnx=False),
            # An axis too long for a matrix of weights.
            Sample((1, 1200), (1, 300), None, None, _sizes(1, 1200), mode="cubic", grad=False, dtypes={DType.FLOAT32}),
        )

    def infer(self, dy: TensorType, x: TensorType, *settings: Any) -> TensorType:
        expected = self.resized_shape(x, *settings)
        if not fits(dy.shape, expected):
            shown = ", ".join(map(str, expected or ()))
            raise TypeMismatch(f"the output gradient {dy} does not fit the result [{shown}]")
        return TensorType(dy.dtype, x.shape)

    def reference(self, xp: Any, dy: Any, x: Any, roi: Any = None, scales: Any = None, sizes: Any = None) -> Any:
        dx = dy
        for axis in self.plan(x.shape, *_host(xp, roi, scales, sizes)):
            dx = self.taps(axis).transposed().apply(xp, dx, axis.axis)
        return xp.array(dx) if dx is dy else xp.ascontiguousarray(dx)

    def grad(self, node: Node, ddx: Any) -> Any:
        _, _, *settings = node.inputs
        attrs = {key: getattr(self, key) for key in self.fields} | {"extrapolation_value": 0.0}
        return (F.resize(ddx, *settings, **attrs), None, *(None for _ in settings))

    def expand(self, dy: Any, x: Any, roi: Any = None, scales: Any = None, sizes: Any = None) -> Any:
        """Multiply by weights along each axis: constants, or for unknown sizes a resized identity matrix."""
        if x.rank is None:
            raise UnsupportedError(f"ResizeGrad in standard operators needs an operand of known rank, not {x}")
        dx = dy
        for axis, weights in self._weights(dy, x, roi, scales, sizes):
            dx = _spread_along(dx, axis, weights) if isinstance(weights, Taps) else _product_along(dx, axis, weights)
        return dx

    def _weights(self, dy: Any, x: Any, roi: Any, scales: Any, sizes: Any) -> list[tuple[int, Any]]:
        """Return (axis, weights) for each axis that changes. The weights are Taps, or a graph value [resized, size]."""
        absent_or_known = all(v is None or _constant(v) is not None for v in (roi, scales, sizes))
        axes = self.resized_axes(x.rank)
        known_scales, known_sizes = _constant(scales), _constant(sizes)
        still = [
            (known_scales is not None and len(known_scales) and known_scales[i] == 1.0)
            or (dy.shape is not None and dy.shape[a] == x.shape[a] and known_scales is None)
            for i, a in enumerate(axes)
        ]
        if self.coordinate_transformation_mode == _CROP:
            still = [False] * len(axes)
        moving = [x.shape[a] for a, same in zip(axes, still, strict=True) if not same]
        if absent_or_known and not any(isinstance(n, DimExpr) for n in moving):
            # Axes that do not change need no matrix, so their sizes may be unknown.
            shape = [1 if isinstance(n, DimExpr) else n for n in x.shape]
            plan = self.plan(shape, _constant(roi), known_scales, known_sizes)
            changing = {a for a, same in zip(axes, still, strict=True) if not same}
            return [(p.axis, self.taps(p)) for p in plan if p.axis in changing]
        if self.keep_aspect_ratio_policy != "stretch" and _present(None if sizes is None else sizes.tensor) is not None:
            raise UnsupportedError("ResizeGrad in standard operators: keep_aspect_ratio_policy needs static sizes")
        return [
            (a, self._resized_identity(dy, x, a, i, len(axes), roi, scales))
            for i, (a, same) in enumerate(zip(axes, still, strict=True))
            if not same
        ]

    def _resized_identity(self, dy: Any, x: Any, axis: int, position: int, count: int, roi: Any, scales: Any) -> Any:
        """Return the weight matrix of an axis: an identity matrix whose rows are resized like the axis."""
        size = F.shape(x, start=axis, end=axis + 1)
        square = F.concat(size, size, axis=0)
        identity = F.eye_like(F.constant_of_shape(square, value=np.zeros(1, dy.dtype.numpy)))
        attrs = {key: getattr(self, key) for key in self.fields} | {"axes": None, "extrapolation_value": 0.0}
        region = None
        if self.coordinate_transformation_mode == _CROP:
            start, end = (F.gather(roi, np.array([i], np.int64)) for i in (position, count + position))
            whole = np.array([0.0, 1.0], roi.dtype.numpy)
            region = F.concat(start, whole[:1], end, whole[1:], axis=0)
        if scales is not None and _present(scales.tensor) is not None:
            factor = F.gather(scales, np.array([position], np.int64))
            return F.resize(identity, region, F.concat(factor, np.ones(1, scales.dtype.numpy), axis=0), **attrs)
        resized = F.shape(dy, start=axis, end=axis + 1)
        return F.resize(identity, region, None, F.concat(resized, size, axis=0), **attrs)


def _constant(value: Any) -> np.ndarray | None:
    """Return the array of a Constant; None for any other value."""
    if value is None or value.node is None or value.node.op.name != "Constant":
        return None
    array: np.ndarray = value.node.op.value.array
    return array


def _product_along(x: Any, axis: int, matrix: Any) -> Any:
    """Contract one axis of x with the rows of a matrix [n, m], in the graph."""
    if axis == x.rank - 1:
        return F.mat_mul(x, matrix)
    swap = list(range(x.rank))
    swap[axis], swap[-1] = swap[-1], swap[axis]
    return F.transpose(F.mat_mul(F.transpose(x, perm=swap), matrix), perm=swap)


def _spread_along(x: Any, axis: int, taps: Taps) -> Any:
    """Contract an axis of x with the rows of `taps`, in the graph. Time and constants are linear in a long axis."""
    if taps.rows * taps.size <= _DENSE_LIMIT:
        return _product_along(x, axis, F.constant(value=taps.dense(x.dtype.numpy)))
    swap = list(range(x.rank))
    swap[axis], swap[0] = swap[0], swap[axis]
    moved = F.transpose(x, perm=swap)
    weights = taps.weights.astype(x.dtype.numpy).reshape(-1, *(1,) * (x.rank - 1))
    terms = F.mul(F.gather(moved, taps.row_numbers()), F.constant(value=weights))
    shape = F.concat(i64(taps.size), F.shape(moved, start=1), axis=0)
    zeros = F.constant_of_shape(shape, value=np.zeros(1, x.dtype.numpy))
    total = F.scatter_nd(zeros, F.constant(value=taps.sources[:, None]), terms, reduction="add")
    return F.transpose(total, perm=swap)
