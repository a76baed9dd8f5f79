"""Quantised layers: QAttention, QEmbedLayerNormalization, DynamicQuantizeLSTM, as float layers.

Weights are dequantised, and the float layer of the same kind is used. ONNX Runtime also quantises the operands of
matrix products in a DynamicQuantizeLSTM at run time. Here they stay floats, so results are closer to the original
network.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.errors import UnsupportedError
from graphkit.ir.graph import Value
from graphkit.onnx_io.upgrade import NodeView, Results, run
from graphkit.onnx_io.upgrade.contrib import contrib
from graphkit.ops import F, apply
from graphkit.ops.rnn.layers import LSTM


def _as(node: NodeView, op_type: str, *inputs: Value | None) -> Results:
    """Build the node as if it were an `op_type` of the same domain with these operands."""
    name = node.op_type
    node.op_type, node.inputs = op_type, list(inputs)
    results = run(node)
    if results is None:
        raise UnsupportedError(f"{name} needs {op_type}, which is not implemented")
    return results


@contrib("QAttention")
def _attention(node: NodeView) -> Results:
    operands: Any = (*node.inputs, *[None] * 9)[:9]
    x, w, bias, x_scale, w_scale, mask, x_zero, w_zero, past = operands
    image = F.dequantize_linear(x, x_scale, x_zero)
    weights = F.dequantize_linear(w, w_scale, w_zero, axis=1)
    return _as(node, "Attention", image, weights, bias, mask, past)


@contrib("QEmbedLayerNormalization")
def _embedding(node: NodeView) -> Results:
    operands: Any = (*node.inputs, *[None] * 18)[:18]
    tokens, segments, *others = operands
    quantised, mask, scales, zeros = others[:5], others[5], others[6:11], others[11:16]
    # The segment embedding is optional.
    floats = [
        None if v is None else F.dequantize_linear(v, scale, zero)
        for v, scale, zero in zip(quantised, scales, zeros, strict=True)
    ]
    return _as(node, "EmbedLayerNormalization", tokens, segments, *floats, mask)


@contrib("DynamicQuantizeLSTM")
def _lstm(node: NodeView) -> Results:
    """W: [directions, input, 4 * hidden], R: [directions, hidden, 4 * hidden].

    Scales: [directions], or [directions, 4 * hidden] for one per position of the last axis.
    """
    operands: Any = (*node.inputs, *[None] * 12)[:12]
    x, w, r, bias, lengths, h, c, peepholes, w_scale, w_zero, r_scale, r_zero = operands
    weights = [_weights(*given) for given in ((w, w_scale, w_zero), (r, r_scale, r_zero))]
    fields = node.taken("activation_alpha", "activation_beta", "activations", "clip", "direction", "hidden_size")
    layer = LSTM(**fields, input_forget=bool(node.take("input_forget", 0)))
    results: Results = apply(layer, x, *weights, bias, lengths, h, c, peepholes)
    return results


def _weights(w: Value, scale: Value | None, zero: Value | None) -> Value:
    """Dequantise weights [directions, n, 4 * hidden] to floats [directions, 4 * hidden, n]."""
    if scale is None or scale.rank not in (1, 2):
        raise UnsupportedError("DynamicQuantizeLSTM needs scales of known rank")
    if scale.rank == 1:
        whole = F.dequantize_linear(w, scale, zero, axis=0)
    else:
        # A scale applies to the whole middle axis: blockwise quantisation with one block.
        apart: Any = [None if v is None else F.unsqueeze(v, np.array([1])) for v in (scale, zero)]
        length = w.tensor.known_shape[1]
        if not isinstance(length, int):
            raise UnsupportedError("DynamicQuantizeLSTM needs weights of known sizes")
        whole = F.dequantize_linear(w, *apart, axis=1, block_size=max(length, 1))
    turned: Value = F.transpose(whole, perm=(0, 2, 1))
    return turned
