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
_SLIDING = ((3, 3), (5, 5), (7, 7))


def has_few_channels(w: Sequence[Dim], y: Sequence[Dim], group: int) -> bool:
    """Return whether the CPU kernel for few channels is the fastest one for a convolution in the standard order.

    Its vectors hold results that are neighbours in a line, or in lines that are joined. So results must fill vectors.

    Args:
        w: Shape of the weights, [M, C, *kernel].
        y: Shape of the result, [N, M, *spatial].
        group: Number of groups.
    """
    if group != 1 or not 3 <= len(w) <= 4 or len(y) != len(w):
        return False
    known = [d for d in (*w, *y[2:]) if isinstance(d, int)]
    if len(known) < len(w) + len(y) - 2:
        return False
    channels, columns, results = known[1], known[-1], math.prod(known[len(w) :])
    if math.prod(known[1 : len(w)]) > _MANY_ELEMENTS:
        results = columns  # the lines of large windows are not joined
    fills = 10 * results >= 9 * math.ceil(results / _LANES) * _LANES
    return 1 <= channels <= _MOST_CHANNELS and columns >= _LEAST_COLUMNS and fills


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


def keeps_order(node: Node, is_returned: Callable[[Value], bool]) -> bool:
    """Return whether a convolution is computed in the standard order, with few channels or with one filter for each.

    If other nodes read the result, they are faster with the channels last.

    Args:
        node: A node of any operator.
        is_returned: Whether nothing but the graph's outputs reads a value.
    """
    if not is_op(node, "Conv") and not is_op(node, "FusedConv", domain=DOMAIN):
        return False
    w = node.operands[1]
    if any(v.dtype is not DType.FLOAT32 for v in node.operands) or w.rank is None or node.output.rank is None:
        return False
    op = operator(node, Convolution)
    filters, y = w.tensor.known_shape, node.output.tensor.known_shape
    if not is_returned(node.output):
        return False
    if has_few_channels(filters, y, op.group):
        return True
    x = node.operands[0].tensor
    if op.group == 1 or x.shape is None or not all(map(is_static, filters)):
        return False
    return slides_over_planes(filters, y, op.geometry(x.shape, filters))


def is_product(node: Node) -> bool:
    """Return whether a Conv or FusedConv is faster as a product of its weights with x: [N, C, positions].

    Args:
        node: A convolution of any operator, or a gradient of one, whose result is only an output of the graph.
    """
    if not is_op(node, "Conv") and not is_op(node, "FusedConv", domain=DOMAIN):
        return False
    x, w = node.operands[:2]
    op = operator(node, Convolution)
    if op.group != 1 or any(v.dtype is not DType.FLOAT32 for v in node.operands):
        return False
    if not (x.tensor.is_static and w.tensor.is_static) or math.prod(w.tensor.static_shape[2:]) != 1:
        return False
    channels, *positions = x.tensor.static_shape[1:]
    geometry = op.geometry(x.tensor.static_shape, w.tensor.static_shape)
    is_whole = all(n == 1 for n in geometry.strides) and not any((*geometry.begin, *geometry.end))
    return is_whole and channels >= _LEAST_TERMS and math.prod(positions) >= _LEAST_POSITIONS


def as_product(node: Node, operands: Sequence[Value | None]) -> Value:
    """Return the result of a convolution for which `is_product` holds, for the given x, w, bias and residual.

    The product has the name of the convolution, and all new nodes have its metadata.
    """
    x, w = operands[:2]
    bias, residual = (operands[i] if i < len(operands) else None for i in (2, 3))
    assert x is not None
    assert w is not None
    batch, channels, *positions = x.tensor.static_shape
    filters = w.tensor.static_shape[0]
    with context.entered(context.current()._replace(attrs=node.meta)):
        flat = F.reshape(x, np.array([batch, channels, math.prod(positions)]))
        y: Any = F.mat_mul(F.reshape(w, np.array([filters, channels])), flat, name=node.name)
        y = F.reshape(y, np.array([batch, filters, *positions]))
        if bias is not None:
            y = F.add(y, F.reshape(bias, np.array([filters, *(1 for _ in positions)])))
        if isinstance(node.op, FusedConv):
            y = node.op.finished(y, residual)
    result: Value = y
    return result
