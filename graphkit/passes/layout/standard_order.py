"""Which convolutions keep the standard order of axes.

These are convolutions of few channels, those with one filter for each channel, and matrix products: those with windows
of one element.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from graphkit.ir import context
from graphkit.ir.dims import Dim, is_static
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import DType
from graphkit.ops import DOMAIN, F, operator
from graphkit.ops.internal.fused_conv import FusedConv
from graphkit.ops.nn.conv import Convolution, Geometry
from graphkit.passes.core.match import is_op

_MOST_CHANNELS = 4
_LEAST_COLUMNS = 8
_MANY_ELEMENTS = 256  # a window with more elements counts as large
_LANES = 16
# For products: with fewer channels or positions, a convolution with the channels last is faster.
_LEAST_TERMS = 8
_LEAST_POSITIONS = 192
# With fewer positions that are apart in x, reading them takes longer than reordering the axes.
_LEAST_POSITIONS_APART = 64
_SLIDING = ((3, 3), (5, 5), (7, 7))

# Limits up to which the kernel for few channels is faster than reordering the axes and computing with channels last.
_SOME_CHANNELS = 15  # of windows with several elements
_CHANNELS_OF_POINTS = 7  # of windows with one element; with more, a matrix product is faster
_CHANNELS_APART = 8  # of windows that are at least 2 elements apart
_CHANNELS_OF_LINES = 128  # of images with one axis
_CHANNELS_OF_GROUP = 8
_FEW_FILTERS_OF_GROUP = 9  # the library leaves lanes empty for them
_SOME_CHANNELS_OF_GROUP = 64  # with so few filters, or with one axis
_PART_OF_BLOCK = 64  # channels or filters that do not fill the library's blocks of 16
_SMALL_WINDOW = 9
_COLUMNS_OF_GROUP = 24
_COLUMNS_OF_CHANNEL = 48

# Limits of the kernel for transposed convolutions in the standard order.
_MOST_COLUMNS = 1 << 14
_FEW_FILTERS = 8
_FEW_TAPS = 8
_SCATTERED_CHANNELS = 32
_SCATTERED_FILTERS = 32
# Limit of TransposedPlanes::covers: floats of the products that are kept at once, of at least _MANY_TAPS taps.
_MOST_KEPT_FLOATS = 1 << 20
_MANY_TAPS = 56


def has_few_channels(w: Sequence[Dim], y: Sequence[Dim], group: int, strides: Sequence[int] | None) -> bool:
    """Return whether the CPU kernel for few channels is the fastest one for a convolution in the standard order.

    Its vectors hold results that are neighbours in a line, or in lines that are joined. So results must fill vectors.

    Args:
        w: Shape of the weights, [M, C / group, *kernel].
        y: Shape of the result, [N, M, *spatial].
        group: Number of groups.
        strides: Strides along the spatial axes; None: all are 1.
    """
    if not 3 <= len(w) <= 4 or len(y) != len(w):
        return False
    known = [d for d in (*w, *y[2:]) if isinstance(d, int)]
    if len(known) < len(w) + len(y) - 2:
        return False
    channels, columns, results = known[1], known[-1], math.prod(known[len(w) :])
    if math.prod(known[1 : len(w)]) > _MANY_ELEMENTS:
        results = columns  # the lines of large windows are not joined
    fills = 10 * results >= 9 * math.ceil(results / _LANES) * _LANES
    if channels < 1 or columns < _LEAST_COLUMNS or not fills:
        return False
    window, stride = known[2 : len(w)], 1 if strides is None else strides[-1]
    if group > 1:
        return _suits_groups(known[0] // group, channels, group, window, stride, columns)
    return channels <= _MOST_CHANNELS or _suits(known[0], channels, window, stride)


def _suits(filters: int, channels: int, window: list[int], stride: int) -> bool:
    """Return whether the kernel for few channels is faster although there are more than _MOST_CHANNELS channels."""
    if math.prod(window) == 1:
        return channels <= _CHANNELS_OF_POINTS and stride == 1
    if channels <= _SOME_CHANNELS and stride == 1:
        return True
    if stride > 1:
        return channels <= _CHANNELS_APART or (stride == 2 and channels <= _SOME_CHANNELS and filters % _LANES > 0)
    if len(window) == 1:
        return channels <= _CHANNELS_OF_LINES
    if channels > _PART_OF_BLOCK or math.prod(window) > _SMALL_WINDOW:
        return False
    # Winograd's algorithm needs fewer products.
    return filters < _LANES or (channels % _LANES > 0 and window != [3, 3])


def _suits_groups(filters: int, channels: int, groups: int, window: list[int], stride: int, columns: int) -> bool:
    """Return whether the kernel for few channels is faster for groups with these numbers of filters and channels."""
    if math.prod(window) == 1 or (stride > 2 and (channels == 1 or len(window) > 1)):
        return False
    if channels > 1:
        some = filters <= _FEW_FILTERS_OF_GROUP or len(window) == 1
        most = _SOME_CHANNELS_OF_GROUP if some else _CHANNELS_OF_GROUP
        return channels <= most and columns >= _COLUMNS_OF_GROUP
    if filters > 1:
        return True
    if len(window) == 1:
        return stride == 1 and columns >= _COLUMNS_OF_GROUP
    fills_blocks = groups % _LANES == 0 or math.prod(window) > _SMALL_WINDOW
    return stride == 1 and columns >= _COLUMNS_OF_CHANNEL and not fills_blocks


def slides_over_planes(w: Sequence[Dim], y: Sequence[Dim], geometry: Geometry) -> bool:
    """Return whether the CPU kernel for planes is the fastest one for a depthwise convolution in the standard order.

    Its vectors hold results that are neighbours in a line. So lines must fill vectors.

    Args:
        w: Shape of the weights, [C, 1, *kernel].
        y: Shape of the result, [N, C, *spatial].
        geometry: The convolution's geometry.
    """
    if len(w) != 4 or len(y) != 4 or tuple(w[:2]) != (geometry.group, 1) or y[1] != geometry.group:
        return False
    if tuple(w[2:]) not in _SLIDING or any(n != 1 for n in (*geometry.strides, *geometry.dilations)):
        return False
    if any(pad < 0 for pad in (*geometry.begin, *geometry.end)):
        return False
    columns = y[-1]
    if not isinstance(columns, int) or columns == 0:
        return False
    return 8 * columns >= 7 * math.ceil(columns / _LANES) * _LANES


def scatters_over_planes(
    x: Sequence[Dim],
    w: Sequence[Dim],
    group: int,
    strides: Sequence[int] | None,
    dilations: Sequence[int] | None = None,
) -> bool:
    """Return whether the CPU kernel for transposed convolutions in the standard order is the fastest one.

    Args:
        x: Shape of the data, [N, C, *spatial].
        w: Shape of the weights, [C, M / group, *kernel].
        group: Number of groups.
        strides: Strides along the spatial axes; None: all are 1.
        dilations: Dilations along the spatial axes; None: all are 1.
    """
    known = [d for d in (*x[1:], *w) if isinstance(d, int)]
    if group < 1 or not 3 <= len(x) <= 5 or len(known) < 2 * len(x) - 1 or 0 in known:
        return False
    channels, filters, columns, taps = x[1], w[1], x[-1], math.prod(known[len(x) + 1 :])
    assert isinstance(channels, int)
    assert isinstance(filters, int)
    assert isinstance(columns, int)
    channels //= group
    steps = [1] * (len(x) - 2) if strides is None else [*strides]
    if not _LEAST_COLUMNS <= columns <= _MOST_COLUMNS or channels > _CHANNELS_OF_LINES:
        return False
    apart = [1] * len(steps) if dilations is None else dilations
    axes = [*zip(known[1 : len(x) - 1], known[len(x) + 1 :], steps, apart, strict=True)]
    if _kept_floats(axes) > _MOST_KEPT_FLOATS:
        return False
    if group > 1:
        return max(steps) > 1 and channels > 1 and columns >= _COLUMNS_OF_GROUP
    few = filters <= _FEW_FILTERS
    if max(steps) == 1:
        return few and channels >= _LANES and columns >= _COLUMNS_OF_GROUP
    if len(x) == 3:
        return True
    is_part = filters % _LANES > 0
    if len(x) == 5:
        return few or (taps <= _FEW_TAPS and (is_part or channels <= _SCATTERED_CHANNELS))
    if filters == 1:
        return columns >= _LANES - 1
    if columns < _COLUMNS_OF_GROUP:
        return False
    if taps < math.prod(steps):
        return True  # some results have no terms
    if few:
        return taps <= _LANES
    single = taps == math.prod(steps)
    divides = all(isinstance(k, int) and k % step == 0 for k, step in zip(w[2:], steps, strict=True))
    fits = channels <= _PART_OF_BLOCK and filters <= _SCATTERED_FILTERS and (is_part or channels > _SCATTERED_CHANNELS)
    return (single and is_part) or (not divides and fits)


def _kept_floats(axes: Sequence[tuple[int, int, int, int]]) -> int:
    """Return how many products the kernel for transposed convolutions in the standard order keeps at least.

    axes: Size, taps, stride and dilation of each spatial axis.
    """
    # The kernel computes axes of size 1 before the others.
    ordered = sorted(axes, key=lambda axis: axis[:2] != (1, 1))
    size, taps, stride, dilation = ordered[0]
    lines = size if len(axes) == 1 else (taps - 1) * dilation // stride + 2
    line = math.prod(axis[0] for axis in ordered[1:])
    return lines * line * max(_MANY_TAPS, 2 * math.prod(axis[1] for axis in axes))


def keeps_order(node: Node, is_returned: Callable[[Value], bool]) -> bool:
    """Return whether a convolution is computed in the standard order, with few channels or with one filter for each.

    If other nodes read the result, they are faster with the channels last.

    Args:
        node: A node of any operator.
        is_returned: Whether nothing but the graph's outputs reads a value.
    """
    transposed = is_op(node, "ConvTranspose")
    if not transposed and not is_op(node, "Conv") and not is_op(node, "FusedConv", domain=DOMAIN):
        return False
    w = node.operands[1]
    if any(v.dtype is not DType.FLOAT32 for v in node.operands) or w.rank is None or node.output.rank is None:
        return False
    op = operator(node, Convolution)
    filters, y = w.tensor.known_shape, node.output.tensor.known_shape
    if not is_returned(node.output):
        return False
    x = node.operands[0].tensor
    if transposed:
        return x.shape is not None and scatters_over_planes(x.shape, filters, op.group, op.strides, op.dilations)
    if has_few_channels(filters, y, op.group, op.strides):
        return True
    if op.group == 1 or x.shape is None or not all(map(is_static, filters)):
        return False
    return slides_over_planes(filters, y, op.geometry(x.shape, filters))


def is_product(node: Node) -> bool:
    """Return whether a Conv or FusedConv is faster as a product of its weights with x: [N, groups, C, positions].

    Args:
        node: A convolution of any operator, or a gradient of one, whose result is only an output of the graph.
    """
    if not is_op(node, "Conv") and not is_op(node, "FusedConv", domain=DOMAIN):
        return False
    x, w = node.operands[:2]
    op = operator(node, Convolution)
    if any(v.dtype is not DType.FLOAT32 for v in node.operands):
        return False
    if not (x.tensor.is_static and w.tensor.is_static) or math.prod(w.tensor.static_shape[2:]) != 1:
        return False
    geometry = op.geometry(x.tensor.static_shape, w.tensor.static_shape)
    channels = w.tensor.static_shape[1]
    if any((*geometry.begin, *geometry.end)) or 0 in (*x.tensor.static_shape, *w.tensor.static_shape):
        return False
    if op.group > 1:
        return True
    positions = math.prod(node.output.tensor.static_shape[2:])
    if any(n > 1 for n in geometry.strides):
        return positions >= _LEAST_POSITIONS_APART
    # The convolution with three spatial axes has no kernel for few channels.
    return positions >= _LEAST_POSITIONS and (channels >= _LEAST_TERMS or len(geometry.strides) == 3)


def as_product(node: Node, operands: Sequence[Value | None]) -> Value:
    """Return the result of a convolution for which `is_product` holds, for the given x, w, bias and residual.

    The product has the name of the convolution, and all new nodes have its metadata.
    """
    x, w = operands[:2]
    bias, residual = (operands[i] if i < len(operands) else None for i in (2, 3))
    assert x is not None
    assert w is not None
    op = operator(node, Convolution)
    batch, filters, *positions = node.output.tensor.static_shape
    channels = w.tensor.static_shape[1]
    strides = op.geometry(x.tensor.static_shape, w.tensor.static_shape).strides
    groups = [op.group] if op.group > 1 else []
    with context.entered(context.current()._replace(attrs=node.meta)):
        if any(n > 1 for n in strides):
            axes = np.arange(2, 2 + len(strides))
            x = F.slice(x, np.zeros_like(axes), np.array(x.tensor.static_shape[2:]), axes, np.array(strides))
        flat = F.reshape(x, np.array([batch, *groups, channels, math.prod(positions)]))
        factors = F.reshape(w, np.array([*groups, filters // op.group, channels]))
        # Sums of one term are products of broadcast elements.
        y: Any = (F.mul if channels == 1 else F.mat_mul)(factors, flat, name=node.name)
        y = F.reshape(y, np.array([batch, filters, *positions]))
        if bias is not None:
            y = F.add(y, F.reshape(bias, np.array([filters, *(1 for _ in positions)])))
        if isinstance(node.op, FusedConv):
            y = node.op.finished(y, residual)
    result: Value = y
    return result
