"""Which convolutions keep the standard order of axes because their images have few channels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from graphkit.ir.dims import Dim
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import DType
from graphkit.ops import DOMAIN, operator
from graphkit.ops.nn.conv import Convolution
from graphkit.passes.core.match import is_op

_MOST_CHANNELS = 4
_LEAST_COLUMNS = 8
_MANY_ELEMENTS = 256  # a window with more elements counts as large
_LANES = 16


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


def keeps_order(node: Node, is_returned: Callable[[Value], bool]) -> bool:
    """Return whether a convolution is computed in the standard order, with few channels.

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
    group = operator(node, Convolution).group
    return has_few_channels(w.tensor.known_shape, node.output.tensor.known_shape, group) and is_returned(node.output)
