"""Convolutions, plain and fused, and their gradients: by oneDNN, or by graphkit's own kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeVar

from graphkit.executor.devices.cpu._base import (
    epilogue,
    kernel,
    library_dtype,
    library_options,
    native,
    prepared_kernel,
    present,
)
from graphkit.executor.devices.kernel import Kernel, KernelContext
from graphkit.executor.devices.operands import operand, shape
from graphkit.executor.devices.registry import Preparation, Shapes, SizedFactory
from graphkit.ir.dims import Dim, is_static
from graphkit.ir.graph import Node
from graphkit.ir.types import DType
from graphkit.named_tuples import NamedTuple
from graphkit.ops._base import DOMAIN, operator
from graphkit.ops.internal.channels_last import ChannelsLast, ChannelsLastConvolution
from graphkit.ops.internal.fused import Epilogue
from graphkit.ops.nn.conv import Convolution, Geometry
from graphkit.passes.layout.few_channels import has_few_channels, slides_over_planes

# A dimension: an int or a Dim.
D = TypeVar("D")


def window_of(geometry: Geometry, order: tuple[int, ...] | None = None) -> native.Window | None:
    """Return the native window of a convolution's geometry, with its spatial axes in the given order.

    Returns None if oneDNN does not support it: there are no spatial axes or more than three, or the geometry leaves out
    a stride or more at the end of an axis.
    """
    if not 1 <= len(geometry.strides) <= 3:
        return None
    # In a ConvTranspose, `end` is negative if the last rows of the output are in no window. If these are fewer than a
    # stride, the number of windows is the same without them, because it is rounded down.
    if any(-end >= stride for end, stride in zip(geometry.end, geometry.strides, strict=True)):
        return None
    end = [max(e, 0) for e in geometry.end]
    axes = range(len(end)) if order is None else order
    strides, dilations, begin, end = (
        [values[axis] for axis in axes] for values in (geometry.strides, geometry.dilations, geometry.begin, end)
    )
    return native.Window(strides, dilations, begin, end, geometry.group)


def depthwise_window(geometry: Geometry, kernel: tuple[int, ...]) -> native.PoolWindow | None:
    """Return the window of a convolution with one filter for each channel; None if it is not supported."""
    if not 1 <= len(kernel) <= 3 or any(p < 0 for p in (*geometry.begin, *geometry.end)):
        return None
    return native.PoolWindow(kernel, geometry.strides, geometry.dilations, geometry.begin, geometry.end)


class _Windows(NamedTuple):
    """The windows of a convolution for given weights.

    Attributes:
        weights: The shape of the weights.
        geometry: The geometry.
        window: The window of the geometry; None if it is not supported.
        depthwise: The window for graphkit's kernel with one filter for each channel; None if that kernel is not used.
    """

    weights: tuple[int, ...]
    geometry: Geometry
    window: native.Window | None
    depthwise: native.PoolWindow | None


def _with_units_first(
    x: tuple[int, ...], w: tuple[int, ...], y: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the shapes with axes of size 1 before the other spatial axes, and the order of the spatial axes in them.

    This moves no elements in memory. It makes the last axis, along which kernels compute, as long as possible.

    x, w, y: shapes of data, weights and result, with the channels at axis 1.
    """
    axes = range(len(x) - 2)
    order = tuple(sorted(axes, key=lambda axis: not x[2 + axis] == w[2 + axis] == y[2 + axis] == 1))
    x, w, y = ((*shape[:2], *(shape[2 + axis] for axis in order)) for shape in (x, w, y))
    return x, w, y, order


def _with_row_axis(
    x: tuple[int, ...], w: tuple[int, ...], y: tuple[int, ...], geometry: Geometry
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], native.Window | None]:
    """Return the shapes and the window of a convolution along one axis, as a convolution of images of one row.

    oneDNN has fast code for two axes if every channel has one filter, but not for one axis.

    x, w, y: as for `_with_units_first`.
    """
    x, w, y = ((*shape[:2], 1, shape[2]) for shape in (x, w, y))
    begin, end = (0, *geometry.begin), (0, *geometry.end)
    return x, w, y, window_of(Geometry((1, *geometry.strides), (1, *geometry.dilations), begin, end, geometry.group))


def _with_columns_as_rows(
    x: tuple[int, ...], w: tuple[int, ...], y: tuple[int, ...], geometry: Geometry, order: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], native.Window]:
    """Return the shapes and the window of a convolution of a single row, as a convolution of a single column.

    x, w, y: as for `_with_units_first`. order: the order of the geometry's spatial axes in these shapes.
    """
    if len(order) == 1:
        x, w, y = ((*shape, 1) for shape in (x, w, y))
        pad = (geometry.begin[0], 0), (geometry.end[0], 0)
        geometry = Geometry((geometry.strides[0], 1), (geometry.dilations[0], 1), *pad, geometry.group)
        order = (0, 1)
    else:
        x, w, y = ((*shape[:2], shape[-1], *shape[2:-1]) for shape in (x, w, y))
        order = (order[-1], *order[:-1])
    window = window_of(geometry, order)
    assert window is not None, "the same axes"
    return x, w, y, window


# If an image or a kernel has more columns than this, oneDNN takes seconds to prepare a transposed convolution.
_WIDEST = 1 << 14


class _Forward:
    """Makes the kernels of a convolution, or of a transposed one, for given sizes. It is a SizedFactory."""

    def __init__(self, transposed: bool, node: Node, context: KernelContext, dtype: str, last: bool):
        self._transposed = transposed
        op = operator(node, Convolution)
        # For a transposed convolution, only the standard operator computes the right geometry.
        self._op: Convolution = op.standard() if isinstance(op, ChannelsLast) and transposed else op
        self._last = last
        self._vary = context.sizes_vary
        self._threads = context.threads
        self._packs = 1 in context.constant_inputs
        self._epilogue = epilogue(node, residual=3)
        self._options: dict[str, Any] = dict(
            bias=operand(node, 2) is not None, epilogue=self._epilogue, pack_weights=self._packs
        )
        self._library = dict(channels_last=last, dtype=dtype, **library_options(context))
        ours = last and dtype == "float32"
        self._tiles = ours and not transposed
        self._transposes = ours and transposed
        self._keeps_order = not last and not transposed and dtype == "float32"
        self._may_slide = self._tiles and operand(node, 3) is None
        self._depthwise = self._may_slide and self._prefers_depthwise_kernel(node)
        # If False, padding depends on the sizes of the data, or on a given shape of the result.
        self._has_fixed_padding = not transposed and not self._op.checked_auto_pad().startswith("SAME")
        self._found: _Windows | None = None
        self.native = self._native_factory(node)

    def _native_factory(self, node: Node) -> native.ChannelsLastConvFactory | None:
        """Return the factory that makes graphkit's own kernels without Python; None if the windows depend on sizes."""
        x, weights = (v.tensor for v in node.operands[:2])
        if not self._tiles or not self._has_fixed_padding or x.rank != 4 or not weights.is_static:
            return None
        if not is_static(x.known_shape[-1]):
            return None
        windows = self._windows(channels_first(x.known_shape), weights.static_shape)
        if windows.window is None:
            return None
        return native.ChannelsLastConvFactory(
            window=windows.window,
            depthwise=windows.depthwise,
            prefers_depthwise=self._depthwise,
            vary=self._vary,
            threads=self._threads,
            **self._options,
        )

    def _prefers_depthwise_kernel(self, node: Node) -> bool:
        """Return whether graphkit's kernel is used for all sizes if there is one filter for each channel.

        If the weights are packed, or an activation is fused, oneDNN's kernel is as fast. But making it takes longer.
        """
        activates = isinstance(node.op, Epilogue) and bool(node.op.activation)
        return self._vary or (len(node.operands) == 2 and not activates and not self._packs)

    def __call__(self, inputs: Shapes, outputs: Shapes) -> Kernel | None:
        if self.native is not None and (made := self.native(inputs, outputs)) is not None:
            return made
        return self._of_shapes(present(inputs[0]), present(inputs[1]), present(outputs[0]))

    def _of_shapes(self, x: tuple[int, ...], w: tuple[int, ...], y: tuple[int, ...]) -> Kernel | None:
        if self._last:
            x, y = channels_first(x), channels_first(y)
        windows = self._windows(x, w)
        depthwise = windows.depthwise
        if depthwise is not None and (self._depthwise or native.DepthwiseConvolution.slides(y, depthwise)):
            return native.DepthwiseConvolution(x, y, depthwise, self._threads, **self._options)
        window, order = windows.window, tuple(range(len(x) - 2))
        if len(x) == 3 and x[1] == w[0] == windows.geometry.group and not self._transposed:
            x, w, y, window = _with_row_axis(x, w, y, windows.geometry)
        elif 1 in x[2:]:
            x, w, y, order = _with_units_first(x, w, y)
            window = window_of(windows.geometry, order)
        if window is None:
            return None
        if self._transposed and max(x[-1], w[-1]) > _WIDEST:
            # oneDNN's preparation takes time for each column, but not for rows.
            if max(x[2:-1], default=1) > 1:
                return None
            x, w, y, window = _with_columns_as_rows(x, w, y, windows.geometry, order)
        if self._keeps_order and (kind := _standard_kernel(w, y, windows.geometry)) is not None:
            return kind(x, w, y, window, threads=self._threads, **self._options)
        if self._tiles:
            if native.NarrowConvolution.suits(x, w, y, window):
                return native.NarrowConvolution(x, w, y, window, threads=self._threads, **self._options)
            method = native.TiledConvolution.method(x, w, y, window, constant=self._packs, vary=self._vary)
            if method is not None:
                return native.TiledConvolution(x, w, y, window, method, threads=self._threads, **self._options)
        # If all strides are 1, oneDNN's kernel is faster, except for the cases of `scatters`.
        transposes = self._transposes and (self._vary or max(windows.geometry.strides) > 1 or _scatters(x, w, y))
        if transposes and native.TransposedConvolution.covers(x, w, y, window):
            options = dict(bias=self._options["bias"], pack_weights=self._packs)
            return native.TransposedConvolution(x, w, y, window, **options, threads=self._threads)
        if self._transposed:
            return native.Deconvolution(x, w, y, window, **self._options, **self._library)
        options = dict(self._options)
        if self._library["dtype"] == "float32":
            options["epilogue"] = self._epilogue.for_results(math.prod(y))
        return native.Convolution(x, w, y, window, **options, **self._library)

    def _windows(self, x: tuple[Dim, ...], w: tuple[int, ...]) -> _Windows:
        """Return the windows for these sizes. If padding is fixed, they depend only on the weights, and are reused."""
        if self._found is None or not self._has_fixed_padding or self._found.weights != w:
            geometry = self._op.geometry(x, w)
            is_depthwise = self._may_slide and self._op.group == x[1] == w[0]
            depthwise = depthwise_window(geometry, w[2:]) if is_depthwise else None
            self._found = _Windows(w, geometry, window_of(geometry), depthwise)
        return self._found


def channels_first(shape: tuple[D, ...]) -> tuple[D, ...]:
    """Return a shape with the channels at axis 1. In the given shape, they are last."""
    return (shape[0], shape[-1], *shape[1:-1])


def _forward(*, transposed: bool = False, last: bool = False) -> Preparation:
    def prepare(node: Node, context: KernelContext) -> SizedFactory | None:
        dtype = None if _has_last_filters(node) else library_dtype(node)
        return None if dtype is None else _Forward(transposed, node, context, dtype, last)

    return prepare


prepared_kernel("Conv", onednn=True)(_forward())
prepared_kernel("FusedConv", DOMAIN, onednn=True)(_forward())
prepared_kernel("ConvTranspose", onednn=True)(_forward(transposed=True))
prepared_kernel("ChannelsLastConv", DOMAIN, onednn=True)(_forward(last=True))
prepared_kernel("ChannelsLastConvTranspose", DOMAIN, onednn=True)(_forward(transposed=True, last=True))


@kernel("ConvGradInput", DOMAIN, onednn=True)
def _conv_grad_input(node: Node, context: KernelContext) -> Kernel | None:
    return _grad_input(node, context, last=False)


@kernel("ChannelsLastConvGradInput", DOMAIN, onednn=True)
def _channels_last_conv_grad_input(node: Node, context: KernelContext) -> Kernel | None:
    return _grad_input(node, context, last=True)


@kernel("ConvGradWeight", DOMAIN, onednn=True)
def _conv_grad_weight(node: Node, context: KernelContext) -> Kernel | None:
    return _grad_weight(node, context, last=False)


@kernel("ChannelsLastConvGradWeight", DOMAIN, onednn=True)
def _channels_last_conv_grad_weight(node: Node, context: KernelContext) -> Kernel | None:
    return _grad_weight(node, context, last=True)


def _standard(shape: tuple[int, ...], last: bool) -> tuple[int, ...]:
    """Return a shape with the channels at axis 1. last: Whether they are last in the given shape."""
    return channels_first(shape) if last else shape


def _is_depthwise(node: Node, x: tuple[int, ...], w: tuple[int, ...]) -> bool:
    """Whether every channel has one filter, all in float32. x: [N, C, *spatial], w: [M, C / group, *kernel]."""
    if operator(node, Convolution).group != x[1] or x[1] != w[0]:
        return False
    return all(v is None or v.dtype is DType.FLOAT32 for v in (*node.inputs[:2], *node.outputs))


def _has_last_filters(node: Node) -> bool:
    """Return whether the weights are in the layout `filters_last`, which no kernel of this module reads."""
    return isinstance(node.op, ChannelsLastConvolution) and node.op.filters_last


def _gradient_dtype(node: Node) -> str | None:
    """Return the element type of both operands, if oneDNN computes the gradient in it on this CPU; else None."""
    if _has_last_filters(node):
        return None
    kinds = {v.dtype for v in node.operands[:2]}
    if kinds == {DType.FLOAT32}:
        return "float32"
    return "bfloat16" if kinds == {DType.BFLOAT16} and native.has_bfloat16() else None


def _grad_input(node: Node, context: KernelContext, last: bool) -> Kernel | None:
    dtype = _gradient_dtype(node)
    if dtype is None:
        return None
    op = operator(node, Convolution)
    dy, dx = (_standard(shape(v), last) for v in (node.inputs[0], node.output))
    w = shape(node.inputs[1])
    geometry = op.geometry(dx, w)
    if last and _is_depthwise(node, dx, w) and (depthwise := depthwise_window(geometry, w[2:])) is not None:
        return native.DepthwiseBackwardData(dy, dx, depthwise, context.threads)
    dx, w, dy, order = _with_units_first(dx, w, dy)
    window = window_of(geometry, order)
    if window is None:
        return None
    packs = 1 in context.constant_inputs
    if last and dtype == "float32":
        method = native.TiledConvolution.method(dy, w, dx, window, constant=packs, transposed=True)
        if method is not None:
            return native.TiledConvolution(
                dy, w, dx, window, method, pack_weights=packs, transposed=True, threads=context.threads
            )
    return native.ConvolutionBackwardData(
        dy,
        w,
        dx,
        window,
        pack_weights=packs,
        channels_last=last,
        dtype=dtype,
        **library_options(context),
    )


def _grad_weight(node: Node, context: KernelContext, last: bool) -> Kernel | None:
    dtype = _gradient_dtype(node)
    if dtype is None or node.output.dtype is not DType.FLOAT32:
        return None
    op = operator(node, Convolution)
    x, dy = (_standard(shape(v), last) for v in node.inputs[:2])
    dw = shape(node.output)
    geometry = op.geometry(x, dw)
    if last and _is_depthwise(node, x, dw) and (depthwise := depthwise_window(geometry, dw[2:])) is not None:
        return native.DepthwiseBackwardWeights(x, dy, depthwise, context.threads)
    x, dw, dy, order = _with_units_first(x, dw, dy)
    window = window_of(geometry, order)
    if window is None:
        return None
    return native.ConvolutionBackwardWeights(
        x, dy, dw, window, channels_last=last, dtype=dtype, **library_options(context)
    )


def _standard_kernel(
    w: tuple[int, ...], y: tuple[int, ...], geometry: Geometry
) -> type[native.ShallowConvolution] | type[native.DepthwisePlanes] | None:
    """Return graphkit's own kernel of a convolution in the standard order; None if oneDNN's is used."""
    if has_few_channels(w, y, geometry.group):
        return native.ShallowConvolution
    return native.DepthwisePlanes if slides_over_planes(w, y, geometry) else None


def _scatters(*shapes: Sequence[int]) -> bool:
    """Call `scatters`, which is imported only for transposed convolutions."""
    from graphkit.passes.layout.unstride_transposed import scatters

    return scatters(*shapes)
