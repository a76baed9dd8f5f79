"""Convolutions with windows of one element as matrix products, in the standard order of axes.

With strides, the product reads a slice of x.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit.ir import context
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import DType
from graphkit.ops import DOMAIN, F, operator
from graphkit.ops.internal.fused_conv import FusedConv
from graphkit.ops.nn.conv import Convolution
from graphkit.passes.core.match import is_op

# With fewer channels or positions, a convolution with the channels last is faster.
_LEAST_CHANNELS = 8
_LEAST_POSITIONS = 192
# With fewer positions that are apart in x, reading them takes longer than reordering the axes.
_LEAST_POSITIONS_APART = 64


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
        return channels > 1
    positions = math.prod(node.output.tensor.static_shape[2:])
    if any(n > 1 for n in geometry.strides):
        return positions >= _LEAST_POSITIONS_APART
    # The convolution with three spatial axes has no kernel for few channels.
    return positions >= _LEAST_POSITIONS and (channels >= _LEAST_CHANNELS or len(geometry.strides) == 3)


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
        y: Any = F.mat_mul(F.reshape(w, np.array([*groups, filters // op.group, channels])), flat, name=node.name)
        y = F.reshape(y, np.array([batch, filters, *positions]))
        if bias is not None:
            y = F.add(y, F.reshape(bias, np.array([filters, *(1 for _ in positions)])))
        if isinstance(node.op, FusedConv):
            y = node.op.finished(y, residual)
    result: Value = y
    return result
