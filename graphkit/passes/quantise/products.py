"""Run convolutions and matrix products of dequantised operands on the integers."""

from __future__ import annotations

from graphkit.ir.graph import Node, Value
from graphkit.ops import operator
from graphkit.ops.internal.quantised import MatMulIntegerToFloat, QGemm
from graphkit.ops.linalg.matmul import Gemm
from graphkit.ops.nn.conv import Conv
from graphkit.ops.quant.conv import QLinearConv
from graphkit.ops.quant.matmul import QLinearMatMul
from graphkit.passes.core.match import is_op
from graphkit.passes.core.sweep import fused_node
from graphkit.passes.quantise.match import Quantised, dequantised, integer_bias


def quantised_product(node: Node, y: Quantised, end: Node) -> Value | None:
    """Return the integer form of a Conv, MatMul or Gemm of dequantised operands; None if there is none.

    y: The parameters with which the result is quantised. end: The QuantizeLinear node.
    """
    if not y.is_divisor:
        return None
    if is_op(node, "Conv"):
        return _conv(node, y, end)
    if is_op(node, "MatMul"):
        return _matmul(node, y, end)
    return _gemm(node, y, end) if is_op(node, "Gemm") else None


def _conv(node: Node, y: Quantised, end: Node) -> Value | None:
    x, w = dequantised(node.inputs[0]), dequantised(node.inputs[1])
    if x is None or w is None or x.axis is not None or w.axis not in (None, 0):
        return None
    if not (x.is_factor and w.is_factor):
        return None
    operands = [x.x, x.scale, x.zero, w.x, w.scale, w.zero, y.scale, y.zero]
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        channels = None if w.x.shape is None else w.x.shape[0]
        bias = integer_bias(node.inputs[2], x, w, channels)
        if bias is None:
            return None
        operands.append(bias)
    return fused_node(QLinearConv(**operator(node, Conv).related()), operands, (node, end))


def _factors(node: Node, columns: int) -> tuple[Quantised, Quantised] | None:
    """Return the dequantised factors of a product; None if their scales are not supported.

    a must have a scalar scale; b a scalar scale, or one for each column. columns: the axis of b's columns.
    """
    a, b = dequantised(node.inputs[0]), dequantised(node.inputs[1])
    if a is None or b is None or a.axis is not None or not (a.is_factor and b.is_factor):
        return None
    return (a, b) if b.axis is None or (b.axis == columns and b.x.rank == 2) else None


def _matmul(node: Node, y: Quantised, end: Node) -> Value | None:
    factors = _factors(node, 1)
    if factors is None:
        return None
    a, b = factors
    operands = (a.x, a.scale, a.zero, b.x, b.scale, b.zero, y.scale, y.zero)
    return fused_node(QLinearMatMul(), operands, (node, end))


def _gemm(node: Node, y: Quantised | None, end: Node | None) -> Value | None:
    op = operator(node, Gemm)
    factors = _factors(node, 0 if op.transB else 1)
    if factors is None:
        return None
    a, b = factors
    c = node.inputs[2] if len(node.inputs) > 2 else None
    if c is not None:
        width = None if node.output.shape is None else node.output.shape[1]
        c = integer_bias(c, a, b, width, op.alpha) if op.beta == 1.0 else None
        if c is None:
            return None
    scale, zero = (None, None) if y is None else (y.scale, y.zero)
    made = QGemm(alpha=op.alpha, transA=op.transA, transB=op.transB)
    operands = (a.x, a.scale, a.zero, b.x, b.scale, b.zero, c, scale, zero)
    return fused_node(made, operands, (node,) if end is None else (node, end))


def float_product(node: Node) -> Value | None:
    """Return the integer form of a MatMul or Gemm of dequantised operands with a float32 result, or None."""
    if is_op(node, "Gemm"):
        return _gemm(node, None, None)
    factors = _factors(node, 1) if is_op(node, "MatMul") else None
    if factors is None:
        return None
    a, b = factors
    return fused_node(MatMulIntegerToFloat(), (a.x, b.x, a.scale, b.scale, a.zero, b.zero), (node,))
