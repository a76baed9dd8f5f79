"""Convolutions and their gradients through oneDNN."""

from __future__ import annotations

from typing import Any

from graphkit.executor.cpu._base import all_float32, kernel, library_threads, native, operand, shape
from graphkit.executor.kernels import KernelContext
from graphkit.ir.graph import Node
from graphkit.ir.types import DType
from graphkit.ops._base import DOMAIN


def window_of(geometry: Any) -> Any:
    """The native window of a convolution's geometry; None when its number of spatial axes is not covered."""
    if not 1 <= len(geometry.strides) <= 3:
        return None
    # Under ConvTranspose fewer than a stride of output rows may lie beyond every window: rounding down covers them.
    if any(-end >= stride for end, stride in zip(geometry.end, geometry.strides, strict=True)):
        return None
    end = [max(e, 0) for e in geometry.end]
    return native.Window(geometry.strides, geometry.dilations, geometry.begin, end, geometry.group)


def _forward(kind: Any, node: Node, context: KernelContext) -> Any:
    if not all_float32(node):
        return None
    op: Any = node.op
    x, w, y = shape(node.inputs[0]), shape(node.inputs[1]), shape(node.output)
    window = window_of(op.geometry(x, w))
    if window is None:
        return None
    return kind(
        x,
        w,
        y,
        window,
        bias=operand(node, 2) is not None,
        pack_weights=1 in context.constant_inputs,
        threads=library_threads(context),
    )


@kernel("Conv", onednn=True)
def _conv(node: Node, context: KernelContext) -> Any:
    return _forward(native.Convolution, node, context)


@kernel("ConvTranspose", onednn=True)
def _conv_transpose(node: Node, context: KernelContext) -> Any:
    return _forward(native.Deconvolution, node, context)


@kernel("ConvGradInput", DOMAIN, onednn=True)
def _conv_grad_input(node: Node, context: KernelContext) -> Any:
    if not all(v is None or v.dtype is DType.FLOAT32 for v in (*node.inputs[:2], node.output)):
        return None
    op: Any = node.op
    dy, w, dx = shape(node.inputs[0]), shape(node.inputs[1]), shape(node.output)
    window = window_of(op.geometry(dx, w))
    if window is None:
        return None
    return native.ConvolutionBackwardData(
        dy, w, dx, window, pack_weights=1 in context.constant_inputs, threads=library_threads(context)
    )


@kernel("ConvGradWeight", DOMAIN, onednn=True)
def _conv_grad_weight(node: Node, context: KernelContext) -> Any:
    if not all(v is None or v.dtype is DType.FLOAT32 for v in (*node.inputs[:2], node.output)):
        return None
    op: Any = node.op
    x, dy, dw = shape(node.inputs[0]), shape(node.inputs[1]), shape(node.output)
    window = window_of(op.geometry(x, dw))
    if window is None:
        return None
    return native.ConvolutionBackwardWeights(x, dy, dw, window, threads=library_threads(context))
