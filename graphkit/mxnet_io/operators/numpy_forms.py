"""Operators of MXNet's numpy interface, mx.np, that differ from those of mx.nd: comparisons return bool, ..."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from graphkit.errors import UnsupportedError
from graphkit.ir.graph import Value
from graphkit.ir.types import DType
from graphkit.mxnet_io.call import Call, axis_of, converter, rank_of, reshape, scalar
from graphkit.ops import F, constant
from graphkit.ops.axes import i64

_Two = Callable[[Value, Value], Value]


def _function(name: str) -> Callable[..., Value]:
    """Return graphkit's function of this name."""
    return lambda *operands: getattr(F, name)(*operands)


# --- results of bool --------------------------------------------------------------------------------------


def _of_one(build: Callable[[Value], Value], call: Call) -> Value:
    return build(call.x)


def _of_two(build: _Two, call: Call) -> Value:
    return build(call[0], call[1])


def _with_number(build: _Two, reverse: bool, call: Call) -> Value:
    x = call.x
    number = scalar(call.attributes.number("scalar", 1.0), x)
    call.attributes.ignore("is_int")
    return build(number, x) if reverse else build(x, number)


def _unequal(a: Value, b: Value) -> Value:
    result: Value = F.not_(F.equal(a, b))
    return result


_COMPARISONS: dict[str, _Two] = {
    "equal": _function("equal"), "not_equal": _unequal, "greater": _function("greater"),
    "greater_equal": _function("greater_or_equal"), "less": _function("less"),
    "less_equal": _function("less_or_equal"),
}  # fmt: skip
for _name, _build in _COMPARISONS.items():
    converter(f"_npi_{_name}")(partial(_of_two, _build))
    converter(f"_npi_{_name}_scalar")(partial(_with_number, _build, False))


def _infinite(x: Value, *, negative: bool = True, positive: bool = True) -> Value:
    result: Value = F.is_inf(x, detect_negative=negative, detect_positive=positive)
    return result


def _finite(x: Value) -> Value:
    result: Value = F.not_(F.or_(F.is_nan(x), F.is_inf(x)))
    return result


def _is_zero(x: Value) -> Value:
    result: Value = F.not_(x) if x.dtype is DType.BOOL else F.equal(x, scalar(0.0, x))
    return result


_TESTS: dict[str, Callable[[Value], Value]] = {
    "isnan": _function("is_nan"), "isinf": _infinite, "isposinf": partial(_infinite, negative=False),
    "isneginf": partial(_infinite, positive=False), "isfinite": _finite, "logical_not": _is_zero,
}  # fmt: skip
for _name, _test in _TESTS.items():
    converter(f"_npi_{_name}")(partial(_of_one, _test))


@converter("_np_all", "_np_any", "_np_sometrue")
def all_or_any(call: Call) -> Value:
    x = call.x
    axes = call.attributes.integers("axis") or tuple(range(rank_of(x)))
    kept = call.attributes.flag("keepdims", False)
    ones = F.cast(_is_zero(x) if call.op == "_np_all" else F.not_(_is_zero(x)), to=np.int32)
    most = F.cast(F.reduce_max(ones, i64(*axes), keepdims=kept), to=bool) if axes else F.cast(ones, to=bool)
    result: Value = F.not_(most) if call.op == "_np_all" else most
    return result


# --- arithmetic -------------------------------------------------------------------------------------------


def _angle(y: Value, x: Value) -> Value:
    """The angle of the point (x, y), from -pi to pi. Zeros have no sign here: the angle of (-1, -0) is pi."""
    zero = scalar(0.0, x)
    flat = F.equal(x, zero)
    slope = F.atan(F.div(y, F.where(flat, scalar(1.0, x), x)))
    turned = F.add(slope, F.where(F.less(y, zero), scalar(-math.pi, x), scalar(math.pi, x)))
    upright = F.mul(F.sign(y), scalar(math.pi / 2, x))
    result: Value = F.where(flat, upright, F.where(F.less(x, zero), turned, slope))
    return result


def _copy_sign(a: Value, b: Value) -> Value:
    """The magnitude of a with the sign of b; a zero b counts as positive."""
    size = F.abs(a)
    result: Value = F.where(F.less(b, scalar(0.0, b)), F.neg(size), size)
    return result


def _ldexp(a: Value, b: Value) -> Value:
    result: Value = F.mul(a, F.pow(scalar(2.0, a), b))
    return result


for _name, _build in {"arctan2": _angle, "copysign": _copy_sign, "ldexp": _ldexp}.items():
    converter(f"_npi_{_name}")(partial(_of_two, _build))
    converter(f"_npi_{_name}_scalar")(partial(_with_number, _build, False))
    converter(f"_npi_r{_name}_scalar")(partial(_with_number, _build, True))


def _bitwise(name: str, a: Value, b: Value) -> Value:
    """Combine bits; of bools, truth values."""
    result: Value = (
        getattr(F, {"and": "and_", "or": "or_", "xor": "xor"}[name])(a, b)
        if a.dtype is DType.BOOL
        else getattr(F, f"bitwise_{name}")(a, b)
    )
    return result


for _name in ("and", "or", "xor"):
    converter(f"_npi_bitwise_{_name}")(partial(_of_two, partial(_bitwise, _name)))
    converter(f"_npi_bitwise_{_name}_scalar")(partial(_with_number, partial(_bitwise, _name), False))


@converter("_npi_bitwise_not")
def bitwise_not(call: Call) -> Value:
    x = call.x
    result: Value = F.not_(x) if x.dtype is DType.BOOL else F.bitwise_not(x)
    return result


@converter("_npi_around")
def around(call: Call) -> Value:
    """Round to a number of decimals; halves go to the even neighbour."""
    x = call.x
    if not x.dtype.is_float:
        return x
    factor = scalar(10.0 ** call.attributes.integer("decimals", 0), x)
    result: Value = F.div(F.round(F.mul(x, factor)), factor)
    return result


@converter("_npi_nan_to_num")
def nan_to_num(call: Call) -> Value:
    """Replace NaNs, and infinities, which by default become the largest finite numbers."""
    attributes = call.attributes
    attributes.ignore("copy")
    x = call.x
    limit = float(np.finfo(x.dtype.numpy).max)
    most, least = attributes.number("posinf", limit), attributes.number("neginf", -limit)
    y = F.where(F.is_nan(x), scalar(attributes.number("nan", 0.0), x), x)
    y = F.where(_infinite(y, negative=False), scalar(most, x), y)
    result: Value = F.where(_infinite(y, positive=False), scalar(least, x), y)
    return result


@converter("_npi_where_lscalar", "_npi_where_rscalar", "_npi_where_scalar2")
def where_numbers(call: Call) -> Value:
    """As where, with a number for the first, the second, or both choices."""
    attributes = call.attributes
    condition = F.not_(_is_zero(call[0]))
    if call.op.endswith("scalar2"):
        first, second = (constant(np.float32(attributes.number(name, 0.0))) for name in "xy")
    else:
        x = call[1]
        number = scalar(attributes.number("scalar", 0.0), x)
        first, second = (number, x) if call.op.endswith("lscalar") else (x, number)
    result: Value = F.where(condition, first, second, name=call.name)
    return result


@converter("_npi_polyval")
def polyval(call: Call) -> Value:
    """The polynomial with the coefficients p, highest power first, at x."""
    p, x = call[0], call[1]
    (count,) = p.tensor.known_shape
    if not isinstance(count, int) or count == 0:
        raise UnsupportedError(f"coefficients {p.tensor}")
    coefficients = [F.gather(p, np.int64(i), axis=0) for i in range(count)]
    total = F.add(F.mul(x, scalar(0.0, x)), coefficients[0])
    for coefficient in coefficients[1:]:
        total = F.add(F.mul(total, x), coefficient)
    return total


# --- statistics -------------------------------------------------------------------------------------------


def _axes(call: Call, x: Value) -> tuple[int, ...]:
    given = call.attributes.integers("axis")
    return tuple(axis_of(x, axis) for axis in given) or tuple(range(rank_of(x)))


def _variance(call: Call) -> Value:
    attributes = call.attributes
    attributes.ignore("dtype")
    x = call.x
    places = i64(*_axes(call, x))
    kept, freedom = attributes.flag("keepdims", False), attributes.integer("ddof", 0)
    centred = F.sub(x, F.reduce_mean(x, places, keepdims=True))
    total = F.reduce_sum(F.mul(centred, centred), places, keepdims=kept)
    count = F.reduce_prod(F.gather(F.shape(x), places), i64(0), keepdims=False)
    result: Value = F.div(total, F.cast(F.sub(count, np.int64(freedom)), to=x.dtype))
    return result


@converter("_npi_var")
def variance(call: Call) -> Value:
    """The mean of the squared distances from the mean; the divisor is the number of elements minus ddof."""
    return _variance(call)


@converter("_npi_std")
def deviation(call: Call) -> Value:
    result: Value = F.sqrt(_variance(call))
    return result


@converter("_npi_average")
def average(call: Call) -> Value | list[Value]:
    """The mean, weighted if there are weights. With `returned`, also the sum of the weights: a vector's is a scalar."""
    attributes = call.attributes
    x = call[0]
    axes = _axes(call, x)
    returned = attributes.flag("returned", False)
    places = i64(*axes)
    if not attributes.flag("weighted", True):
        count = F.reduce_prod(F.gather(F.shape(x), places), i64(0), keepdims=False)
        mean: Value = F.reduce_mean(x, places, keepdims=False)
        return [mean, F.cast(count, to=x.dtype)] if returned else mean
    weights = call[1]
    if weights.rank == x.rank:
        total = F.reduce_sum(weights, places, keepdims=False)
    elif weights.rank == 1 and len(axes) == 1:
        total = F.reduce_sum(weights, i64(0), keepdims=False)
        weights = reshape(weights, [-1 if axis == axes[0] else 1 for axis in range(rank_of(x))])
    else:
        raise UnsupportedError("weights of another rank than the operand need exactly one axis")
    mean = F.div(F.reduce_sum(F.mul(x, weights), places, keepdims=False), total)
    return [mean, total] if returned else mean


@converter("_npi_diff")
def diff(call: Call) -> Value:
    """The n-th differences of neighbours along an axis."""
    x = call.x
    axis = i64(axis_of(x, call.attributes.integer("axis", -1)))
    end = i64(np.iinfo(np.int64).max)
    for _ in range(call.attributes.integer("n", 1)):
        x = F.sub(F.slice(x, i64(1), end, axis), F.slice(x, i64(0), i64(-1), axis))
    return x


# --- products and shapes ----------------------------------------------------------------------------------


@converter("_npi_einsum")
def einsum(call: Call) -> Value:
    call.attributes.ignore("optimize")
    equation = call.attributes.text("subscripts", "")
    result: Value = F.einsum(*call.operands(), equation=equation, name=call.name)
    return result


@converter("_npi_tensordot", "_npi_tensordot_int_axes")
def tensordot(call: Call) -> Value:
    """Sum over pairs of axes: the given ones, or the last axes of a and the first ones of b."""
    attributes = call.attributes
    a, b = call[0], call[1]
    if call.op.endswith("int_axes"):
        count = attributes.integer("axes", 2)
        left, right = tuple(range(rank_of(a) - count, rank_of(a))), tuple(range(count))
    else:
        left = tuple(axis_of(a, axis) for axis in attributes.integers("a_axes_summed"))
        right = tuple(axis_of(b, axis) for axis in attributes.integers("b_axes_summed"))
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    first = [next(letters) for _ in range(rank_of(a))]
    shared = dict(zip(right, (first[axis] for axis in left), strict=True))
    second = [shared.get(axis) or next(letters) for axis in range(rank_of(b))]
    kept = [v for i, v in enumerate(first) if i not in left] + [v for i, v in enumerate(second) if i not in shared]
    equation = f"{''.join(first)},{''.join(second)}->{''.join(kept)}"
    result: Value = F.einsum(a, b, equation=equation, name=call.name)
    return result


@converter("_np_atleast_1d", "_np_atleast_2d", "_np_atleast_3d")
def at_least(call: Call) -> list[Value]:
    """Give tensors of a lower rank axes of size 1, as numpy does."""
    wanted = int(call.op[-2])
    results = []
    for x in call.operands():
        rank = rank_of(x)
        added = list(range(wanted - rank))
        if wanted == 3 and rank in (1, 2):
            added = [0, 2] if rank == 1 else [2]
        results.append(F.unsqueeze(x, i64(*added)) if rank < wanted else x)
    return results


@converter("_npx_nonzero", "_npi_nonzero")
def nonzero(call: Call) -> Value:
    """The positions of the elements that are not 0, int64 [count, rank]."""
    result: Value = F.transpose(F.non_zero(F.not_(_is_zero(call.x))), perm=(1, 0), name=call.name)
    return result
