"""Gelu and related activations, and operators that are fused with a bias: BiasGelu, BiasSoftmax, BiasDropout, ..."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from graphkit.errors import UnsupportedError
from graphkit.onnx_io.upgrade import NodeView, Results
from graphkit.onnx_io.upgrade.contrib import contrib
from graphkit.ops import F
from graphkit.ops.operands import converted
from graphkit.ops.pointwise import scalar_like

# Activation -> names and defaults of its parameters, in the order of `activation_params`.
_PARAMETERS: Mapping[str, tuple[tuple[str, float | None], ...]] = {
    "Clip": (("min", None), ("max", None)),
    "Elu": (("alpha", 1.0),),
    "HardSigmoid": (("alpha", 0.2), ("beta", 0.5)),
    "LeakyRelu": (("alpha", 0.01),),
    "ThresholdedRelu": (("alpha", 1.0),),
}
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "Elu": lambda x, **p: F.elu(x, **p),
    "Gelu": lambda x: F.gelu(x),
    "HardSigmoid": lambda x, **p: F.hard_sigmoid(x, **p),
    "HardSwish": lambda x: F.hard_swish(x),
    "LeakyRelu": lambda x, **p: F.leaky_relu(x, **p),
    "Relu": lambda x: F.relu(x),
    "Selu": lambda x: F.selu(x),
    "Sigmoid": lambda x: F.sigmoid(x),
    "Softplus": lambda x: F.softplus(x),
    "Softsign": lambda x: F.softsign(x),
    "Tanh": lambda x: F.tanh(x),
    "ThresholdedRelu": lambda x, **p: F.thresholded_relu(x, **p),
}


def activated(node: NodeView, y: Any, activation: str | None, given: tuple[float | None, ...]) -> Any:
    """Apply a fused activation to `y`. `given`: its parameters, in the order of the standard operator."""
    if not activation:
        return y
    names = _PARAMETERS.get(activation, ())
    values = {
        name: default if position >= len(given) or given[position] is None else given[position]
        for position, (name, default) in enumerate(names)
    }
    if activation == "Clip":
        return F.clip(y, *(None if v is None else scalar_like(v, y) for v in values.values()))
    if activation not in _FUNCTIONS:
        raise UnsupportedError(f"{node.label}: activation {activation!r} is not supported")
    return _FUNCTIONS[activation](y, **values)


@contrib("Gelu")
def _gelu(node: NodeView) -> Results:
    return (F.gelu(node.operand(0)),)


@contrib("BiasGelu")
def _bias_gelu(node: NodeView) -> Results:
    return (F.gelu(F.add(node.operand(0), node.operand(1))),)


def fast_gelu(x: Any, bias: Any) -> Any:
    """Gelu by its tanh formula, of x + bias."""
    return F.gelu(x if bias is None else F.add(x, bias), approximate="tanh")


@contrib("FastGelu")
def _fast_gelu(node: NodeView) -> Results:
    return (fast_gelu(node.operand(0), node.input(1)),)


@contrib("QuickGelu")
def _quick_gelu(node: NodeView) -> Results:
    return (F.swish(node.operand(0), alpha=node.take("alpha", 1.702)),)


@contrib("ScaledSiLU")
def _scaled_silu(node: NodeView) -> Results:
    """swish(scale * x). The scale is the second operand, or `alpha` if there is none."""
    x, scale, alpha = node.operand(0), node.input(1), node.take("alpha", 1.0)
    factor = scalar_like(alpha, x) if scale is None else converted(scale, x.dtype)
    return (F.swish(F.mul(x, factor)),)


@contrib("BiasSplitGelu")
def _bias_split_gelu(node: NodeView) -> Results:
    """The left half of x + bias times gelu of the right one."""
    left, right = F.split(F.add(node.operand(0), node.operand(1)), axis=-1, num_outputs=2)
    return (F.mul(left, F.gelu(right)),)


@contrib("BiasAdd")
def _bias_add(node: NodeView) -> Results:
    return (F.add(F.add(node.operand(0), node.operand(1)), node.operand(2)),)


@contrib("GatedAdd")
def _gated_add(node: NodeView) -> Results:
    """x + y * gate, with one gate for each row."""
    if node.input(3) is not None:
        raise UnsupportedError(f"{node.label}: gate_weight is not supported")
    return (F.add(node.operand(0), F.mul(node.operand(1), node.operand(2))),)


@contrib("BiasDropout")
def _bias_dropout(node: NodeView) -> Results:
    """dropout(data + bias) + residual."""
    residual, ratio, training = (node.input(i) for i in (2, 3, 4))
    biased = F.add(node.operand(0), node.operand(1))
    y, mask = F.dropout(biased, ratio, training, seed=node.take("seed"))
    return (y if residual is None else F.add(y, residual)), mask


@contrib("BiasSoftmax")
def _bias_softmax(node: NodeView) -> Results:
    """softmax(data + bias) over all axes from `axis` on. The shape of the bias decides how it broadcasts."""
    node.take("is_inner_broadcast")
    scores, axis = F.add(node.operand(0), node.operand(1)), int(node.take("axis", 1))
    if scores.rank is not None and axis % max(scores.rank, 1) == scores.rank - 1:
        return (F.softmax(scores, axis=-1),)
    return (F.reshape(F.softmax(F.flatten(scores, axis=axis), axis=-1), F.shape(scores), allowzero=True),)


@contrib("SwiGLU")
def _swiglu(node: NodeView) -> Results:
    """clamped gate * sigmoid(alpha * gate) * (clamped up + beta). Without `up`, `gate` contains both halves."""
    gate, up = node.operand(0), node.input(1)
    alpha, beta, limit = node.take("activation_alpha", 1.0), node.take("activation_beta", 0.0), node.take("limit", 0.0)
    node.take("round_activation")
    if up is None:
        gate, up = F.split(gate, axis=-1, num_outputs=2)
    return (swiglu(gate, up, alpha, beta, limit if limit > 0 else None),)


def swiglu(gate: Any, up: Any, alpha: float, beta: float, limit: float | None) -> Any:
    """The gated activation of a feed-forward block, with a limit for both halves."""
    if limit is not None:
        gate = F.clip(gate, None, scalar_like(limit, gate))
        up = F.clip(up, scalar_like(-limit, up), scalar_like(limit, up))
    if beta:
        up = F.add(up, scalar_like(beta, up))
    return F.mul(F.swish(gate, alpha=alpha), up)
