"""Convolutions, plain and fused, and their gradients: through oneDNN, or by kernels of our own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from graphkit.executor.devices.cpu._base import epilogue, kernel, library_dtype, library_options, native, operand, shape
from graphkit.executor.devices.kernel import Kernel, KernelContext
from graphkit.ir.graph import Node
from graphkit.ir.types import DType
from graphkit.ops._base import DOMAIN, operator
from graphkit.ops.internal.channels_last import ChannelsLast, ChannelsLastConv, to_first
from graphkit.ops.nn.conv import Convolution


def window_of(geometry: Any, order: Sequence[int] | None = None) -> native.Window | None:
    """The native window of a convolution's geometry, its spatial axes in the given order.

    None when their number is not covered.
    """
    if not 1 <= len(geometry.strides) <= 3:
        return None
    # Under ConvTranspose fewer than a stride of output rows may lie beyond every window: rounding down covers them.
    if any(-end >= stride for end, stride in zip(geometry.end, geometry.strides, strict=True)):
        return None
    end = [max(e, 0) for e in geometry.end]
    axes = range(len(end)) if order is None else order
    strides, dilations, begin, end = (
        [values[axis] for axis in axes] for values in (geometry.strides, geometry.dilations, geometry.begin, end)
    )
    return native.Window(strides, dilations, begin, end, geometry.group)


class _Spatial(NamedTuple):
    """The shapes of data, weights and result, channels first, and the order in which they have their spatial axes."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    y: tuple[int, ...]
    order: tuple[int, ...]

    @classmethod
    def of(cls, x: tuple[int, ...], w: tuple[int, ...], y: tuple[int, ...]) -> _Spatial:
        """Axes of one element come first: that moves nothing in memory, and lines are as long as they can be."""
        axes = range(len(x) - 2)
        order = tuple(sorted(axes, key=lambda axis: not x[2 + axis] == w[2 + axis] == y[2 + axis] == 1))
        x, w, y = ((*shape[:2], *(shape[2 + axis] for axis in order)) for shape in (x, w, y))
        return cls(x, w, y, order)


def _forward(kind: Callable[..., Kernel], node: Node, context: KernelContext, last: bool = False) -> Kernel | None:
    dtype = library_dtype(node)
    if dtype is None:
        return None
    op = operator(node, Convolution)
    x, y = (_standard(shape(v), last) for v in (node.inputs[0], node.output))
    w = shape(node.inputs[1])
    # Of ConvTranspose alone the geometry is another one than that of the class.
    of: Convolution = op.standard() if isinstance(op, ChannelsLast) and kind is native.Deconvolution else op
    geometry = of.geometry(x, w)
    x, w, y, order = _Spatial.of(x, w, y)
    window = window_of(geometry, order)
    if window is None:
        return None
    packs = 1 in context.constant_inputs
    options: dict[str, Any] = dict(
        bias=operand(node, 2) is not None, epilogue=epilogue(node, residual=3), pack_weights=packs
    )
    if kind is native.Convolution and last and dtype == "float32":
        if native.NarrowConvolution.suits(x, w, y, window):
            return native.NarrowConvolution(x, w, y, window, threads=context.threads, **options)
        method = native.TiledConvolution.method(x, w, y, window, constant=packs, vary=context.sizes_vary)
        if method is not None:
            return native.TiledConvolution(x, w, y, window, method, threads=context.threads, **options)
    return kind(x, w, y, window, channels_last=last, dtype=dtype, **options, **library_options(context))


def _standard(shape: tuple[int, ...], last: bool) -> tuple[int, ...]:
    """A shape with the channels at axis 1."""
    return tuple(shape[i] for i in to_first(len(shape))) if last else shape


@kernel("Conv", onednn=True)
def _conv(node: Node, context: KernelContext) -> Kernel | None:
    return _forward(native.Convolution, node, context)


@kernel("ConvTranspose", onednn=True)
def _conv_transpose(node: Node, context: KernelContext) -> Kernel | None:
    return _forward(native.Deconvolution, node, context)


@kernel("FusedConv", DOMAIN, onednn=True)
def _fused_conv(node: Node, context: KernelContext) -> Kernel | None:
    return _forward(native.Convolution, node, context)


@kernel("ChannelsLastConv", DOMAIN, onednn=True)
def _channels_last_conv(node: Node, context: KernelContext) -> Kernel | None:
    op = operator(node, ChannelsLastConv)
    packs = 1 in context.constant_inputs
    # With packed weights, and what follows the convolution, the library's is as fast once it is made.
    if operand(node, 3) is None and (
        context.sizes_vary or (len(node.operands) == 2 and not op.activation and not packs)
    ):
        x, w, y = _standard(shape(node.inputs[0]), True), shape(node.inputs[1]), _standard(shape(node.output), True)
        window = _depthwise_window(node, x, w)
        last = epilogue(node, residual=3)
        if window is not None and native.DepthwiseConvolution.follows(last):
            return native.DepthwiseConvolution(
                x, y, window, context.threads, bias=operand(node, 2) is not None, epilogue=last, pack_weights=packs
            )
    return _forward(native.Convolution, node, context, last=True)


def _depthwise_window(node: Node, x: tuple[int, ...], w: tuple[int, ...]) -> native.PoolWindow | None:
    """The window of a convolution with one filter for each channel; None when it is another, or not covered.

    x: [N, C, *spatial], w: [M, C / group, *kernel].
    """
    op = operator(node, Convolution)
    if not op.group == x[1] == w[0] or not _is_single(node) or not 1 <= len(w) - 2 <= 3:
        return None
    geometry = op.geometry(x, w)
    if any(p < 0 for p in (*geometry.begin, *geometry.end)):
        return None
    return native.PoolWindow(w[2:], geometry.strides, geometry.dilations, geometry.begin, geometry.end)


@kernel("ChannelsLastConvTranspose", DOMAIN, onednn=True)
def _channels_last_conv_transpose(node: Node, context: KernelContext) -> Kernel | None:
    return _forward(native.Deconvolution, node, context, last=True)


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


def _is_single(node: Node) -> bool:
    return all(v is None or v.dtype is DType.FLOAT32 for v in (*node.inputs[:2], *node.outputs))


def _gradient_dtype(node: Node) -> str | None:
    """The element type of both operands, when oneDNN computes the gradient in it here; else None."""
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
    depthwise = _depthwise_window(node, dx, w) if last else None
    if depthwise is not None:
        return native.DepthwiseBackwardData(dy, dx, depthwise, context.threads)
    geometry = op.geometry(dx, w)
    dx, w, dy, order = _Spatial.of(dx, w, dy)
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
    depthwise = _depthwise_window(node, x, dw) if last else None
    if depthwise is not None:
        return native.DepthwiseBackwardWeights(x, dy, depthwise, context.threads)
    geometry = op.geometry(x, dw)
    x, dw, dy, order = _Spatial.of(x, dw, dy)
    window = window_of(geometry, order)
    if window is None:
        return None
    return native.ConvolutionBackwardWeights(
        x, dy, dw, window, channels_last=last, dtype=dtype, **library_options(context)
    )
