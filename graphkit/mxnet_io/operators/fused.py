"""Fused operators that MXNet's oneDNN backend writes (get_backend_symbol, quantize_model): convolutions and
FullyConnected with the operators that follow them as a subgraph, in float32 or quantised.

Quantised, the operands are integers with ranges, as in quantised.py. The subgraph is computed on real numbers. The
file contains the weights of a convolution as real numbers. They are rounded to 8 bits for each output channel first.
"""

from __future__ import annotations

import numpy as np

from graphkit.errors import InvalidModel, UnsupportedError
from graphkit.ir.graph import Value
from graphkit.ir.types import DType
from graphkit.mxnet_io.attributes import Attributes
from graphkit.mxnet_io.call import Call, converter, rank_of, scalar
from graphkit.mxnet_io.operators.quantised import Range, calibrated, quantised, real
from graphkit.mxnet_io.symbol import Symbol, SymbolNode
from graphkit.ops import F, constant
from graphkit.ops.axes import i64

# Attributes that describe the parts of a fused operator. The converter reads its subgraph instead.
_DESCRIPTIONS = (
    "with_act", "with_bn", "with_eltwise", "with_postsum_act", "with_postsum_relu", "with_relu",
    "channel_wise_quantize",
)  # fmt: skip
_WEIGHTED = frozenset({"Convolution", "FullyConnected"})


@converter("_sg_mkldnn_conv", "_sg_mkldnn_fully_connected", "_sg_onednn_conv", "_sg_onednn_fully_connected")
def fused(call: Call) -> Value | list[Value]:
    """Compute the subgraph. Quantised, the result is uint8 if its range has no negative numbers, else int8."""
    attributes = call.attributes
    attributes.ignore(*_DESCRIPTIONS)
    summed = attributes.flag("with_sum", False)
    if not call.subgraphs:
        raise InvalidModel("it has no subgraph")
    count = sum(node.is_variable for node in call.subgraphs[0].nodes)
    operands = [call[i] for i in range(count)]
    real_output = attributes.flag("enable_float_output", False)
    range_ = calibrated(call)
    if not attributes.flag("quantized", False):
        return call.body(0, operands)
    (y,) = call.body(0, _real_operands(call, _rounded_weights(call.subgraphs[0], operands)))
    if real_output:
        return y
    if range_ is None:
        raise UnsupportedError("a quantised result without a calibrated range")
    dtype = DType.UINT8 if attributes.number("min_calib_range", 0.0) >= 0 else DType.INT8
    q, *limits = quantised(y, range_, dtype)
    if dtype is DType.UINT8 and summed and operands[-1].dtype is DType.INT8:
        # MXNet writes the result into the memory of the summand, whose numbers end at 127.
        q = F.min(q, constant(np.uint8(127)))
    return [q, *limits]


def _rounded_weights(body: Symbol, operands: list[Value]) -> list[Value]:
    """Round the real weights of the subgraph's convolution or FullyConnected to 8 bits for each output channel."""
    places = {index: place for place, index in enumerate(i for i, node in enumerate(body.nodes) if node.is_variable)}
    found = list(operands)
    for index, node in enumerate(body.nodes):
        place = places.get(node.inputs[1][0]) if node.op in _WEIGHTED else None
        if place is None or not found[place].dtype.is_float:
            continue
        norm = next((v for v in body.nodes if v.op == "BatchNorm" and v.inputs[0][0] == index), None)
        factors = norm and _factors(norm, [found[places[source]] for source, _ in norm.inputs[1:]])
        found[place] = _rounded(found[place], factors)
    return found


def _factors(norm: SymbolNode, parameters: list[Value]) -> Value:
    """Return the numbers that a normalisation multiplies its channels by. A factor of 0 becomes 1: it has no effect."""
    attributes = Attributes(norm.attributes)
    gamma, _, _, variance = parameters
    gamma = scalar(1.0, gamma) if attributes.flag("fix_gamma", True) else gamma
    factors = F.div(gamma, F.sqrt(F.add(variance, scalar(attributes.number("eps", 1e-3), variance))))
    one = scalar(1.0, factors)
    result: Value = F.where(F.equal(factors, scalar(0.0, factors)), one, factors)
    return result


def _rounded(weight: Value, factors: Value | None) -> Value:
    """Round the channels of a weight to 8 bits, halves to even integers.

    MXNet multiplies the channels by the factors of the normalisation before it rounds. Their size has no effect on the
    integers, but their signs have: the largest number of a channel becomes 127 or -128.
    """
    rank = rank_of(weight)
    if factors is not None:
        factors = F.reshape(factors, i64(-1, *(1 for _ in range(rank - 1))))
        weight = F.mul(weight, factors)
    magnitude = F.reduce_max(F.abs(weight), i64(*range(1, rank)), keepdims=True)
    magnitude = F.max(magnitude, scalar(float(np.finfo(np.float32).tiny), weight))
    steps = F.div(scalar(127.5, weight), magnitude)
    integers = F.clip(F.round(F.mul(weight, steps)), scalar(-128.0, weight), scalar(127.0, weight))
    result: Value = F.div(integers, steps if factors is None else F.mul(steps, factors))
    return result


def _real_operands(call: Call, operands: list[Value]) -> list[Value]:
    """Dequantise the integers among the operands. Their ranges follow the operands, in the same order."""
    position = len(operands)
    found = []
    for value in operands:
        if value.dtype in (DType.INT8, DType.UINT8):
            value = real(value, Range(call[position], call[position + 1]))
            position += 2
        found.append(value)
    return found
