"""Convolutions, plain and fused, and their gradients: by oneDNN, or by graphkit's own kernels."""

from __future__ import annotations

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
from graphkit.ops._base import DOMAIN, operator
from graphkit.ops.internal.channels_last import ChannelsLast, ChannelsLastConvolution
from graphkit.ops.internal.fused import Epilogue
from graphkit.ops.nn.conv import Convolution, ConvTranspose, Geometry
from graphkit.passes.layout.standard_order import has_few_channels, scatters_over_planes, slides_over_planes

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


class _Forward:
    """Makes the kernels of a convolution, or of a transposed one, for given sizes. It is a SizedFactory.

    The native factory chooses a kernel for each size. `native` is this factory. It is None if the padding follows from
    a given shape of the result: a new factory is then made for each size.
    """

    def __init__(self, transposed: bool, node: Node, context: KernelContext, dtype: str, last: bool):
        op = operator(node, Convolution)
        # For a transposed convolution, only the standard operator computes the right geometry.
        self._op: Convolution = op.standard() if isinstance(op, ChannelsLast) and transposed else op
        self._transposed, self._last = transposed, last
        x, w, y = (v.tensor.known_shape for v in (*node.operands[:2], node.output))
        if last:
            x, y = channels_first(x), channels_first(y)
        self._auto_pad = _auto_pad(self._op)
        geometry = self._op.geometry(x, w)
        # If the weights are packed, or an activation is fused, oneDNN's depthwise kernel is as fast. But making it
        # takes longer.
        packs, vary = 1 in context.constant_inputs, context.sizes_vary
        activates = isinstance(node.op, Epilogue) and bool(node.op.activation)
        self._options: dict[str, Any] = dict(
            kernel=w[2:] if all(map(is_static, w[2:])) else (),
            transposed=transposed,
            channels_last=last,
            standard=native.StandardConvolution.library,
            prefers_depthwise=vary or (len(node.operands) == 2 and not activates and not packs),
            scatters=transposed and _scatters(x, w, y),
            bias=operand(node, 2) is not None,
            epilogue=epilogue(node, residual=3),
            pack_weights=packs,
            vary=vary,
            dtype=dtype,
            **library_options(context),
        )
        if not last and dtype == "float32":
            self._options["standard"] = _standard_kernel(x, w, y, geometry, transposed)
        self.native = None if self._pads_vary() else self._factory(geometry)

    def _pads_vary(self) -> bool:
        """Return whether Python computes the padding for each size: that of a transposed convolution may."""
        if not isinstance(self._op, ConvTranspose):
            return False
        return self._op.output_shape is not None or self._auto_pad != native.AutoPad.none

    def _factory(self, geometry: Geometry) -> native.ConvolutionFactory | None:
        """Return the native factory for a geometry; None if oneDNN has no such number of axes."""
        if not 1 <= len(geometry.strides) <= 3:
            return None
        automatic = self._auto_pad != native.AutoPad.none and not self._transposed
        zeros = (0,) * len(geometry.strides)
        begin, end = (zeros, zeros) if automatic else (geometry.begin, geometry.end)
        return native.ConvolutionFactory(
            window=native.Window(geometry.strides, geometry.dilations, begin, end, geometry.group),
            auto_pad=self._auto_pad if automatic else native.AutoPad.none,
            **self._options,
        )

    def __call__(self, inputs: Shapes, outputs: Shapes) -> Kernel | None:
        factory = self.native
        if factory is None and self._pads_vary():
            x = present(inputs[0])
            factory = self._factory(self._op.geometry(channels_first(x) if self._last else x, present(inputs[1])))
        return None if factory is None else factory(inputs, outputs)


def _auto_pad(op: Convolution) -> native.AutoPad:
    """Return how the padding of a convolution follows from sizes."""
    kinds = {"SAME_UPPER": native.AutoPad.same_upper, "SAME_LOWER": native.AutoPad.same_lower}
    return kinds.get(op.checked_auto_pad(), native.AutoPad.none)


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
    x: tuple[Dim, ...], w: tuple[Dim, ...], y: tuple[Dim, ...], geometry: Geometry, transposed: bool
) -> native.StandardConvolution:
    """Return which kernel computes a float32 convolution in the standard order. Sizes that matter must be known.

    x, w, y: Shapes of data, weights and result.
    """
    if transposed:
        scatters = scatters_over_planes(x, w, geometry.group, geometry.strides, geometry.dilations)
        return native.StandardConvolution.scattered if scatters else native.StandardConvolution.library
    if all(map(is_static, w)) and slides_over_planes(w, y, geometry):
        return native.StandardConvolution.planes
    if has_few_channels(w, y, geometry.group, geometry.strides):
        return native.StandardConvolution.shallow
    return native.StandardConvolution.library


def _scatters(*shapes: Sequence[Any]) -> bool:
    """Call `scatters`, which is imported only for transposed convolutions."""
    from graphkit.passes.layout.unstride_transposed import scatters

    return all(map(is_static, shapes[1])) and scatters(*shapes)
