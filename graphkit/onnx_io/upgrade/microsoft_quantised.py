"""ONNX Runtime's quantised operators, in its domain com.microsoft, as operators of the standard.

Each becomes what it means: dequantised operands, the float operator, a quantisation. Passes make integers of that again
(`graphkit.passes.quantise`). The meanings are those of ONNX Runtime's documentation of contributed operators
(docs/ContribOperators.md) and of its kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from graphkit.errors import InvalidModel, UnsupportedError
from graphkit.ir.graph import Value
from graphkit.ir.types import DType
from graphkit.onnx_io.upgrade import ALWAYS, BUILT, NodeView, Results, upgrade
from graphkit.ops import F, constant
from graphkit.ops.axes import reshape_like

DOMAIN = "com.microsoft"


def microsoft(*operators: str) -> Callable[[Any], Any]:
    """Declare the decorated function as what builds the results of these operators."""
    return upgrade(*operators, below=ALWAYS, becomes=BUILT, domain=DOMAIN)


def dequantised(node: NodeView, place: int, axis: int = 1) -> Value:
    """Operand `place` as float32, by the scale and the zero point behind it."""
    value: Value = F.dequantize_linear(node.operand(place), node.operand(place + 1), node.input(place + 2), axis=axis)
    return value


def quantised(node: NodeView, y: Value, place: int, like: Value) -> Results:
    """The result: `y` quantised by the scale at `place` and the zero point behind it, by default 0 of `like`'s type."""
    zero = node.input(place + 1)
    if zero is None:
        zero = constant(np.array(0, like.dtype.numpy))
    return (F.quantize_linear(y, node.operand(place), zero),)


def channels_first(x: Value, node: NodeView) -> Value:
    """[N, *spatial, C] as [N, C, *spatial]."""
    rank = _rank(x, node)
    turned: Value = F.transpose(x, perm=(0, rank - 1, *range(1, rank - 1)))
    return turned


def channels_last(x: Value, node: NodeView) -> Value:
    """[N, C, *spatial] as [N, *spatial, C]."""
    turned: Value = F.transpose(x, perm=(0, *range(2, _rank(x, node)), 1))
    return turned


def _rank(x: Value, node: NodeView) -> int:
    if x.rank is None:
        raise UnsupportedError(f"{node.op_type} of a tensor of unknown rank is not supported")
    return x.rank


@microsoft("QuantizeLinear")
def _quantize_linear(node: NodeView) -> Results:
    return (F.quantize_linear(node.operand(0), node.operand(1), node.input(2), axis=node.take("axis", 1)),)


@microsoft("DequantizeLinear")
def _dequantize_linear(node: NodeView) -> Results:
    return (dequantised(node, 0, axis=node.take("axis", 1)),)


@microsoft("QLinearAdd", "QLinearMul")
def _binary(node: NodeView) -> Results:
    apply = F.add if node.op_type == "QLinearAdd" else F.mul
    return quantised(node, apply(dequantised(node, 0), dequantised(node, 3)), 6, node.operand(0))


@microsoft("QLinearSigmoid")
def _sigmoid(node: NodeView) -> Results:
    return quantised(node, F.sigmoid(dequantised(node, 0)), 3, node.operand(0))


@microsoft("QLinearLeakyRelu")
def _leaky_relu(node: NodeView) -> Results:
    y = F.leaky_relu(dequantised(node, 0), alpha=node.take("alpha", 0.01))
    return quantised(node, y, 3, node.operand(0))


@microsoft("QLinearAveragePool", "QLinearGlobalAveragePool")
def _average_pool(node: NodeView) -> Results:
    last = bool(node.take("channels_last", 0))
    x = dequantised(node, 0)
    if last:
        x = channels_first(x, node)
    if node.op_type == "QLinearGlobalAveragePool":
        y = F.global_average_pool(x)
    else:
        for flag in ("ceil_mode", "count_include_pad"):
            node.attrs[flag] = bool(node.attrs.get(flag, 0))
        y = F.average_pool(x, **node.attrs)
    (result,) = quantised(node, y, 3, node.operand(0))
    assert result is not None
    return (channels_last(result, node) if last else result,)


@microsoft("NhwcMaxPool")
def _nhwc_max_pool(node: NodeView) -> Results:
    node.attrs["ceil_mode"] = bool(node.attrs.get("ceil_mode", 0))
    y, _ = F.max_pool(channels_first(node.operand(0), node), **node.attrs)
    return (channels_last(y, node),)


@microsoft("QLinearConcat")
def _concat(node: NodeView) -> Results:
    if len(node.inputs) % 3 != 2:
        raise InvalidModel(f"{node.label}: {len(node.inputs) - 2} operands are no triples of tensor, scale, zero point")
    parts = [dequantised(node, place) for place in range(2, len(node.inputs), 3)]
    return quantised(node, F.concat(*parts, axis=node.require("axis")), 0, node.operand(2))


@microsoft("QLinearConv")
def _conv(node: NodeView) -> Results:
    last = bool(node.take("channels_last", 0))
    x, others = node.operand(0), node.inputs[1:]
    operands: Any = (channels_first(x, node) if last else x, *others)
    y: Value = F.q_linear_conv(*operands, **node.attrs)
    return (channels_last(y, node) if last else y,)


@microsoft("QLinearSoftmax")
def _softmax(node: NodeView) -> Results:
    x, opset, axis = dequantised(node, 0), node.require("opset"), node.take("axis")
    if opset >= 13:
        y = F.softmax(x, axis=-1 if axis is None else axis)
    else:
        # All axes from this one on are one.
        y = reshape_like(F.softmax(F.flatten(x, axis=1 if axis is None else axis), axis=1), x)
    return quantised(node, y, 3, node.operand(0))


@microsoft("QLinearReduceMean")
def _reduce_mean(node: NodeView) -> Results:
    axes = node.take("axes")
    wanted = None if axes is None else constant(np.asarray(axes, np.int64))
    y = F.reduce_mean(dequantised(node, 0), wanted, keepdims=bool(node.take("keepdims", 1)))
    return quantised(node, y, 3, node.operand(0))


@microsoft("QLinearWhere")
def _where(node: NodeView) -> Results:
    y = F.where(node.operand(0), dequantised(node, 1), dequantised(node, 4))
    return quantised(node, y, 7, node.operand(1))


@microsoft("QGemm")
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
    """int32 sums times a scale, plus a bias, of the scale's type; computed in float32."""
    y = F.mul(F.cast(product, to=DType.FLOAT32), F.cast(scale, to=DType.FLOAT32))
    if bias is not None:
        y = F.add(y, F.cast(bias, to=DType.FLOAT32))
    return (F.cast(y, to=scale.dtype),)


@microsoft("MatMulIntegerToFloat")
def _product_to_float(node: NodeView) -> Results:
    product = F.mat_mul_integer(node.operand(0), node.operand(1), node.input(4), node.input(5))
    return _scaled(node, product, F.mul(node.operand(2), node.operand(3)), node.input(6))


@microsoft("DynamicQuantizeMatMul")
def _dynamic_product(node: NodeView) -> Results:
    a, a_scale, a_zero = F.dynamic_quantize_linear(node.operand(0))
    product = F.mat_mul_integer(a, node.operand(1), a_zero, node.input(3))
    return _scaled(node, product, F.mul(a_scale, node.operand(2)), node.input(4))


@microsoft("MatMulInteger16")
def _product_of_16_bits(node: NodeView) -> Results:
    a, b = node.operand(0), node.operand(1)
    wide = DType.UINT32 if a.dtype is b.dtype is DType.UINT16 else DType.INT32
    return (F.mat_mul(F.cast(a, to=wide), F.cast(b, to=wide)),)
