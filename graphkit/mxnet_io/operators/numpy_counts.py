"""Operators of mx.np that count and order: histogram, bincount, percentile, lcm."""

from __future__ import annotations

import numpy as np

from graphkit.errors import InvalidModel
from graphkit.frontend.control import while_loop
from graphkit.ir.graph import Value
from graphkit.ir.types import DType
from graphkit.mxnet_io.call import (
    Call,
    as_indices,
    axis_of,
    converter,
    rank_of,
    require_elements,
    reshape,
    scalar,
    sizes_of,
    transpose,
)
from graphkit.mxnet_io.operators.rejection import any_of
from graphkit.ops import F, constant
from graphkit.ops.axes import i64
from graphkit.passes.core.match import array_of


@converter("_histogram", "_npi_histogram")
def histogram(call: Call) -> list[Value]:
    """Count the elements of each bin. The last bin contains its upper edge. Returns counts (int64) and edges.

    Edges have the type of the data, so they are truncated for integers.
    """
    attributes = call.attributes
    count, range_ = attributes.optional_integer("bin_cnt"), attributes.numbers("range")
    x = reshape(call.x, [-1])
    # Comparisons are exact: integers in int64, other numbers in float64.
    wide = DType.FLOAT64 if x.dtype.is_float else DType.INT64
    number = F.cast(x, to=wide)
    if count is None:
        edges = call[1]
        if edges.dtype is not x.dtype:
            raise InvalidModel(f"the edges have the type {edges.dtype}, the data {x.dtype}; expected are equal types")
        bins, total = _searched(number, F.cast(edges, to=wide))
    else:
        if count < 1 or len(range_) != 2 or range_[0] > range_[1]:
            raise InvalidModel(f"bin_cnt {count} and range {range_}")
        require_elements(count)
        least, most = range_ if range_[0] < range_[1] else (range_[0] - 0.5, range_[1] + 0.5)
        steps = np.arange(count + 1)
        listed = (least * (count - steps) + most * steps) / count
        edges = constant((listed if x.dtype.is_float else listed.astype(np.int64)).astype(x.dtype.numpy))
        bins, total = _computed(number, F.cast(edges, to=wide), least, most, count), constant(i64(count))
    # The last element of the counts is that of numbers in no bin.
    zeros = F.constant_of_shape(F.add(total, np.int64(1)), value=np.zeros(1, np.int64))
    bins = F.where(F.less(bins, np.int64(0)), total, bins)
    ones = F.constant_of_shape(F.shape(bins), value=np.ones(1, np.int64))
    return [F.scatter_elements(zeros, bins, ones, axis=0, reduction="add")[:-1], edges]


def _computed(x: Value, edges: Value, least: float, most: float, count: int) -> Value:
    """Return the bin of each number, or -1. Rounding may give a neighbour of the bin, so edges are compared."""
    real = F.cast(x, to=DType.FLOAT64)
    inside = F.and_(F.greater_or_equal(real, np.float64(least)), F.less_or_equal(real, np.float64(most)))
    position = F.div(F.mul(F.sub(real, np.float64(least)), np.float64(count)), np.float64(most - least))
    bins = F.cast(F.where(inside, F.min(position, np.float64(count - 1)), np.float64(0)), to=DType.INT64)
    bins = F.sub(bins, F.cast(F.less(x, F.gather(edges, bins, axis=0)), to=DType.INT64))
    above = F.greater_or_equal(x, F.gather(edges, F.add(bins, np.int64(1)), axis=0))
    bins = F.add(bins, F.cast(F.and_(above, F.less(bins, np.int64(count - 1))), to=DType.INT64))
    result: Value = F.where(inside, bins, np.int64(-1))
    return result


def _searched(x: Value, edges: Value) -> tuple[Value, Value]:
    """Return the bin of each number, or -1, by binary search; and the number of bins, int64 [1]."""
    last = F.sub(F.shape(edges), np.int64(1))
    end = F.squeeze(last, i64(0))

    def step(state: list[Value]) -> list[Value]:
        low, high = state
        middle = F.div(F.add(low, high), np.int64(2))
        above = F.greater_or_equal(x, F.gather(edges, F.min(middle, end), axis=0))
        searching = F.less(low, high)
        return [
            F.where(F.and_(searching, above), F.add(middle, np.int64(1)), low),
            F.where(F.and_(searching, F.not_(above)), middle, high),
        ]

    low = F.constant_of_shape(F.shape(x), value=np.zeros(1, np.int64))
    found, _ = while_loop(lambda state: any_of(F.less(*state)), step, [low, F.add(low, F.add(end, np.int64(1)))])
    inside = F.less_or_equal(x, F.gather(edges, last, axis=0))
    bins = F.sub(F.min(found, end), np.int64(1))
    return F.where(inside, bins, np.int64(-1)), last


@converter("_npi_bincount")
def bincount(call: Call) -> Value:
    """Count each number from 0 to the largest one, at least up to minlength - 1; or add the weights of its elements.

    Counts have the type of the data. A negative number is an error of the run: its position is not in the result.
    """
    attributes = call.attributes
    weighted, least = attributes.flag("has_weights", False), attributes.integer("minlength", 0)
    if not call.x.dtype.is_integer:
        raise InvalidModel(f"the data has the type {call.x.dtype}; an integer type is expected")
    x = as_indices(call.x)
    weights = call[1] if weighted else F.constant_of_shape(F.shape(x), value=np.ones(1, np.int64))
    largest = F.reduce_max(F.concat(x, i64(-1), axis=0), i64(0), keepdims=True)
    size = F.max(F.add(largest, np.int64(1)), i64(least))
    zeros = F.constant_of_shape(size, value=np.zeros(1, weights.dtype.numpy))
    places = F.where(F.less(x, np.int64(0)), size, x)
    found = F.scatter_elements(zeros, places, weights, axis=0, reduction="add", name=call.name)
    result: Value = found if weighted else F.cast(found, to=call.x.dtype)
    return result


# --- percentiles --------------------------------------------------------------------------------------------------


def _lower_and_upper(position: Value, interpolation: str) -> tuple[Value, Value, Value | None]:
    """Return the two neighbours of a position, and the share of the upper one. None if only the first is used."""
    below, above = F.floor(position), F.ceil(position)
    if interpolation == "linear":
        return below, above, F.sub(position, below)
    if interpolation == "midpoint":
        return below, above, scalar(0.5, position)
    if interpolation == "nearest":
        below = F.floor(F.add(position, scalar(0.5, position)))
    return (above if interpolation == "higher" else below), above, None


@converter("_npi_percentile")
def percentile(call: Call) -> Value:
    """Percentiles along axes, all axes if none is given. q: a number or a vector, whose axis comes first.

    Rows with NaN give NaN. So does a q beyond 0 to 100 that is computed in the run; a constant one is an error.
    """
    attributes = call.attributes
    x, rank = call.x, rank_of(call.x)
    axes = sorted({axis_of(x, axis) for axis in attributes.integers("axis")}) or list(range(rank))
    interpolation = attributes.choice("interpolation", "linear", "higher", "lower", "midpoint", "nearest")
    kept, number = attributes.flag("keepdims", False), attributes.optional_number("q_scalar")
    q = F.cast(call[1], to="float64") if number is None else constant(np.float64(number))
    known = array_of(call[1]) if number is None else np.float64(number)
    if known is not None and not np.all((known >= 0) & (known <= 100)):
        raise InvalidModel(f"q is {known}; a percentile must be from 0 to 100")
    others = [axis for axis in range(rank) if axis not in axes]
    rows = transpose(x, *others, *axes)
    sizes = [sizes_of(x, axis) for axis in others]
    rows = F.reshape(rows, F.concat(*sizes, i64(-1), axis=0))
    count = F.shape(rows)[len(others) :]
    ordered = F.top_k(rows, count, axis=-1, largest=False)[0]
    dtype = DType.FLOAT64 if x.dtype is DType.FLOAT64 else DType.FLOAT32
    valid = F.and_(F.greater_or_equal(q, np.float64(0)), F.less_or_equal(q, np.float64(100)))
    q = F.where(valid, q, np.float64(0))
    last = F.cast(F.sub(F.squeeze(count, i64(0)), np.int64(1)), to="float64")
    position = F.mul(F.div(q, np.float64(100)), last)
    below, above, share = _lower_and_upper(position, interpolation)
    found = F.cast(F.gather(ordered, as_indices(below), axis=-1), to="float64")
    if share is not None:
        upper = F.cast(F.gather(ordered, as_indices(above), axis=-1), to="float64")
        # An infinity times a share of 0 would be NaN.
        mixed = F.add(F.mul(F.sub(scalar(1.0, share), share), found), F.mul(share, upper))
        found = F.where(F.equal(share, scalar(0.0, share)), found, mixed)
    found = F.where(valid, found, np.float64(np.nan))
    if x.dtype.is_float:
        missing = F.reduce_max(F.cast(F.is_nan(rows), to=np.int32), i64(-1), keepdims=rank_of(q) == 1)
        found = F.where(F.cast(missing, to="bool"), np.float64(np.nan), found)
    if rank_of(q) == 1:
        found = transpose(found, len(others), *range(len(others)))
    result: Value = F.cast(found, to=dtype)
    return F.unsqueeze(result, i64(*(axis + rank_of(q) for axis in axes))) if kept else result


# --- integers ---------------------------------------------------------------------------------------------------


def _lcm(a: Value, b: Value) -> Value:
    """The least common multiple, by Euclid's algorithm."""
    a, b = F.abs(a), F.abs(b)
    zero = scalar(0, a)
    wide = F.add(a, F.mul(b, zero))

    def remains(state: list[Value]) -> Value:
        return any_of(F.greater(state[1], zero))

    def step(state: list[Value]) -> list[Value]:
        x, y = state
        done = F.equal(y, zero)
        rest = F.mod(x, F.where(done, scalar(1, a), y))
        return [F.where(done, x, y), F.where(done, y, rest)]

    divisor, _ = while_loop(remains, step, [wide, F.add(b, F.mul(a, zero))])
    result: Value = F.mul(F.div(wide, F.max(divisor, scalar(1, a))), b)
    return result


@converter("_npi_lcm")
def lcm(call: Call) -> Value:
    return _lcm(call[0], call[1])


@converter("_npi_lcm_scalar")
def lcm_scalar(call: Call) -> Value:
    call.attributes.ignore("is_int")
    return _lcm(call.x, constant(np.asarray(call.attributes.number("scalar", 1.0), call.x.dtype.numpy)))
