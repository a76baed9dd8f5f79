"""Operators of one element, or of two with broadcasting, their forms with a number, and activations."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from graphkit.ir.graph import Value
from graphkit.ir.types import DType
from graphkit.mxnet_io.call import Call, along_axis, as_floats, axis_of, converter, rank_of, scalar, sizes_of
from graphkit.ops import F, constant
from graphkit.ops.axes import i64

# --- one operand --------------------------------------------------------------------------------------

# MXNet's name -> graphkit's function.
_SAME = {
    "abs": "abs", "arccos": "acos", "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh", "arctan": "atan",
    "arctanh": "atanh", "ceil": "ceil", "cos": "cos", "cosh": "cosh", "erf": "erf", "exp": "exp", "floor": "floor",
    "log": "log", "negative": "neg", "reciprocal": "reciprocal", "relu": "relu", "sigmoid": "sigmoid",
    "sign": "sign", "sin": "sin", "sinh": "sinh", "softsign": "softsign", "sqrt": "sqrt", "tan": "tan", "tanh": "tanh",
    "identity": "identity", "_CrossDeviceCopy": "identity",
    "_copy": "identity", "_copyto": "identity", "_npi_copyto": "identity",
    "_np_copy": "identity", "_identity_with_attr_like_rhs": "identity", "make_loss": "identity",
    "BlockGrad": "stop_gradient",
    "stop_gradient": "stop_gradient",
}  # fmt: skip
_NUMPY_FORMS = (
    "abs", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctanh", "ceil", "cos", "cosh", "exp", "floor", "log",
    "negative", "reciprocal", "sign", "sin", "sinh", "sqrt", "tan", "tanh",
)  # fmt: skip


# Operators that do not change integers.
_ROUNDING = frozenset({"ceil", "floor", "round", "rint", "trunc", "fix"})


def _unary(function: str, call: Call) -> Value:
    x = call.x
    kept = function in _ROUNDING and not x.dtype.is_float
    result: Value = x if kept else getattr(F, function)(x, name=call.name)
    return result


for _name, _function in _SAME.items():
    converter(_name)(partial(_unary, _function))
for _name in _NUMPY_FORMS:
    converter(f"_npi_{_name}")(partial(_unary, _SAME[_name]))
for _name in ("relu", "sigmoid", "erf"):
    converter(f"_npx_{_name}")(partial(_unary, _SAME[_name]))
converter("_npi_absolute")(partial(_unary, "abs"))
converter("_npi_fabs")(partial(_unary, "abs"))


def _square(x: Value) -> Value:
    result: Value = F.mul(x, x)
    return result


def _scaled(x: Value, factor: float) -> Value:
    result: Value = F.mul(x, scalar(factor, x))
    return result


def _truncated(x: Value) -> Value:
    """Round towards zero."""
    result: Value = F.mul(F.sign(x), F.floor(F.abs(x)))
    return result


def _rounded(x: Value) -> Value:
    """Round halves away from zero. Adding 0.5 instead would round 0.49999997 up."""
    inner = _truncated(x)
    half = F.greater_or_equal(F.abs(F.sub(x, inner)), scalar(0.5, x))
    result: Value = F.where(half, F.add(inner, F.sign(x)), inner)
    return result


def _rint(x: Value) -> Value:
    """Round halves down, as MXNet does."""
    below, above = F.floor(x), F.ceil(x)
    result: Value = F.where(F.less_or_equal(F.sub(x, below), F.sub(above, x)), below, above)
    return result


def _log1p(x: Value) -> Value:
    """log(1 + x) without loss of digits for small x: 2 artanh(x / (x + 2))."""
    small = _scaled(F.atanh(F.div(x, F.add(x, scalar(2.0, x)))), 2.0)
    result: Value = F.where(F.less(x, scalar(1.0, x)), small, F.log(F.add(x, scalar(1.0, x))))
    return result


def _expm1(x: Value) -> Value:
    """exp(x) - 1 without loss of digits for small x: tanh(x / 2) (exp(x) + 1)."""
    result: Value = F.mul(F.tanh(_scaled(x, 0.5)), F.add(F.exp(x), scalar(1.0, x)))
    return result


def _cube_root(x: Value) -> Value:
    result: Value = F.mul(F.sign(x), F.pow(F.abs(x), scalar(1.0 / 3.0, x)))
    return result


def _is_zero(x: Value) -> Value:
    return as_floats(F.equal(x, scalar(0.0, x)), x)


# Formulas of one operand.
_FORMULAS: dict[str, Callable[[Value], Value]] = {
    "square": _square,
    "rsqrt": lambda x: F.reciprocal(F.sqrt(x)),
    "cbrt": _cube_root,
    "rcbrt": lambda x: F.reciprocal(_cube_root(x)),
    "round": _rounded,
    "rint": _rint,
    "trunc": _truncated,
    "fix": _truncated,
    "log2": lambda x: _scaled(F.log(x), 1.0 / math.log(2.0)),
    "log10": lambda x: _scaled(F.log(x), 1.0 / math.log(10.0)),
    "log1p": _log1p,
    "expm1": _expm1,
    "degrees": lambda x: _scaled(x, 180.0 / math.pi),
    "radians": lambda x: _scaled(x, math.pi / 180.0),
    "logical_not": _is_zero,
    "zeros_like": lambda x: _filled_like(x, 0.0),
    "ones_like": lambda x: _filled_like(x, 1.0),
    "_contrib_div_sqrt_dim": lambda x: F.div(x, F.sqrt(F.cast(F.gather(F.shape(x), np.int64(-1)), to=x.dtype))),
}


def _filled_like(x: Value, number: float) -> Value:
    result: Value = F.constant_of_shape(F.shape(x), value=np.full(1, number, x.dtype.numpy))
    return result


@converter("_contrib_gradientmultiplier")
def gradient_multiplier(call: Call) -> Value:
    """x itself, whose gradient is multiplied by a number."""
    call.attributes.ignore("is_int")
    x = call.x
    fixed = F.stop_gradient(x)
    result: Value = F.add(fixed, _scaled(F.sub(x, fixed), call.attributes.number("scalar", 1.0)))
    return result


def _formula(build: Callable[[Value], Value], call: Call) -> Value:
    # GluonCV writes dtype for zeros_like; MXNet does not read it.
    call.attributes.ignore("dtype")
    x = call.x
    return x if call.op.split("_")[-1] in _ROUNDING and not x.dtype.is_float else build(x)


for _name, _build in _FORMULAS.items():
    converter(_name)(partial(_formula, _build))
for _name in ("square", "cbrt", "rint", "trunc", "fix", "log2", "log10", "log1p", "expm1", "degrees", "radians"):
    converter(f"_npi_{_name}")(partial(_formula, _FORMULAS[_name]))


# --- two operands ---------------------------------------------------------------------------------------

_BINARY: dict[str, str] = {"add": "add", "sub": "sub", "mul": "mul", "div": "div", "power": "pow"}
_BINARY_NAMES = {
    "add": ("elemwise_add", "broadcast_add", "broadcast_plus", "_plus", "_add", "_Plus", "_grad_add", "_npi_add"),
    "sub": ("elemwise_sub", "broadcast_sub", "broadcast_minus", "_minus", "_sub", "_Minus", "_npi_subtract"),
    "mul": ("elemwise_mul", "broadcast_mul", "_mul", "_Mul", "_npi_multiply"),
    "div": ("elemwise_div", "broadcast_div", "_div", "_Div", "_npi_true_divide"),
    "pow": ("broadcast_power", "_power", "_Power", "_npi_power"),
    "max": ("broadcast_maximum", "_maximum", "_Maximum", "_npi_maximum"),
    "min": ("broadcast_minimum", "_minimum", "_Minimum", "_npi_minimum"),
}
_COMPARISONS = {
    "equal": "equal", "greater": "greater", "greater_equal": "greater_or_equal", "lesser": "less",
    "lesser_equal": "less_or_equal",
}  # fmt: skip


def _operands(call: Call) -> tuple[Value, Value]:
    """Return both operands. In mx.np, they may have different types: floats win over integers, wider types over others.

    true_divide of integers is computed in float32.
    """
    a, b = call[0], call[1]
    if not call.op.startswith("_np"):
        return a, b
    dtype = max((a.dtype, b.dtype), key=lambda d: (d.is_float, d.numpy.itemsize))
    if call.op == "_npi_true_divide" and not dtype.is_float:
        dtype = DType.FLOAT32
    first, second = (v if v.dtype is dtype else F.cast(v, to=dtype) for v in (a, b))
    return first, second


def _binary(function: str, call: Call) -> Value:
    a, b = _operands(call)
    result: Value = getattr(F, function)(a, b, name=call.name)
    return result


def _compared(function: str, a: Value, b: Value) -> Value:
    """Compare; return 1 and 0 in the element type of the operand."""
    return as_floats(getattr(F, function)(a, b), a)


def _unequal(a: Value, b: Value) -> Value:
    return as_floats(F.not_(F.equal(a, b)), a)


def _logical(function: str, a: Value, b: Value) -> Value:
    zero = scalar(0.0, a)
    first, second = F.not_(F.equal(a, zero)), F.not_(F.equal(b, zero))
    return as_floats(getattr(F, function)(first, second), a)


def _remainder(a: Value, b: Value) -> Value:
    """The remainder with the sign of the divisor; 0 for a divisor 0, as MXNet has it."""
    divisor = F.where(F.equal(b, scalar(0.0, b)), scalar(1.0, b), b)
    if not a.dtype.is_float:
        found: Value = F.mod(a, divisor)
    else:
        rest = F.mod(a, divisor, fmod=True)
        zero = scalar(0.0, a)
        opposite = F.less(F.mul(F.sign(rest), F.sign(divisor)), zero)
        found = F.where(opposite, F.add(rest, divisor), rest)
    return F.where(F.equal(b, scalar(0.0, b)), scalar(0.0, a), found)


def _hypotenuse(a: Value, b: Value) -> Value:
    """sqrt(a^2 + b^2), computed without overflow: m sqrt((a / m)^2 + (b / m)^2) for the larger magnitude m."""
    first, second = F.abs(a), F.abs(b)
    most, least = F.max(first, second), F.min(first, second)
    ratio = F.div(least, F.where(F.equal(most, scalar(0.0, most)), scalar(1.0, most), most))
    result: Value = F.mul(most, F.sqrt(F.add(F.mul(ratio, ratio), scalar(1.0, ratio))))
    return result


def _of_two(build: Callable[[Value, Value], Value], call: Call) -> Value:
    return build(*_operands(call))


for _function, _names in _BINARY_NAMES.items():
    converter(*_names)(partial(_binary, _function))
for _name, _function in _COMPARISONS.items():
    _names = (f"broadcast_{_name}", f"_{_name}", f"_{_name.title()}")
    converter(*_names)(partial(_of_two, partial(_compared, _function)))
converter("broadcast_not_equal", "_not_equal", "_Not_Equal")(partial(_of_two, _unequal))
for _name, _function in {"and": "and_", "or": "or_", "xor": "xor"}.items():
    _names = (f"broadcast_logical_{_name}", f"_logical_{_name}", f"_Logical_{_name.title()}")
    converter(*_names)(partial(_of_two, partial(_logical, _function)))
converter("broadcast_mod", "_mod", "_Mod", "_npi_mod")(partial(_of_two, _remainder))
converter("broadcast_hypot", "_hypot", "_Hypot", "_npi_hypot")(partial(_of_two, _hypotenuse))


# --- an operand and a number ----------------------------------------------------------------------------


def _with_number(build: Callable[[Value, Value], Value], reverse: bool, call: Call) -> Value:
    attributes = call.attributes
    is_integer = attributes.flag("is_int", True)
    x = call.x
    if call.op.startswith("_np") and not x.dtype.is_float:
        # As mx.np: integers with a real number give float64; true_divide gives float32.
        if "true_divide" in call.op:
            x = F.cast(x, to=DType.FLOAT32)
        elif not is_integer:
            x = F.cast(x, to=DType.FLOAT64)
    number = scalar(attributes.number("scalar", 1.0), x)
    return build(number, x) if reverse else build(x, number)


def _plain(function: str) -> Callable[[Value, Value], Value]:
    return lambda a, b: getattr(F, function)(a, b)


_SCALAR_FORMS: dict[str, tuple[Callable[[Value, Value], Value], bool]] = {
    "plus": (_plain("add"), False), "minus": (_plain("sub"), False), "rminus": (_plain("sub"), True),
    "mul": (_plain("mul"), False), "div": (_plain("div"), False), "rdiv": (_plain("div"), True),
    "power": (_plain("pow"), False), "rpower": (_plain("pow"), True), "maximum": (_plain("max"), False),
    "minimum": (_plain("min"), False), "mod": (_remainder, False), "rmod": (_remainder, True),
    "hypot": (_hypotenuse, False), "not_equal": (_unequal, False),
    **{name: (partial(_compared, function), False) for name, function in _COMPARISONS.items()},
    **{f"logical_{n}": (partial(_logical, f), False) for n, f in {"and": "and_", "or": "or_", "xor": "xor"}.items()},
}  # fmt: skip
_OLD_NAMES = {"rminus": "_RMinusScalar", "rdiv": "_RDivScalar", "rpower": "_RPowerScalar", "rmod": "_RModScalar"}
_NUMPY_SCALARS = {
    "plus": "_npi_add_scalar", "minus": "_npi_subtract_scalar", "rminus": "_npi_rsubtract_scalar",
    "mul": "_npi_multiply_scalar", "div": "_npi_true_divide_scalar", "rdiv": "_npi_rtrue_divide_scalar",
    "power": "_npi_power_scalar", "rpower": "_npi_rpower_scalar", "maximum": "_npi_maximum_scalar",
    "minimum": "_npi_minimum_scalar", "mod": "_npi_mod_scalar", "rmod": "_npi_rmod_scalar",
    "hypot": "_npi_hypot_scalar",
}  # fmt: skip

for _name, (_operation, _reverse) in _SCALAR_FORMS.items():
    _old = _OLD_NAMES.get(_name, f"_{_name.title().replace('_', '')}Scalar")
    _forms = [_NUMPY_SCALARS[_name]] if _name in _NUMPY_SCALARS else []
    converter(f"_{_name}_scalar", _old, *_forms)(partial(_with_number, _operation, _reverse))


# --- others ---------------------------------------------------------------------------------------------


@converter("add_n", "ElementWiseSum", "_ElementWiseSum")
def add_n(call: Call) -> Value:
    result: Value = F.sum(*call.operands(), name=call.name)
    return result


@converter("clip", "_npi_clip")
def clip(call: Call) -> Value:
    x = call.x
    least = call.attributes.number("a_min", -math.inf)
    most = call.attributes.number("a_max", math.inf)
    result: Value = F.clip(
        x,
        None if least == -math.inf else scalar(least, x),
        None if most == math.inf else scalar(most, x),
        name=call.name,
    )
    return result


@converter("Cast", "cast", "amp_cast", "_npi_cast", "_npx_cast")
def cast(call: Call) -> Value:
    result: Value = F.cast(call.x, to=call.attributes.dtype("dtype", "float32"), name=call.name)
    return result


@converter("amp_multicast")
def amp_multicast(call: Call) -> list[Value]:
    """Cast all operands to the widest type among them; to the narrowest with cast_narrow."""
    call.attributes.integer("num_outputs", 0)
    operands = call.operands()
    choose = min if call.attributes.flag("cast_narrow", False) else max
    dtype = choose((v.dtype for v in operands), key=lambda d: d.numpy.itemsize)
    return [v if v.dtype is dtype else F.cast(v, to=dtype) for v in operands]


@converter("where", "_npi_where")
def where(call: Call) -> Value:
    """Elements of the second operand where the first is not 0, else of the third. A vector selects rows."""
    condition, a, b = call[0], call[1], call[2]
    if condition.dtype is not DType.BOOL:
        condition = F.not_(F.equal(condition, scalar(0.0, condition)))
    if call.op == "where" and condition.rank == 1 and rank_of(a) > 1:
        condition = along_axis(condition, 0, rank_of(a))
    result: Value = F.where(condition, a, b, name=call.name)
    return result


@converter("smooth_l1", "_npx_smooth_l1")
def smooth_l1(call: Call) -> Value:
    """0.5 (s x)^2 if |x| < 1 / s^2, else |x| - 0.5 / s^2, for the number s."""
    x = call.x
    squared = call.attributes.number("scalar", 1.0) ** 2
    size = F.abs(x)
    inner = F.mul(scalar(0.5 * squared, x), F.mul(x, x))
    outer = F.sub(size, scalar(0.5 / squared, x))
    result: Value = F.where(F.less(size, scalar(1.0 / squared, x)), inner, outer)
    return result


@converter("_contrib_quadratic")
def quadratic(call: Call) -> Value:
    """a x^2 + b x + c."""
    x = call.x
    a, b, c = (scalar(call.attributes.number(name, 0.0), x) for name in "abc")
    result: Value = F.add(F.mul(F.add(F.mul(a, x), b), x), c)
    return result


@converter("hard_sigmoid")
def hard_sigmoid(call: Call) -> Value:
    alpha, beta = call.attributes.number("alpha", 0.2), call.attributes.number("beta", 0.5)
    result: Value = F.hard_sigmoid(call.x, alpha=alpha, beta=beta, name=call.name)
    return result


@converter("_contrib_round_ste", "_contrib_sign_ste")
def straight_through(call: Call) -> Value:
    """Round, or take the sign; the gradient passes unchanged."""
    x = call.x
    result: Value = F.straight_through(x, _rounded(x) if call.op.endswith("round_ste") else F.sign(x))
    return result


@converter("cast_storage")
def cast_storage(call: Call) -> Value:
    """The operand itself: sparse tensors are read as dense."""
    call.attributes.ignore("stype")
    result: Value = F.identity(call.x, name=call.name)
    return result


# --- activations ------------------------------------------------------------------------------------------


def _log_sigmoid(x: Value) -> Value:
    result: Value = F.neg(F.softplus(F.neg(x)))
    return result


_ACTIVATIONS: dict[str, Callable[[Value], Value]] = {
    "relu": F.relu, "sigmoid": F.sigmoid, "tanh": F.tanh, "softrelu": F.softplus, "softsign": F.softsign,
    "mish": F.mish, "log_sigmoid": _log_sigmoid,
}  # fmt: skip


@converter("Activation", "_npx_activation")
def activation(call: Call) -> Value:
    kind = call.attributes.choice("act_type", "relu", *_ACTIVATIONS)
    return _ACTIVATIONS[kind](call.x)


converter("log_sigmoid")(partial(_formula, _log_sigmoid))
converter("mish")(partial(_unary, "mish"))


@converter("LeakyReLU", "_npx_leaky_relu")
def leaky_relu(call: Call) -> Value:
    """In inference, rrelu has the mean of its bounds as slope. prelu has a slope per channel, or one for all."""
    attributes = call.attributes
    kind = attributes.choice("act_type", "leaky", "prelu", "elu", "selu", "gelu", "rrelu")
    slope = attributes.number("slope", 0.25)
    bounds = attributes.number("lower_bound", 0.125), attributes.number("upper_bound", 0.334)
    x = call.x
    if kind == "prelu":
        gamma = call[1]
        single = gamma.tensor.shape == (1,)
        rank = rank_of(x)
        # PRelu broadcasts to the trailing axes; MXNet's slopes belong to axis 1.
        slopes = gamma if single or rank < 3 else along_axis(gamma, 0, rank - 1)
        result: Value = F.p_relu(x, slopes, name=call.name)
    elif kind == "elu":
        result = F.elu(x, alpha=slope, name=call.name)
    elif kind in ("selu", "gelu"):
        result = getattr(F, kind)(x, name=call.name)
    else:
        result = F.leaky_relu(x, alpha=slope if kind == "leaky" else sum(bounds) / 2, name=call.name)
    return result


@converter("Dropout", "_npx_dropout")
def dropout(call: Call) -> Value:
    """The identity in inference, unless mode is always. Along `axes`, elements are dropped together."""
    attributes = call.attributes
    attributes.ignore("seed")
    ratio = constant(np.float32(attributes.number("p", 0.5)))
    always = attributes.choice("mode", "training", "always") == "always"
    shared = attributes.integers("axes")
    x = call.x
    if shared:
        axes = [axis_of(x, axis) for axis in shared]
        sizes = [constant(i64(1)) if i in axes else sizes_of(x, i) for i in range(rank_of(x))]
        dropped = F.constant_of_shape(F.concat(*sizes, axis=0), value=np.ones(1, x.dtype.numpy))
    else:
        dropped = x
    mode = constant(np.bool_(True)) if always else None
    result: Value = F.dropout(dropped, ratio, mode, name=call.name)[0]
    return F.mul(x, result) if shared else result
