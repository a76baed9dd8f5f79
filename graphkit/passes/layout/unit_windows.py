"""Convolutions with windows of one element as matrix products, in the standard order of axes."""

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
    return is_whole and channels >= _LEAST_CHANNELS and math.prod(positions) >= _LEAST_POSITIONS


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
