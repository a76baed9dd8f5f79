"""MoE: a feed-forward layer with several experts. Each token uses a few of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from graphkit.errors import UnsupportedError
from graphkit.onnx_io.upgrade import NodeView, Results
from graphkit.onnx_io.upgrade.contrib import contrib
from graphkit.onnx_io.upgrade.contrib.activation import swiglu
from graphkit.ops import F
from graphkit.ops.axes import i64
from graphkit.ops.pointwise import scalar_like

_FUNCTIONS: Mapping[str, Callable[[Any], Any]] = {
    "gelu": lambda x: F.gelu(x, approximate="tanh"),
    "identity": lambda x: F.identity(x),
    "relu": lambda x: F.relu(x),
    "silu": lambda x: F.swish(x),
}


def _weights(node: NodeView, probabilities: Any) -> Any:
    """Weights [tokens, experts]: softmax of the probabilities, and 0 except for the `k` best experts of each token."""
    count, normalise = int(node.take("k", 1)), bool(node.take("normalize_routing_weights", 0))
    if node.take("use_sparse_mixer", 0):
        raise UnsupportedError(f"{node.label}: use_sparse_mixer is not supported")
    values, places = F.top_k(probabilities, i64(count), axis=-1)
    if normalise:
        chosen = F.softmax(values, axis=-1)
    else:
        chosen = F.gather_elements(F.softmax(probabilities, axis=-1), places, axis=-1)
    nothing = F.mul(probabilities, scalar_like(0.0, probabilities))
    return F.scatter_elements(nothing, places, chosen, axis=-1)


def _layer(x: Any, weights: Any, bias: Any) -> Any:
    """Apply each expert's layer, weights [experts, n, m], to x [experts or 1, tokens, m]."""
    y = F.mat_mul(x, F.transpose(weights, perm=(0, 2, 1)))
    return y if bias is None else F.add(y, F.unsqueeze(bias, i64(1)))


def _hidden(node: NodeView, x: Any) -> Any:
    """The activations of each expert for each token."""
    kind, fusion = node.take("activation_type", "relu"), int(node.take("swiglu_fusion", 0))
    alpha, beta = float(node.take("activation_alpha", 1.0)), float(node.take("activation_beta", 0.0))
    limit = node.take("swiglu_limit")
    first = _layer(x, node.operand(2), node.input(3))
    if kind in _FUNCTIONS:
        if node.input(6) is not None:
            raise UnsupportedError(f"{node.label}: fc3 with activation {kind!r} is not supported")
        return _FUNCTIONS[kind](first)
    if kind != "swiglu" or node.take("swiglu_limit_after_activation", 0):
        raise UnsupportedError(f"{node.label}: activation {kind!r} is not supported")
    if fusion == 0:
        gate, up = first, _layer(x, node.operand(6), node.input(7))
    elif fusion == 1:
        most = np.iinfo(np.int64).max
        gate, up = (F.slice(first, i64(i), i64(most), i64(-1), i64(2)) for i in (0, 1))
    else:
        gate, up = F.split(first, axis=-1, num_outputs=2)
    return swiglu(gate, up, alpha, beta, limit)


@contrib("MoE")
def _experts(node: NodeView) -> Results:
    """Every expert processes every token. The results are added with the weights of the token."""
    x, probabilities = node.operand(0), node.operand(1)
    tokens = F.reshape(x, F.concat(i64(-1), F.shape(x)[-1:], axis=0))
    answers = _layer(_hidden(node, F.unsqueeze(tokens, i64(0))), node.operand(4), node.input(5))
    asked = F.unsqueeze(F.transpose(_weights(node, probabilities), perm=(1, 0)), i64(2))
    y = F.reduce_sum(F.mul(answers, asked), i64(0), keepdims=False)
    return (F.reshape(y, F.shape(x), allowzero=True),)
