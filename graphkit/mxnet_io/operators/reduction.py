"""Reductions over axes, norms, and positions of extremes."""

from __future__ import annotations

from functools import partial

import numpy as np

from graphkit.errors import UnsupportedError
from graphkit.ir.graph import Value
from graphkit.ir.types import DType
from graphkit.mxnet_io.call import Call, as_floats, axis_of, converter, rank_of, reshape, scalar
from graphkit.ops import F
from graphkit.ops.axes import i64

_FUNCTIONS = {
    "sum": ("reduce_sum", ("sum", "sum_axis", "_np_sum", "_npi_sum")),
    "mean": ("reduce_mean", ("mean", "_npi_mean", "_np_mean")),
    "max": ("reduce_max", ("max", "max_axis", "_np_max", "_np_amax", "_npi_max")),
    "min": ("reduce_min", ("min", "min_axis", "_np_min", "_np_amin", "_npi_min")),
    "prod": ("reduce_prod", ("prod", "_np_prod", "_np_product", "_npi_prod")),
}


def _axes(call: Call, x: Value) -> tuple[list[int], bool]:
    """Read axis, exclude and keepdims. No axis, or an empty tuple, means all axes."""
    attributes = call.attributes
    given = sorted({axis_of(x, axis) for axis in attributes.integers("axis")})
    if attributes.flag("exclude", False) and given:
        given = [axis for axis in range(rank_of(x)) if axis not in given]
        if not given:
            return [], attributes.flag("keepdims", False)
    elif not given:
        given = list(range(rank_of(x)))
    return given, attributes.flag("keepdims", False)


def _reduced(function: str, call: Call) -> Value:
    """Reduce. Without an axis, MXNet's operators return one element of shape [1], numpy's a scalar."""
    attributes = call.attributes
    if "initial" in attributes:
        raise UnsupportedError("initial: a reduction that begins with a given number")
    attributes.ignore("initial")
    x = call.x
    dtype = attributes.dtype("dtype", _result_type(call, function, x).value)
    x = x if dtype is x.dtype else F.cast(x, to=dtype)
    axes, kept = _axes(call, x)
    if not axes:
        return x
    y: Value = getattr(F, function)(x, i64(*axes), keepdims=kept, name=call.name)
    return never_scalar(call, y)


def _result_type(call: Call, function: str, x: Value) -> DType:
    """In mx.np, the mean of integers is float32, and the sum or product of bools is int64; else types stay."""
    if call.op.startswith("_np") and function == "reduce_mean" and not x.dtype.is_float:
        return DType.FLOAT32
    if call.op.startswith("_np") and function in ("reduce_sum", "reduce_prod") and x.dtype is DType.BOOL:
        return DType.INT64
    return x.dtype


def never_scalar(call: Call, y: Value) -> Value:
    return reshape(y, [1]) if y.rank == 0 and not call.op.startswith("_np") else y


for _function, _names in _FUNCTIONS.values():
    converter(*_names)(partial(_reduced, _function))


@converter("nansum", "nanprod")
def without_nans(call: Call) -> Value:
    """NaNs count as 0 in a sum, as 1 in a product."""
    is_sum = call.op == "nansum"
    x = call.x
    axes, kept = _axes(call, x)
    filled = F.where(F.is_nan(x), scalar(0.0 if is_sum else 1.0, x), x)
    reduce = F.reduce_sum if is_sum else F.reduce_prod
    return never_scalar(call, reduce(filled, i64(*axes), keepdims=kept) if axes else filled)


@converter("norm")
def norm(call: Call) -> Value:
    """The norm of order 1 or 2 over axes. Without an axis, of all elements."""
    attributes = call.attributes
    attributes.ignore("out_dtype")
    order = attributes.integer("ord", 2)
    if order not in (1, 2):
        raise UnsupportedError(f"ord {order}: norms of order 1 and 2 are supported")
    x = call.x
    axes, kept = _axes(call, x)
    function = F.reduce_l1 if order == 1 else F.reduce_l2
    return never_scalar(call, function(x, i64(*axes), keepdims=kept))


@converter("argmax", "argmin", "_npi_argmax", "_npi_argmin")
def extreme(call: Call) -> Value:
    """The first position of the extreme, in the operand's element type; without an axis, in the flat tensor."""
    attributes = call.attributes
    axis, kept = attributes.optional_integer("axis"), attributes.flag("keepdims", False)
    function = F.arg_max if call.op.endswith("max") else F.arg_min
    x = call.x
    plain = call.op.startswith("_np")
    if axis is None:
        found = function(reshape(x, [-1]), axis=0, keepdims=not plain)
        found = reshape(found, [1] * rank_of(x)) if kept else found
    else:
        found = function(x, axis=axis, keepdims=kept)
    return found if plain else as_floats(never_scalar(call, found), x)


@converter("argmax_channel")
def argmax_channel(call: Call) -> Value:
    x = call.x
    return as_floats(F.arg_max(x, axis=1, keepdims=False), x)


@converter("moments")
def moments(call: Call) -> list[Value]:
    """Mean and variance over `axes`."""
    x = call.x
    axes = call.attributes.integers("axes") or tuple(range(rank_of(x)))
    kept = call.attributes.flag("keepdims", False)
    places = i64(*axes)
    mean = F.reduce_mean(x, places, keepdims=True)
    centred = F.sub(x, mean)
    variance = F.reduce_mean(F.mul(centred, centred), places, keepdims=kept)
    return [mean if kept else F.squeeze(mean, places), variance]


@converter("cumsum", "_np_cumsum", "_npi_cumsum")
def cumulative_sum(call: Call) -> Value:
    attributes = call.attributes
    axis = attributes.optional_integer("axis")
    x = reshape(call.x, [-1]) if axis is None else call.x
    dtype = attributes.dtype("dtype", x.dtype.value)
    x = x if dtype is x.dtype else F.cast(x, to=dtype)
    result: Value = F.cum_sum(x, np.int64(0 if axis is None else axis), name=call.name)
    return result
