"""Which convolutions keep the standard order of axes: few channels, or one filter for each channel."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from graphkit.ir.dims import Dim, is_static
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import DType
from graphkit.ops import DOMAIN, operator
from graphkit.ops.nn.conv import Convolution, Geometry
from graphkit.passes.core.match import is_op

_MOST_CHANNELS = 4
_LEAST_COLUMNS = 8
_MANY_ELEMENTS = 256  # a window with more elements counts as large
_LANES = 16
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
