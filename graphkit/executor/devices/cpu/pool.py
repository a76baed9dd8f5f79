"""Gradients of pools, unpooling, and the positions of maxima in channels-last layout."""

from __future__ import annotations

from graphkit.executor.devices.cpu._base import kernel, native
from graphkit.executor.devices.kernel import Kernel, KernelContext
from graphkit.executor.devices.operands import shape
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import DType
from graphkit.ops._base import DOMAIN, operator
from graphkit.ops.internal.channels_last import to_first
from graphkit.ops.nn.pool import AveragePoolGrad, Pooling


def _window(node: Node, spatial: tuple[int, ...], other: DType = DType.INT64) -> native.PoolWindow | None:
    """Return the native window of a pool over spatial axes of the given sizes.

    Returns None if the kernels do not support the node: there are more than three spatial axes, or an element type is
    neither float32 nor `other`, which is the type of indices or of quantised data.
    """
    values = [v for v in (*node.inputs, *node.outputs) if v is not None]
    if not 1 <= len(spatial) <= 3 or any(v.dtype not in (DType.FLOAT32, other) for v in values):
        return None
    op = operator(node, Pooling)
    window = op.window_of(spatial)
    return native.PoolWindow(window.kernel, window.strides, window.dilations, window.begin, window.end)


def _channels_first(value: Value | None) -> tuple[int, ...]:
    """Return the shape of a channels-last value with the channels at axis 1."""
    given = shape(value)
    return tuple(given[i] for i in to_first(len(given)))


@kernel("MaxPoolGrad", DOMAIN)
def _max_pool_grad(node: Node, context: KernelContext) -> Kernel | None:
    if any(v.dtype not in (DType.FLOAT32, DType.INT64) for v in (*node.operands, *node.outputs)):
        return None
    return native.MaxPoolGrad(shape(node.inputs[0]), shape(node.output), context.threads)


def _has_no_larger_shape(node: Node) -> bool:
    return len(node.inputs) < 3 or node.inputs[2] is None


@kernel("MaxUnpool", covers=_has_no_larger_shape)
def _max_unpool(node: Node, context: KernelContext) -> Kernel | None:
    if not _has_no_larger_shape(node):
        return None
    x = node.operands[0]
    return native.MaxUnpool(shape(x), shape(node.output), x.dtype.value, context.threads)


@kernel("AveragePoolGrad", DOMAIN)
def _average_pool_grad(node: Node, context: KernelContext) -> Kernel | None:
    op = operator(node, AveragePoolGrad)
    dy, dx = shape(node.inputs[0]), shape(node.output)
    window = _window(node, dx[2:])
    return None if window is None else native.AveragePoolGrad(dy, dx, window, op.count_include_pad, context.threads)


@kernel("ChannelsLastMaxPoolIndices", DOMAIN)
def _channels_last_max_pool_indices(node: Node, context: KernelContext) -> Kernel | None:
    x, y = _channels_first(node.inputs[0]), _channels_first(node.outputs[0])
    window = _window(node, x[2:], other=DType.UINT8)
    return None if window is None else native.ChannelsLastMaxPoolIndices(x, y, window, context.threads)


@kernel("ChannelsLastMaxPoolGrad", DOMAIN)
def _channels_last_max_pool_grad(node: Node, context: KernelContext) -> Kernel | None:
    dy, dx = _channels_first(node.inputs[0]), _channels_first(node.output)
    window = _window(node, dx[2:], other=DType.UINT8)
    return None if window is None else native.ChannelsLastMaxPoolGrad(dy, dx, window, context.threads)


@kernel("ChannelsLastAveragePoolGrad", DOMAIN)
def _channels_last_average_pool_grad(node: Node, context: KernelContext) -> Kernel | None:
    from graphkit.ops.internal.channels_last_gradient import ChannelsLastAveragePoolGrad

    op = operator(node, ChannelsLastAveragePoolGrad)
    dy, dx = _channels_first(node.inputs[0]), _channels_first(node.output)
    window = _window(node, dx[2:])
    return (
        None
        if window is None
        else native.ChannelsLastAveragePoolGrad(
            dy, dx, window, include_pad=op.count_include_pad, threads=context.threads
        )
    )
