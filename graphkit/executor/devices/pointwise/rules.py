"""The rule of each pointwise operator, which emits the instructions that compute it.

A rule takes the instructions so far, the operator and a term for each operand (None: absent). It returns the term of
the result. It returns None for a case in which the instructions would not compute the same as the reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from graphkit.executor.devices.pointwise.instructions import Instructions, Term
from graphkit.ir.types import FLOATS, HALVES, INTEGERS, UNSIGNED, DType
from graphkit.ops._base import Op

if TYPE_CHECKING:
    from graphkit.ops.math.arithmetic import Mod
    from graphkit.ops.math.elementary import IsInf
    from graphkit.ops.math.logic import BitShift
    from graphkit.ops.nn.activation import HardSigmoid, LeakyRelu
    from graphkit.ops.nn.piecewise_activation import Shrink, ThresholdedRelu
    from graphkit.ops.nn.smooth_activation import Celu, Elu, Gelu, Selu, Swish
    from graphkit.ops.tensor.cast import Cast

Rule: TypeAlias = Callable[..., Term | None]

# By name of the operator, which is unique among the domains.
RULES: dict[str, Rule] = {}


def _rule(*names: str) -> Callable[[Rule], Rule]:
    def install(function: Rule) -> Rule:
        RULES.update((name, function) for name in names)
        return function

    return install


def _same_opcode(opcode: str) -> Rule:
    return lambda code, op, *xs: code.emit(opcode, *xs)


for _name, _opcode in {
    **{n: n.lower() for n in ("Add", "Sub", "Mul", "Div", "Abs", "Neg", "Sign", "Floor", "Ceil")},
    **{n: n.lower() for n in ("Round", "Sqrt", "Exp", "Log", "Tanh", "Sigmoid", "Erf", "Softplus", "Mish")},
    "Softsign": "softsign",
    **{n: n.lower() for n in ("Sin", "Cos", "Tan", "Asin", "Acos", "Atan")},
    **{n: n.lower() for n in ("Sinh", "Cosh", "Asinh", "Acosh", "Atanh", "PRelu")},
    "And": "bit_and",
    "Or": "bit_or",
    "Xor": "bit_xor",
    "BitwiseAnd": "bit_and",
    "BitwiseOr": "bit_or",
    "BitwiseXor": "bit_xor",
}.items():
    RULES[_name] = _same_opcode(_opcode)


# --- comparisons and logic ------------------------------------------------------------------------


def _comparison(opcode: str, swapped: bool) -> Rule:
    def rule(code: Instructions, op: Op, a: Term, b: Term) -> Term:
        return code.emit(opcode, *((b, a) if swapped else (a, b)), dtype=DType.BOOL)

    return rule


for _name, _opcode, _swapped in (
    ("Equal", "equal", False),
    ("Less", "less", False),
    ("LessOrEqual", "less_equal", False),
    ("Greater", "less", True),
    ("GreaterOrEqual", "less_equal", True),
):
    RULES[_name] = _comparison(_opcode, _swapped)


@_rule("Not")
def _not(code: Instructions, op: Op, x: Term) -> Term:
    return code.emit("bit_xor", x, True)


@_rule("BitwiseNot")
def _bitwise_not(code: Instructions, op: Op, x: Term) -> Term:
    ones = np.iinfo(x.dtype.numpy).max if x.dtype in UNSIGNED else -1
    return code.emit("bit_xor", x, ones)


@_rule("BitShift")
def _bit_shift(code: Instructions, op: BitShift, a: Term, b: Term) -> Term:
    return code.emit("shift_left" if op.direction == "LEFT" else "shift_right", a, b)


@_rule("IsNaN")
def _is_nan(code: Instructions, op: Op, x: Term) -> Term:
    return code.emit("not_equal", x, x, dtype=DType.BOOL)


@_rule("IsInf")
def _is_inf(code: Instructions, op: IsInf, x: Term) -> Term:
    if op.detect_negative and op.detect_positive:
        return code.emit("equal", code.emit("abs", x), math.inf, dtype=DType.BOOL)
    if op.detect_negative or op.detect_positive:
        return code.emit("equal", x, math.inf if op.detect_positive else -math.inf, dtype=DType.BOOL)
    return code.emit("less", x, x, dtype=DType.BOOL)


@_rule("Where")
def _where(code: Instructions, op: Op, condition: Term, a: Term, b: Term) -> Term:
    return code.emit("select", condition, a, b, dtype=a.dtype)


# --- arithmetic -----------------------------------------------------------------------------------


def _chain(opcode: str) -> Rule:
    def rule(code: Instructions, op: Op, *xs: Term) -> Term:
        result = xs[0]
        for x in xs[1:]:
            result = code.emit(opcode, result, x)
        return result

    return rule


RULES.update({"Sum": _chain("add"), "Max": _chain("maximum"), "Min": _chain("minimum")})


@_rule("Mean")
def _mean(code: Instructions, op: Op, *xs: Term) -> Term | None:
    total = RULES["Sum"](code, op, *xs)
    assert total is not None
    return code.emit("div", total, float(len(xs)))


@_rule("Mod")
def _mod(code: Instructions, op: Mod, a: Term, b: Term) -> Term:
    return code.emit("fmod" if op.fmod else "mod", a, b)


@_rule("Reciprocal")
def _reciprocal(code: Instructions, op: Op, x: Term) -> Term:
    return code.emit("div", code.constant(1, x.dtype), x)


@_rule("Pow")
def _pow(code: Instructions, op: Op, a: Term, b: Term) -> Term | None:
    """Compute in the type to which numpy promotes both operands.

    Integers are computed in the type of `a`, or with 64 bits: overflow wraps around, so the lower bits are the same.
    With the exponents 1, 2 and 3, powers of integers are products, whatever type the exponent has.
    """
    if a.dtype in HALVES or b.dtype in HALVES:
        # float16 and bfloat16 operands count as float32, whatever type the other operand has.
        wide_a, wide_b = (DType.FLOAT32 if t.dtype in HALVES else t.dtype for t in (a, b))
    else:
        wide_a, wide_b = a.dtype, b.dtype
    joint = DType.of(np.promote_types(wide_a.numpy, wide_b.numpy))
    if joint in INTEGERS and joint is not a.dtype:
        joint = DType.UINT64 if joint is DType.UINT64 else DType.INT64
    exponent = code.value_of(b)
    if a.dtype in FLOATS | INTEGERS and exponent in (1, 2, 3):
        square = code.emit("mul", a, a) if exponent != 1 else a
        return code.emit("mul", square, a) if exponent == 3 else square
    power = code.cast(code.emit("pow", code.cast(a, joint), code.cast(b, joint), dtype=joint), a.dtype)
    if exponent is not None or a.dtype not in INTEGERS or joint in INTEGERS:
        return power
    square = code.emit("mul", a, a)
    for number, product in ((1, a), (2, square), (3, code.emit("mul", square, a))):
        power = code.emit("select", code.emit("equal", b, number, dtype=DType.BOOL), product, power, dtype=a.dtype)
    return power


@_rule("Clip")
def _clip(code: Instructions, op: Op, x: Term, low: Term | None = None, high: Term | None = None) -> Term:
    if low is not None and high is not None:
        return code.emit("clip", x, low, high)
    x = x if low is None else code.emit("maximum", x, low)
    return x if high is None else code.emit("minimum", x, high)


# --- conversions ----------------------------------------------------------------------------------


@_rule("Cast")
def _cast(code: Instructions, op: Cast, x: Term) -> Term:
    return code.cast(x, op.to)


@_rule("CastLike")
def _cast_like(code: Instructions, op: Op, x: Term, like: Term) -> Term:
    return code.cast(x, like.dtype)


@_rule("Identity", "StopGradient")
def _identity(code: Instructions, op: Op, x: Term) -> Term:
    return x


# --- activations ----------------------------------------------------------------------------------


@_rule("Relu")
def _relu(code: Instructions, op: Op, x: Term) -> Term:
    return code.emit("maximum", x, 0)


@_rule("LeakyRelu")
def _leaky_relu(code: Instructions, op: LeakyRelu, x: Term) -> Term:
    return code.emit("prelu", x, op.alpha)


def _exponential(code: Instructions, x: Term, alpha: float, inner: float = 1.0) -> Term:
    """max(x, 0) + alpha (exp(min(x, 0) / inner) - 1)."""
    below = code.emit("minimum", x, 0.0)
    below = below if inner == 1.0 else code.emit("div", below, inner)
    return code.emit("mul_add", code.emit("expm1", below), alpha, code.emit("maximum", x, 0.0))


@_rule("Elu")
def _elu(code: Instructions, op: Elu, x: Term) -> Term:
    return _exponential(code, x, op.alpha)


@_rule("Selu")
def _selu(code: Instructions, op: Selu, x: Term) -> Term:
    return code.emit("mul", _exponential(code, x, op.alpha), op.gamma)


@_rule("Celu")
def _celu(code: Instructions, op: Celu, x: Term) -> Term | None:
    # With a negative alpha, the argument of the exponential is positive and not bounded, but expm1 takes at most 64.
    return _exponential(code, x, op.alpha, op.alpha) if op.alpha > 0 else None


@_rule("HardSigmoid")
def _hard_sigmoid(code: Instructions, op: HardSigmoid, x: Term) -> Term:
    return code.emit("unit_line", x, op.alpha, op.beta)


@_rule("HardSwish")
def _hard_swish(code: Instructions, op: Op, x: Term) -> Term:
    return code.emit("mul", x, code.emit("unit_line", x, 1.0 / 6.0, 0.5))


@_rule("HardSwishGrad")
def _hard_swish_grad(code: Instructions, op: Op, dy: Term, x: Term) -> Term:
    return code.emit("hard_swish_grad", dy, x)


@_rule("Gelu")
def _gelu(code: Instructions, op: Gelu, x: Term) -> Term:
    return code.emit("gelu_tanh" if op.approximate == "tanh" else "gelu", x)


@_rule("Swish")
def _swish(code: Instructions, op: Swish, x: Term) -> Term:
    return code.emit("swish", x, op.alpha)


@_rule("ThresholdedRelu")
def _thresholded_relu(code: Instructions, op: ThresholdedRelu, x: Term) -> Term:
    return code.emit("threshold", x, op.alpha)


@_rule("Shrink")
def _shrink(code: Instructions, op: Shrink, x: Term) -> Term:
    # The attributes are floats, so integers are computed as float64.
    wide = x if x.dtype in FLOATS else code.cast(x, DType.FLOAT64)
    below = code.emit("less", wide, -op.lambd, dtype=DType.BOOL)
    above = code.emit("less", code.constant(op.lambd, wide.dtype), wide, dtype=DType.BOOL)
    lower, upper = code.emit("add", wide, op.bias), code.emit("sub", wide, op.bias)
    zero = code.constant(0, wide.dtype)
    inner = code.emit("select", above, upper, zero, dtype=wide.dtype)
    return code.cast(code.emit("select", below, lower, inner, dtype=wide.dtype), x.dtype)
