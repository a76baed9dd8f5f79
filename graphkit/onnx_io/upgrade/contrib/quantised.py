"""Quantised operators, written as dequantised operands, the float operator, and a quantisation.

Passes convert them to integer arithmetic again (`graphkit.passes.quantise`).
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from graphkit.errors import InvalidModel
from graphkit.ir.graph import Value
from graphkit.ir.types import DType
from graphkit.onnx_io.upgrade import NodeView, Results
from graphkit.onnx_io.upgrade.contrib import contrib
from graphkit.onnx_io.upgrade.contrib.convolution import window
from graphkit.onnx_io.upgrade.contrib.layout import channels_first, channels_last, rank_of
from graphkit.ops import F, constant
from graphkit.ops.axes import reshape_like


def dequantised(node: NodeView, place: int, axis: int = 1) -> Value:
    """Operand `place` as float32. Its scale and zero point are the next two operands."""
    value: Value = F.dequantize_linear(node.operand(place), node.operand(place + 1), node.input(place + 2), axis=axis)
    return value


def quantised(node: NodeView, y: Value, place: int, like: Value) -> Results:
    """Quantise `y` by the scale at `place` and the zero point after it (default: 0 in the type of `like`)."""
    zero = node.input(place + 1)
    if zero is None:
        zero = constant(np.array(0, like.dtype.numpy))
    return (F.quantize_linear(y, node.operand(place), zero),)


@contrib("QuantizeLinear")
def _quantize_linear(node: NodeView) -> Results:
    return (F.quantize_linear(node.operand(0), node.operand(1), node.input(2), axis=node.take("axis", 1)),)


@contrib("DequantizeLinear")
def _dequantize_linear(node: NodeView) -> Results:
    return (dequantised(node, 0, axis=node.take("axis", 1)),)


@contrib("QLinearAdd", "QLinearMul")
def _binary(node: NodeView) -> Results:
    apply = F.add if node.op_type == "QLinearAdd" else F.mul
    return quantised(node, apply(dequantised(node, 0), dequantised(node, 3)), 6, node.operand(0))


@contrib("QLinearSigmoid")
def _sigmoid(node: NodeView) -> Results:
    return quantised(node, F.sigmoid(dequantised(node, 0)), 3, node.operand(0))


@contrib("QLinearLeakyRelu")
def _leaky_relu(node: NodeView) -> Results:
    y = F.leaky_relu(dequantised(node, 0), alpha=node.take("alpha", 0.01))
    return quantised(node, y, 3, node.operand(0))


@contrib("QLinearAveragePool", "QLinearGlobalAveragePool")
def _average_pool(node: NodeView) -> Results:
    last = bool(node.take("channels_last", 0))
    x = dequantised(node, 0)
    first = channels_first(x, rank_of(node, x)) if last else x
    if node.op_type == "QLinearGlobalAveragePool":
        y = F.global_average_pool(first)
    else:
        ceil, padded = (bool(node.take(name, 0)) for name in ("ceil_mode", "count_include_pad"))
        y = F.average_pool(first, ceil_mode=ceil, count_include_pad=padded, **window(node))
    return quantised(node, channels_last(y, rank_of(node, x)) if last else y, 3, node.operand(0))


@contrib("NhwcMaxPool")
def _nhwc_max_pool(node: NodeView) -> Results:
    x = node.operand(0)
    rank = rank_of(node, x)
    y, _ = F.max_pool(channels_first(x, rank), **window(node), ceil_mode=bool(node.take("ceil_mode", 0)))
    return (channels_last(y, rank),)


@contrib("QLinearConcat")
def _concat(node: NodeView) -> Results:
    if len(node.inputs) % 3 != 2:
        raise InvalidModel(
            f"{node.label}: {len(node.inputs) - 2} operands do not form triples (tensor, scale, zero point)"
        )
    parts = [dequantised(node, place) for place in range(2, len(node.inputs), 3)]
    return quantised(node, F.concat(*parts, axis=node.require("axis")), 0, node.operand(2))


@contrib("QLinearConv")
def _conv(node: NodeView) -> Results:
    last = bool(node.take("channels_last", 0))
    x, others = node.operand(0), cast(Any, (*(node.operand(i) for i in range(1, 8)), node.input(8)))
    rank = rank_of(node, x, node.operand(3)) if last else 0
    y = F.q_linear_conv(channels_first(x, rank) if last else x, *others, **window(node))
    return (channels_last(y, rank) if last else y,)


@contrib("QLinearSoftmax")
def _softmax(node: NodeView) -> Results:
    x, opset, axis = dequantised(node, 0), node.require("opset"), node.take("axis")
    if opset >= 13:
        y = F.softmax(x, axis=-1 if axis is None else axis)
    else:
        # softmax over all axes from `axis` on, as a single axis
        y = reshape_like(F.softmax(F.flatten(x, axis=1 if axis is None else axis), axis=1), x)
    return quantised(node, y, 3, node.operand(0))


@contrib("QLinearReduceMean")
def _reduce_mean(node: NodeView) -> Results:
    axes = node.take("axes")
    wanted = None if axes is None else constant(np.asarray(axes, np.int64))
    y = F.reduce_mean(dequantised(node, 0), wanted, keepdims=bool(node.take("keepdims", 1)))
    return quantised(node, y, 3, node.operand(0))


@contrib("QLinearWhere")
def _where(node: NodeView) -> Results:
    y = F.where(node.operand(0), dequantised(node, 1), dequantised(node, 4))
    return quantised(node, y, 7, node.operand(1))


@contrib("QGemm")
def _gemm(node: NodeView) -> Results:
    turn_a, turn_b = bool(node.take("transA", 0)), bool(node.take("transB", 0))
    alpha = node.take("alpha", 1.0)
    a, b = dequantised(node, 0), dequantised(node, 3, axis=0 if turn_b else 1)
    c = node.input(6)
    if c is not None:
        scale = F.mul(F.mul(F.reshape(node.operand(1), np.zeros(0, np.int64)), np.float32(alpha)), node.operand(4))
        c = F.dequantize_linear(c, scale, axis=-1)
    y = F.gemm(a, b, c, alpha=alpha, transA=turn_a, transB=turn_b)
    return (y,) if node.input(7) is None else quantised(node, y, 7, node.operand(0))


def _scaled(node: NodeView, product: Value, scale: Value, bias: Value | None) -> Results:
    """int32 sums * scale + bias, in the type of the scale. Computed in float32."""
    y = F.mul(F.cast(product, to=DType.FLOAT32), F.cast(scale, to=DType.FLOAT32))
    if bias is not None:
        y = F.add(y, F.cast(bias, to=DType.FLOAT32))
    return (F.cast(y, to=scale.dtype),)


@contrib("MatMulIntegerToFloat")
def _product_to_float(node: NodeView) -> Results:
    product = F.mat_mul_integer(node.operand(0), node.operand(1), node.input(4), node.input(5))
    return _scaled(node, product, F.mul(node.operand(2), node.operand(3)), node.input(6))


@contrib("DynamicQuantizeMatMul")
def _dynamic_product(node: NodeView) -> Results:
    a, a_scale, a_zero = F.dynamic_quantize_linear(node.operand(0))
    product = F.mat_mul_integer(a, node.operand(1), a_zero, node.input(3))
    return _scaled(node, product, F.mul(a_scale, node.operand(2)), node.input(4))


@contrib("MatMulInteger16")
def _product_of_16_bits(node: NodeView) -> Results:
    a, b = node.operand(0), node.operand(1)
    wide = DType.UINT32 if a.dtype is b.dtype is DType.UINT16 else DType.INT32
    return (F.mat_mul(F.cast(a, to=wide), F.cast(b, to=wide)),)
