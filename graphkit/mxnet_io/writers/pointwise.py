"""Writers of elementwise operators and activations."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from graphkit.errors import UnsupportedError
from graphkit.ir.graph import Value
from graphkit.ir.types import DType
from graphkit.mxnet_io.writing import Entry, Writer, writes

_UNARY = {
    "Abs": "abs", "Acos": "arccos", "Acosh": "arccosh", "Asin": "arcsin", "Asinh": "arcsinh", "Atan": "arctan",
    "Atanh": "arctanh", "Ceil": "ceil", "Cos": "cos", "Cosh": "cosh", "Erf": "erf", "Exp": "exp", "Floor": "floor",
    "Identity": "identity", "Log": "log", "Neg": "negative", "Reciprocal": "reciprocal", "Relu": "relu",
    "Sigmoid": "sigmoid", "Sign": "sign", "Sin": "sin", "Sinh": "sinh", "Softsign": "softsign", "Sqrt": "sqrt",
    "Tan": "tan", "Tanh": "tanh", "StopGradient": "BlockGrad",
}  # fmt: skip
# ONNX's name -> MXNet's with broadcasting, and its forms with a number on the right and on the left.
_BINARY = {
    "Add": ("broadcast_add", "_plus_scalar", "_plus_scalar"),
    "Sub": ("broadcast_sub", "_minus_scalar", "_rminus_scalar"),
    "Mul": ("broadcast_mul", "_mul_scalar", "_mul_scalar"),
    "Div": ("broadcast_div", "_div_scalar", "_rdiv_scalar"),
    "Pow": ("broadcast_power", "_power_scalar", "_rpower_scalar"),
}
# Types in which MXNet's operators compute as ours do.
_NUMBERS = (DType.FLOAT16, DType.FLOAT32, DType.FLOAT64)


def _unary(op: str, writer: Writer) -> Entry:
    return writer.add(op, [writer.entry(0)])


def _number(writer: Writer, value: Value) -> float | None:
    """Return the element of a fixed scalar; None for other values."""
    if not writer.writing.is_fixed(value) or value.rank != 0 or value.is_input:
        return None
    return float(writer.writing.array(value))


def _binary(names: tuple[str, str, str], writer: Writer) -> Entry:
    a, b = writer.value(0), writer.value(1)
    whole = writer.node.op.name in ("Add", "Sub", "Mul") and a.dtype in (DType.INT32, DType.INT64)
    if a.dtype not in _NUMBERS and not whole:
        raise UnsupportedError(f"arithmetic of {a.dtype.value}: MXNet's differs")
    left, right = _number(writer, a), _number(writer, b)
    if right is not None:
        return writer.add(names[1], [writer.entry(0)], scalar=right)
    if left is not None:
        return writer.add(names[2], [writer.entry(1)], scalar=left)
    return writer.add(names[0], [writer.entry(0), writer.entry(1)])


for _name, _op in _UNARY.items():
    writes(_name)(partial(_unary, _op))
for _name, _names in _BINARY.items():
    writes(_name)(partial(_binary, _names))


# Booleans are numbers in MXNet: 1 and 0 in the type of the operands.
_COMPARISONS = {
    "Equal": "equal", "Greater": "greater", "GreaterOrEqual": "greater_equal", "Less": "lesser",
    "LessOrEqual": "lesser_equal", "And": "logical_and", "Or": "logical_or", "Xor": "logical_xor",
}  # fmt: skip


def _compared(name: str, writer: Writer) -> Entry:
    if any(v is not None and v.dtype is DType.STRING for v in writer.inputs):
        raise UnsupportedError("MXNet has no texts")
    return writer.add(f"broadcast_{name}", [writer.entry(0), writer.entry(1)])


for _name, _op in _COMPARISONS.items():
    writes(_name)(partial(_compared, _op))


@writes("Not")
def not_(writer: Writer) -> Entry:
    return writer.add("logical_not", [writer.entry(0)])


@writes("Sum")
def sum_(writer: Writer) -> Entry:
    shapes = {v.tensor.shape for v in writer.inputs if v is not None}
    entries = [writer.entry(i) for i in range(len(writer.inputs))]
    if len(shapes) == 1:
        return writer.add("add_n", entries, num_args=len(entries))
    return _folded("broadcast_add", writer)


@writes("Max", "Min")
def extreme(writer: Writer) -> Entry:
    return _folded("broadcast_maximum" if writer.node.op.name == "Max" else "broadcast_minimum", writer)


def _folded(op: str, writer: Writer) -> Entry:
    result = writer.entry(0)
    count = len(writer.inputs)
    if count == 1:
        return writer.add("identity", [result])
    for position in range(1, count):
        result = writer.add(op, [result, writer.entry(position)], last=position == count - 1)
    return result


@writes("Clip")
def clip(writer: Writer) -> Entry:
    least, most = writer.array(1), writer.array(2)
    bound = float(np.finfo(np.float32).max)
    return writer.add(
        "clip", [writer.entry(0)], a_min=-bound if least is None else float(least),
        a_max=bound if most is None else float(most),
    )  # fmt: skip


@writes("Softplus")
def softplus(writer: Writer) -> Entry:
    return writer.add("Activation", [writer.entry(0)], act_type="softrelu")


@writes("LeakyRelu", "Elu")
def leaky_relu(writer: Writer) -> Entry:
    kind = "leaky" if writer.node.op.name == "LeakyRelu" else "elu"
    return writer.add("LeakyReLU", [writer.entry(0)], act_type=kind, slope=writer["alpha"])


@writes("PRelu")
def p_relu(writer: Writer) -> Entry:
    """MXNet has one slope per channel, or one for all."""
    x, slope = writer.value(0), writer.array(1)
    assert slope is not None
    channels = x.rank is not None and x.rank > 1 and slope.shape == (slope.size, *(1,) * (x.rank - 2))
    if slope.size != 1 and not channels:
        raise UnsupportedError(f"slopes of shape {list(slope.shape)}: MXNet has one per channel")
    gamma = writer.writing.constant(slope.reshape(-1), f"{writer.name}_gamma")
    return writer.add("LeakyReLU", [writer.entry(0), gamma], act_type="prelu")


@writes("Selu")
def selu(writer: Writer) -> Entry:
    return writer.add("LeakyReLU", [writer.entry(0)], act_type="selu")


@writes("Gelu")
def gelu(writer: Writer) -> Entry:
    """MXNet's gelu is the exact one. The approximation by tanh is written as its formula."""
    x = writer.entry(0)
    if writer["approximate"] == "none":
        return writer.add("LeakyReLU", [x], act_type="gelu")
    cube = writer.add("_power_scalar", [x], last=False, scalar=3.0)
    inner = writer.add("elemwise_add", [x, writer.add("_mul_scalar", [cube], last=False, scalar=0.044715)], last=False)
    curve = writer.add("_mul_scalar", [inner], last=False, scalar=math.sqrt(2.0 / math.pi))
    one_more = writer.add("_plus_scalar", [writer.add("tanh", [curve], last=False)], last=False, scalar=1.0)
    half = writer.add("_mul_scalar", [x], last=False, scalar=0.5)
    return writer.add("elemwise_mul", [half, one_more])


@writes("HardSigmoid")
def hard_sigmoid(writer: Writer) -> Entry:
    return writer.add("hard_sigmoid", [writer.entry(0)], alpha=writer["alpha"], beta=writer["beta"])


@writes("HardSwish")
def hard_swish(writer: Writer) -> Entry:
    gate = writer.add("hard_sigmoid", [writer.entry(0)], last=False, alpha=1 / 6, beta=0.5)
    return writer.add("elemwise_mul", [writer.entry(0), gate])


@writes("Swish")
def swish(writer: Writer) -> Entry:
    if writer["alpha"] != 1.0:
        raise UnsupportedError(f"alpha {writer['alpha']}")
    gate = writer.add("sigmoid", [writer.entry(0)], last=False)
    return writer.add("elemwise_mul", [writer.entry(0), gate])


@writes("CastLike")
def cast_like(writer: Writer) -> Entry:
    return _cast(writer, writer.value(1).dtype)


@writes("Cast")
def cast(writer: Writer) -> Entry:
    return _cast(writer, DType(writer["to"]))


def _cast(writer: Writer, to: DType) -> Entry:
    if to is DType.BOOL:
        return writer.add("_not_equal_scalar", [writer.entry(0)], scalar=0.0)
    names = {"float16", "float32", "float64", "uint8", "int8", "int32", "int64"}
    if to.value not in names:
        raise UnsupportedError(f"MXNet has no element type {to.value}")
    return writer.add("Cast", [writer.entry(0)], dtype=to.value)
