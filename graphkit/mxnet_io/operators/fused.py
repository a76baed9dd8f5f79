"""Fused operators that MXNet's oneDNN backend writes (get_backend_symbol, quantize_model): convolutions and
FullyConnected with the operators that follow them as a subgraph, in float32 or quantised.

Quantised, the operands are integers with ranges, as in quantised.py. The subgraph is computed on real numbers. Weights
of a convolution stay as they are in the file, where MXNet rounds them to 8 bits for each channel, so results differ by
this rounding.
"""

from __future__ import annotations

import numpy as np

from graphkit.errors import InvalidModel, UnsupportedError
from graphkit.ir.graph import Value
from graphkit.ir.types import DType
from graphkit.mxnet_io.call import Call, converter
from graphkit.mxnet_io.operators.quantised import Range, calibrated, quantised, real
from graphkit.ops import F, constant

# Attributes that describe the parts of a fused operator. The converter reads its subgraph instead.
_DESCRIPTIONS = (
    "with_act", "with_bn", "with_eltwise", "with_postsum_act", "with_postsum_relu", "with_relu",
    "channel_wise_quantize",
)  # fmt: skip


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
    (y,) = call.body(0, _real_operands(call, operands))
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
