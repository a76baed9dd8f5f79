"""Convolutions: Conv, ConvTranspose, and the two adjoints of Conv that gradients are made of.

Conv is linear in x and in w, so <dy, Conv(x, w)> is linear in each of three tensors. Its derivative with respect to one
of them is Conv, ConvGradInput or ConvGradWeight of the other two: the three operators are closed under differentiation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch, UnsupportedError
from graphkit.ir import dims
from graphkit.ir.dims import Dim, DimExpr
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import FLOATS, TensorType
from graphkit.named_tuples import NamedTuple
from graphkit.ops._base import DOMAIN, F, Onnx, Sample, op
from graphkit.ops.axes import ranked
from graphkit.ops.nn.sliding_window import (
    Sliding,
    Window,
    cut,
    pad_spatial,
    padding,
    spatial_sizes,
    taps,
    transposed_convolution,
)
from graphkit.ops.operands import fits

# The reference unfolds this many elements at a time, so that its scratch memory stays bounded.
_UNFOLD_LIMIT = 1 << 23


class Geometry(NamedTuple):
    """Normalised attributes of a convolution, all that kernels need: one entry per spatial axis, auto_pad resolved.

    Padding is in integers for static shapes, else in dimensions. Window i starts at i * stride - begin. For
    ConvTranspose, `end` is negative if the last output rows are outside of every window.
    """

    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[Any, ...]
    end: tuple[Any, ...]
    group: int


class Convolution(Sliding):
    """Base of Conv, ConvTranspose and the gradient operators: a sliding window with weights."""

    group: int = 1

    def geometry(self, x_shape: Sequence[Dim], w_shape: Sequence[Dim]) -> Geometry:
        """The normalised geometry for x: [N, C, *spatial] and w: [M, C / group, *kernel]. Raises TypeMismatch."""
        window = self.window(x_shape[2:], self._kernel(w_shape))
        return Geometry(window.strides, window.dilations, window.begin, window.end, self.group)

    def related(self) -> dict[str, Any]:
        """Return the attributes, for other operators of the same convolution."""
        return {**self.window_attributes(), "group": self.group}

    def operand_ranks(self, *inputs: Any) -> Sequence[int | None]:
        images = [i for i, formal in enumerate(self.formals) if formal.name in ("x", "w", "dy")]
        ranks = (inputs[i].rank for i in images if i < len(inputs) and inputs[i] is not None)
        rank = next((r for r in ranks if r is not None), None)
        return [rank if i in images else 1 for i in range(len(inputs))]

    def _kernel(self, w_shape: Sequence[Dim]) -> tuple[Dim, ...]:
        kernel = tuple(w_shape[2:])
        given = self.kernel_shape
        if given is None:
            return kernel
        if not fits(given, kernel):
            raise TypeMismatch(f"kernel_shape={given}, but the weights have shape [{', '.join(map(str, w_shape))}]")
        return given

    def _conv_shape(self, x: TensorType, w: TensorType) -> tuple[Dim, ...] | None:
        """Check the channels, and return the shape of Conv(x, w); None if the rank of w is unknown."""
        if w.shape is None:
            return None
        if len(w.shape) < 3:
            raise TypeMismatch(f"weights {w} have no spatial axis")
        if x.shape is None:
            return (dims.fresh(), w.shape[0], *(dims.fresh() for _ in w.shape[2:]))
        if len(x.shape) != len(w.shape):
            raise TypeMismatch(f"{x} and weights {w} differ in rank")
        if not dims.may_equal(x.shape[1], w.shape[1] * self.group):
            taken = w.shape[1] * self.group
            raise TypeMismatch(f"{x} has {x.shape[1]} channels; weights {w} with group={self.group} take {taken}")
        _check_groups(w, self.group)
        window = self.window(x.shape[2:], self._kernel(w.shape))
        return (x.shape[0], w.shape[0], *self.positions(x.shape[2:], window))


def check_not_empty(y: Value) -> Value:
    """Return the result of a convolution. Raises TypeMismatch if it is empty on a spatial axis where x is not.

    Only new models are checked. Inference allows empty results, because sizes that a run brings may lead to them.
    """
    node = y.node
    assert node is not None, "a result"
    sizes, given = y.tensor.shape or (), node.operands[0].tensor.shape or ()
    if any(isinstance(n, int) and n == 0 and m != 0 for n, m in zip(sizes[2:], given[2:], strict=False)):
        transposed = isinstance(node.op, ConvTranspose)
        why = "the padding removes all of the output" if transposed else "the kernel is larger than the padded input"
        raise TypeMismatch(f"{node.describe()}: {why}: the result would be {y.tensor}")
    return y


def _check_groups(w: TensorType, group: int) -> None:
    first = w.known_shape[0]
    if group < 1 or not dims.may_equal(dims.mod(first, group), 0):
        raise TypeMismatch(f"{first} channels of weights {w} cannot be divided into group={group} groups")


def _check_bias(bias: TensorType | None, channels: Dim) -> None:
    if bias is not None and not fits(bias.shape, (channels,)):
        raise TypeMismatch(f"bias {bias} does not fit {channels} output channels")


def _check_positions(dy: TensorType, shape: Sequence[Dim] | None) -> None:
    if not fits(dy.shape, shape):
        expected = ", ".join(map(str, shape or ()))
        raise TypeMismatch(f"the output gradient {dy} does not fit the convolution's output [{expected}]")


def _bias_gradients(node: Node, dy: Any) -> tuple[Any, ...]:
    """Return the gradients of the operands after x and w: an empty tuple, or that of the bias."""
    if len(node.inputs) < 3:
        return ()
    return (F.reduce_sum(dy, np.array([0, *range(2, _rank(node, dy))]), keepdims=False),)


def _rank(node: Node, *values: Any) -> int:
    rank: int | None = next((v.rank for v in values if v.rank is not None), None)
    if rank is None:
        raise UnsupportedError(f"{node.describe()}: the gradient of a convolution needs an operand of known rank")
    return rank


# --- arrays ---------------------------------------------------------------------------------------


def _chunks(count: int, elements: int) -> Iterator[slice]:
    """Yield slices of an axis of size `count` whose unfolded windows stay below the limit.

    elements: size of the windows of one index.
    """
    step = max(1, _UNFOLD_LIMIT // max(elements, 1))
    return (slice(i, min(i + step, count)) for i in range(0, count, step))


def _unfold(xp: Any, x: Any, geometry: Geometry, kernel: tuple[int, ...]) -> Any:
    """Padded x [n, C, *spatial] -> view [n, C, *kernel, *positions]."""
    rank = len(kernel)
    windows = xp.windows(x, kernel, geometry.strides, geometry.dilations)
    order = (0, 1, *range(2 + rank, 2 + 2 * rank), *range(2, 2 + rank))
    return windows.transpose(order)


def convolve(xp: Any, x: Any, w: Any, geometry: Geometry) -> Any:
    """Convolve by unfolding and matrix products, a bounded part of the batch and of its rows at a time."""
    group, kernel = geometry.group, w.shape[2:]
    batch, channels = x.shape[0], w.shape[0]
    padded = pad_spatial(xp, x, geometry.begin, geometry.end)
    windows = _unfold(xp, padded, geometry, kernel)
    positions = windows.shape[2 + len(kernel) :]
    depth = w.shape[1] * int(np.prod(kernel))
    points = int(np.prod(positions))
    weights = w.reshape(group, channels // group, depth)
    y = xp.empty((batch, group, channels // group, points), dtype=x.dtype)
    across = points // max(positions[0], 1)
    for part in _chunks(batch, group * depth * points):
        for rows in _chunks(positions[0], (part.stop - part.start) * group * depth * across):
            window = windows[(part, *(slice(None),) * (1 + len(kernel)), rows)]
            columns = window.reshape(part.stop - part.start, group, depth, (rows.stop - rows.start) * across)
            y[part, :, :, rows.start * across : rows.stop * across] = xp.matmul(weights, columns)
    return y.reshape(batch, channels, *positions)


def convolve_grad_input(xp: Any, dy: Any, w: Any, spatial: Sequence[int], geometry: Geometry) -> Any:
    """Compute the adjoint of `convolve` in x: dy and w -> [N, C, *spatial]. Each window is added where it was read."""
    group, kernel, positions = geometry.group, w.shape[2:], dy.shape[2:]
    batch, channels, depth = dy.shape[0], w.shape[1] * group, w.shape[1] * int(np.prod(kernel))
    points = int(np.prod(positions))
    window = Window(kernel, geometry.strides, geometry.dilations, geometry.begin, geometry.end)
    reach = [(o - 1) * s + n for o, s, n in zip(positions, geometry.strides, window.span, strict=True)]
    sizes = [max(r, b + n) for r, b, n in zip(reach, geometry.begin, spatial, strict=True)]
    total = xp.zeros((batch, channels, *sizes), dtype=dy.dtype)
    weights = xp.swapaxes(w.reshape(group, w.shape[0] // group, depth), 1, 2)
    for part in _chunks(batch, group * depth * points):
        count = part.stop - part.start
        columns = xp.matmul(weights, dy[part].reshape(count, group, w.shape[0] // group, points))
        columns = columns.reshape(count, channels, *kernel, *positions)
        for offset, index in taps(window, positions):
            total[part][index] += columns[(slice(None), slice(None), *offset)]
    inner = tuple(slice(b, b + n) for b, n in zip(geometry.begin, spatial, strict=True))
    return xp.ascontiguousarray(total[(..., *inner)])


def convolve_grad_weight(xp: Any, x: Any, dy: Any, kernel: tuple[int, ...], geometry: Geometry) -> Any:
    """Compute the adjoint of `convolve` in w: x and dy -> [M, C / group, *kernel]."""
    group, batch, channels = geometry.group, x.shape[0], dy.shape[1]
    windows = _unfold(xp, pad_spatial(xp, x, geometry.begin, geometry.end), geometry, kernel)
    per_group = x.shape[1] // group
    depth, points = per_group * int(np.prod(kernel)), int(np.prod(dy.shape[2:]))
    total = xp.zeros((group, channels // group, depth), dtype=dy.dtype)
    for part in _chunks(batch, group * depth * points):
        count = part.stop - part.start
        columns = windows[part].reshape(count, group, depth, points)
        values = dy[part].reshape(count, group, channels // group, points)
        total += xp.sum(xp.matmul(values, xp.swapaxes(columns, 2, 3)), axis=0)
    return total.reshape(channels, per_group, *kernel)


def _add_bias(y: Any, bias: Any) -> Any:
    return y if bias is None else y + bias.reshape(-1, *(1,) * (y.ndim - 2))


# --- operators ------------------------------------------------------------------------------------

_GEOMETRIES: tuple[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]], ...] = (
    # (x, w, attributes) of the samples of Conv and of its adjoints
    ((2, 3, 5, 5), (4, 3, 3, 3), {}),
    ((2, 3, 6, 7), (4, 3, 3, 2), {"pads": (1, 0, 2, 1), "strides": (2, 3), "kernel_shape": (3, 2)}),
    ((1, 2, 7, 7), (2, 2, 2, 3), {"dilations": (2, 3), "pads": (1, 1, 1, 1)}),
    ((2, 4, 5, 6), (6, 2, 3, 3), {"group": 2, "pads": (1, 1, 1, 1), "strides": (2, 2)}),
    ((2, 3, 5, 5), (6, 1, 3, 3), {"group": 3, "dilations": (2, 1)}),
    ((2, 3, 5, 6), (2, 3, 3, 2), {"auto_pad": "SAME_UPPER", "strides": (2, 3)}),
    ((2, 3, 5, 6), (2, 3, 2, 4), {"auto_pad": "SAME_LOWER", "strides": (3, 1)}),
    ((2, 3, 6, 5), (2, 3, 3, 2), {"auto_pad": "VALID", "strides": (2, 2)}),
    ((2, 3, 7), (4, 3, 3), {"pads": (1, 1), "strides": (2,)}),
    ((1, 2, 4, 3, 4), (3, 2, 2, 2, 3), {"pads": (0, 1, 1, 1, 0, 1), "strides": (1, 2, 2)}),
    ((2, 3, 4, 5), (5, 3, 1, 1), {"strides": (2, 2)}),
    ((2, 4, 3, 3), (6, 2, 1, 1), {"group": 2, "pads": (1, 0, 0, 1)}),
    ((2, 4, 3, 3), (6, 2, 1, 1), {"group": 2}),
)


@op
class Conv(Convolution):
    """Convolution (cross-correlation) over any number of spatial axes.

    x: [N, C, *spatial], w: [M, C / group, *kernel], b: [M] -> [N, M, *positions].

    Args:
        x: Floats of N samples with C channels.
        w: The filters, for M output channels.
        b: The bias (default: none).
        auto_pad: "NOTSET" (default) pads as `pads` says. "VALID" does not pad. "SAME_UPPER" and "SAME_LOWER" pad so
            that positions = ceil(spatial / strides). If that padding is odd, the larger part is at the end with
            "SAME_UPPER", at the beginning with "SAME_LOWER".
        dilations: Distance between the elements of a filter, one number per spatial axis (default: 1).
        group: Number of groups that the channels of x and of the result are divided into. Each group of the result
            reads only its group of x. With group = C, each channel has its own filters (depthwise).
        kernel_shape: Sizes of the kernel (default: those of w). If given, they must equal those of w.
        pads: Number of zeros before and after x: the beginnings of all spatial axes, then the ends (default: 0). In two
            dimensions: [top, left, bottom, right].
        strides: Distance between two positions of the filter, one number per spatial axis (default: 1).
    """

    per_example = ("x",)
    inputs = ("x", "w", "b?")
    types = {"x": FLOATS, "w": "x", "b": "x"}
    symbolic_inference = True
    onnx = Onnx("Conv", since=22)
    samples = lambda: (
        *(Sample(x, w, **attrs) for x, w, attrs in _GEOMETRIES),
        Sample((2, 3, 5, 5), (4, 3, 3, 3), (4,), pads=(1, 1, 1, 1)),
        Sample((2, 3, 5, 6), (4, 3, 2, 3), (4,), strides=(2, 3)),
        Sample((0, 3, 5), (4, 3, 2), strides=(2,)),
        Sample((0, 3, 5, 5), (4, 3, 3, 3), (4,)),
    )

    def infer(self, x: TensorType, w: TensorType, b: TensorType | None = None) -> TensorType:
        shape = self._conv_shape(x, w)
        if shape is not None:
            _check_bias(b, shape[1])
        return TensorType(x.dtype, shape)

    def multiply_adds(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Dim:
        return dims.product((*outputs[0].known_shape, *inputs[1].known_shape[1:]))

    def reference(self, xp: Any, x: Any, w: Any, b: Any = None) -> Any:
        return _add_bias(convolve(xp, x, w, self.geometry(x.shape, w.shape)), b)

    def grad(self, node: Node, dy: Any) -> Any:
        operands: Any = node.inputs
        from graphkit.ops.nn.patches import cuts_patches, gradient_of_patches

        w = operands[1]
        x: Any = ranked(operands[0], w.rank)
        known = x.shape is not None and w.shape is not None
        if known and cuts_patches(w, x, self.window(x.shape[2:], self._kernel(w.shape)), self.group):
            dx = gradient_of_patches(dy, w, x)
        else:
            dx = F.conv_grad_input(dy, w, x, **self.related())
        dw = F.conv_grad_weight(x, dy, w, **self.related())
        return dx, dw, *_bias_gradients(node, dy)


@op
class ConvGradInput(Convolution):
    """Gradient of Conv with respect to x.

    dy: [N, M, *positions], w: [M, C / group, *kernel], x: only its shape is read -> [N, C, *spatial].
    """

    domain = DOMAIN
    inputs = ("dy", "w", "x")
    outputs = ("dx",)
    types = {"dy": FLOATS, "w": "dy"}
    shape_only = ("x",)

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        return tuple(Sample(_positions(x, w, attrs), w, x, **attrs) for x, w, attrs in _GEOMETRIES)

    def infer(self, dy: TensorType, w: TensorType, x: TensorType) -> TensorType:
        _check_positions(dy, self._conv_shape(x, w))
        return TensorType(dy.dtype, x.shape)

    def reference(self, xp: Any, dy: Any, w: Any, x: Any) -> Any:
        return convolve_grad_input(xp, dy, w, x.shape[2:], self.geometry(x.shape, w.shape))

    def grad(self, node: Node, ddx: Any) -> Any:
        operands: Any = node.inputs
        dy, w, _ = operands
        return F.conv(ddx, w, **self.related()), F.conv_grad_weight(ddx, dy, w, **self.related()), None

    def expand(self, dy: Any, w: Any, x: Any) -> Any:
        return transposed_convolution(self, dy, w, x, _window_of(self, x, w), self.group)


@op
class ConvGradWeight(Convolution):
    """Gradient of Conv with respect to w.

    x: [N, C, *spatial], dy: [N, M, *positions], w: only its type is read -> [M, C / group, *kernel]. If the element
    type of w is wider than that of x and dy, sums are not rounded to the narrower one.
    """

    domain = DOMAIN
    inputs = ("x", "dy", "w")
    outputs = ("dw",)
    types = {"x": FLOATS, "dy": "x", "w": FLOATS}
    shape_only = ("w",)

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        return tuple(Sample(x, _positions(x, w, attrs), w, **attrs) for x, w, attrs in _GEOMETRIES)

    def infer(self, x: TensorType, dy: TensorType, w: TensorType) -> TensorType:
        _check_positions(dy, self._conv_shape(x, w))
        return TensorType(w.dtype, w.shape)

    def reference(self, xp: Any, x: Any, dy: Any, w: Any) -> Any:
        return convolve_grad_weight(xp, x, dy, w.shape[2:], self.geometry(x.shape, w.shape))

    def grad(self, node: Node, ddw: Any) -> Any:
        operands: Any = node.inputs
        x, dy, _ = operands
        if ddw.dtype is not x.dtype:
            ddw = F.cast(ddw, to=x.dtype)
        return F.conv_grad_input(dy, ddw, x, **self.related()), F.conv(x, ddw, **self.related()), None

    def expand(self, x: Any, dy: Any, w: Any) -> Any:
        """Build a convolution of x by dy with batch and channels exchanged, and with stride and dilation exchanged."""
        if x.dtype is not w.dtype:
            x, dy = F.cast(x, to=w.dtype), F.cast(dy, to=w.dtype)
        window = _window_of(self, x, w)
        if self.group == 1 and all(k == 1 for k in window.kernel) and window.is_static and not any(window.pads):
            return self._pointwise(x, dy, w, window)
        pads = window.pads if window.is_static else None
        if pads is None:
            begin, end = padding(self, x, w, window, dy)
            none = np.zeros(2, np.int64)
            x = F.pad(x, F.concat(none, begin, none, end, axis=0))
        swap = [1, 0, *range(2, x.rank)]
        if self.group == 1:
            images = F.transpose(x, perm=swap)
        else:
            # [N, group * C', *spatial] -> [C', group * N, *spatial]: the images of each group are contiguous.
            batch, sizes = F.shape(x, start=0, end=1), F.shape(x, start=2)
            channels, groups = F.shape(w, start=1, end=2), np.array([self.group], np.int64)
            images = F.reshape(x, F.concat(batch, groups, channels, sizes, axis=0))
            images = F.transpose(images, perm=[2, 1, 0, *range(3, x.rank + 1)])
            images = F.reshape(images, F.concat(channels, F.mul(batch, groups), sizes, axis=0))
        kernels = F.transpose(dy, perm=swap)
        dw = F.conv(images, kernels, pads=pads, strides=window.dilations, dilations=window.strides, group=self.group)
        # If x has rows after the last window, the result is larger than the kernel.
        if dw.shape is None or w.shape is None or dw.shape[2:] != w.shape[2:]:
            dw = cut(dw, np.zeros(x.rank - 2, np.int64), spatial_sizes(w))
        return F.transpose(dw, perm=swap)

    @staticmethod
    def _pointwise(x: Any, dy: Any, w: Any, window: Window) -> Any:
        """Build the gradient for a kernel of one element: a matrix product over all images and positions."""
        if any(s > 1 for s in window.strides):
            axes = np.arange(2, x.rank)
            start, stop = np.zeros(x.rank - 2, np.int64), np.full(x.rank - 2, np.iinfo(np.int64).max)
            x = F.slice(x, start, stop, axes, np.asarray(window.strides, np.int64))
        swap = [1, 0, *range(2, x.rank)]
        rows, columns = (F.flatten(F.transpose(v, perm=swap), axis=1) for v in (dy, x))
        return F.reshape(F.gemm(rows, columns, transB=True), F.shape(w))


def _positions(x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any]) -> tuple[int, ...]:
    return Conv(**attrs).infer(TensorType("float32", x), TensorType("float32", w)).static_shape


def _window_of(op: Convolution, x: Any, w: Any) -> Window:
    if x.shape is None or w.shape is None:
        raise UnsupportedError(f"{op.name} in standard operators needs operands of known rank, not {x} and {w}")
    return op.window(x.shape[2:], op._kernel(w.shape))


@op
class ConvTranspose(Convolution):
    """Transposed convolution. x: [N, C, *positions], w: [C, M / group, *kernel], b: [M] -> [N, M, *spatial].

    Along an axis, spatial = stride * (positions - 1) + output_padding + span - begin - end, where span is the size of
    the dilated kernel and begin, end are the padding. `output_shape` gives the size instead, and the padding follows
    from it; auto_pad=SAME_* does the same for the size stride * positions. The other attributes are those of Conv.
    """

    output_padding: tuple[int, ...] | None = None
    output_shape: tuple[int, ...] | None = None
    per_example = ("x",)
    inputs = ("x", "w", "b?")
    types = {"x": FLOATS, "w": "x", "b": "x"}
    symbolic_inference = True
    onnx = Onnx("ConvTranspose", since=22)
    samples = lambda: (
        Sample((2, 3, 4, 4), (3, 2, 3, 3)),
        Sample((2, 3, 4, 3), (3, 2, 3, 3), (2,), strides=(2, 3), pads=(1, 0, 1, 2), kernel_shape=(3, 3)),
        Sample((1, 3, 3, 3), (3, 2, 3, 3), strides=(2, 2), pads=(1, 1, 1, 1), output_padding=(1, 1)),
        Sample((1, 3, 3, 3), (3, 2, 2, 2), strides=(2, 3), output_padding=(1, 2)),
        Sample((1, 4, 3, 4), (4, 3, 3, 2), (6,), group=2, strides=(2, 1)),
        Sample((1, 3, 4, 4), (3, 1, 3, 3), group=3, dilations=(2, 1), pads=(1, 1, 1, 1)),
        Sample((1, 2, 3, 3), (2, 2, 3, 3), strides=(3, 2), output_shape=(10, 8)),
        Sample((1, 2, 3, 3), (2, 2, 3, 3), strides=(2, 2), output_shape=(6, 5), auto_pad="SAME_UPPER"),
        Sample((1, 2, 3, 3), (2, 2, 3, 3), strides=(2, 2), auto_pad="SAME_UPPER"),
        Sample((1, 2, 3, 3), (2, 2, 4, 3), strides=(3, 2), auto_pad="SAME_LOWER"),
        Sample((1, 2, 3, 3), (2, 2, 3, 3), strides=(2, 2), auto_pad="VALID"),
        Sample((2, 3, 5), (3, 2, 3), strides=(2,), pads=(1, 1)),
        Sample((1, 2, 2, 3, 2), (2, 2, 2, 2, 3), strides=(2, 1, 2)),
    )

    def multiply_adds(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Dim:
        return dims.product((*inputs[0].known_shape, *inputs[1].known_shape[1:]))

    def geometry(self, x_shape: Sequence[Dim], w_shape: Sequence[Dim]) -> Geometry:
        """Return the geometry of the convolution whose adjoint this operator is.

        Spatial sizes follow exactly: stride * (positions - 1) + span - begin - end. Raises TypeMismatch.
        """
        spatial, kernel = x_shape[2:], self._kernel(w_shape)
        rank = len(spatial)
        strides = self.per_axis("strides", rank, 1, 1)
        dilations = self.per_axis("dilations", rank, 1, 1)
        extra = self.per_axis("output_padding", rank, 0, 0)
        mode = self.checked_auto_pad()
        if self.output_shape is None and not mode.startswith("SAME"):
            begin, end = self.explicit_pads(rank) if mode == "NOTSET" else ((0,) * rank, (0,) * rank)
            end = tuple(e - more for e, more in zip(end, extra, strict=True))
            return Geometry(strides, dilations, begin, end, self.group)
        first: list[Dim] = []
        last: list[Dim] = []
        for axis, (n, k, s, d, more) in enumerate(zip(spatial, kernel, strides, dilations, extra, strict=True)):
            whole = (n - 1) * s + (k - 1) * d + 1
            wanted = n * s if self.output_shape is None else self._wanted(rank)[axis]
            total = dims.dim_max(whole + more - wanted, 0)
            half = dims.floordiv(total, 2)
            before = half if mode == "SAME_UPPER" else total - half
            first.append(before)
            last.append(whole - wanted - before)
        return Geometry(strides, dilations, tuple(first), tuple(last), self.group)

    def _wanted(self, rank: int) -> tuple[int, ...]:
        assert self.output_shape is not None
        if len(self.output_shape) not in (rank, rank + 2):
            raise TypeMismatch(
                f"output_shape={self.output_shape}: expected the sizes of the {rank} spatial axes of the result, or of "
                "all its axes"
            )
        return self.output_shape[-rank:]

    def output_sizes(self, x_shape: Sequence[Dim], w_shape: Sequence[Dim]) -> tuple[Dim, ...]:
        """Return the spatial shape of the result."""
        geometry = self.geometry(x_shape, w_shape)
        sizes = tuple(
            (n - 1) * s + (k - 1) * d + 1 - b - e
            for n, k, s, d, b, e in zip(x_shape[2:], self._kernel(w_shape), *geometry[:4], strict=True)
        )
        if any(not isinstance(n, DimExpr) and n < 0 for n in sizes):
            raise TypeMismatch(
                f"the pads {geometry.begin} and {geometry.end} are too large: the spatial sizes of the result would be "
                f"{sizes}"
            )
        return sizes

    def infer(self, x: TensorType, w: TensorType, b: TensorType | None = None) -> TensorType:
        if w.shape is None:
            return TensorType(x.dtype)
        if len(w.shape) < 3:
            raise TypeMismatch(f"weights {w} have no spatial axis")
        channels = w.shape[1] * self.group
        _check_groups(w, self.group)
        _check_bias(b, channels)
        if x.shape is None:
            return TensorType(x.dtype, (dims.fresh(), channels, *(dims.fresh() for _ in w.shape[2:])))
        if len(x.shape) != len(w.shape):
            raise TypeMismatch(f"{x} and weights {w} differ in rank")
        if not dims.may_equal(x.shape[1], w.shape[0]):
            raise TypeMismatch(f"{x} has {x.shape[1]} channels; weights {w} take {w.shape[0]}")
        return TensorType(x.dtype, (x.shape[0], channels, *self.output_sizes(x.shape, w.shape)))

    def reference(self, xp: Any, x: Any, w: Any, b: Any = None) -> Any:
        geometry = self.geometry(x.shape, w.shape)
        sizes: Any = self.output_sizes(x.shape, w.shape)
        return _add_bias(convolve_grad_input(xp, x, w, sizes, geometry), b)

    def grad(self, node: Node, dy: Any) -> Any:
        operands: Any = node.inputs
        x, w = operands[:2]
        x = ranked(x, w.rank)
        if x.shape is None or w.shape is None:
            raise UnsupportedError(f"{node.describe()}: the gradient needs operands of known rank")
        geometry = self.geometry(x.shape, w.shape)
        attrs: dict[str, Any] = {"strides": geometry.strides, "dilations": geometry.dilations, "group": self.group}
        if any(isinstance(v, DimExpr) for v in (*geometry.begin, *geometry.end)):
            windows = self._padded(x, w, dy, geometry)
        else:
            # Output rows outside of every window do not contribute to the gradient. Fewer than `stride` of them do not
            # change the result.
            beyond = [-e if -e >= s else 0 for e, s in zip(geometry.end, geometry.strides, strict=True)]
            attrs["pads"] = (*geometry.begin, *(max(e, 0) for e in geometry.end))
            windows = dy
            if any(beyond):
                axes = np.flatnonzero(beyond)
                windows = F.slice(dy, np.zeros(len(axes), np.int64), -np.asarray(beyond, np.int64)[axes], axes + 2)
        dx = F.conv(windows, w, **attrs)
        dw = F.conv_grad_weight(windows, x, w, **attrs)
        return dx, dw, *_bias_gradients(node, dy)

    def _padded(self, x: Any, w: Any, dy: Any, geometry: Geometry) -> Any:
        """Pad dy by the sizes at run time, so that it has as many rows as the windows cover."""
        strides, dilations, one = (np.asarray(v, np.int64) for v in (geometry.strides, geometry.dilations, 1))
        last_start = F.mul(F.sub(F.shape(x, start=2), one), strides)
        last_offset = F.mul(F.sub(F.shape(w, start=2), one), dilations)
        covered = F.add(F.add(last_start, last_offset), one)
        extra = np.asarray(self.output_padding or [0] * len(strides), np.int64)
        none = np.zeros(2, np.int64)
        total = F.max(F.sub(F.add(covered, extra), F.shape(dy, start=2)), none[:1])
        half = F.div(total, np.array(2, np.int64))
        begin = half if self.auto_pad == "SAME_UPPER" else F.sub(total, half)
        return cut(F.pad(dy, F.concat(none, begin, none, total, axis=0)), np.zeros(len(strides), np.int64), covered)
