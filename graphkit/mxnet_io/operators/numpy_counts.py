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
from graphkit.ops import F, constant
from graphkit.ops.axes import i64


@converter("_histogram", "_npi_histogram")
def histogram(call: Call) -> list[Value]:
    """Count the elements of each bin. The last bin contains its upper edge. Returns counts (int64) and edges."""
    attributes = call.attributes
    count, range_ = attributes.optional_integer("bin_cnt"), attributes.numbers("range")
    x = reshape(call.x, [-1])
    if count is None:
        edges = call[1]
    else:
        if count < 1 or len(range_) != 2:
            raise InvalidModel(f"bin_cnt {count} and range {range_}")
        require_elements(count)
        edges = constant(np.linspace(*range_, count + 1).astype(x.dtype.numpy if x.dtype.is_float else np.float32))
    number = F.cast(F.unsqueeze(x, i64(1)), to=edges.dtype)
    above = F.reduce_sum(F.cast(F.greater_or_equal(number, edges), to=np.int64), i64(0), keepdims=False)
    beyond = F.reduce_sum(F.cast(F.greater(number, edges[-1:]), to=np.int64), i64(0), keepdims=False)
    # Elements at or above each edge; above the last one.
    counts = F.sub(above[:-1], F.concat(above[1:-1], beyond, axis=0))
    return [counts, edges]


@converter("_npi_bincount")
def bincount(call: Call) -> Value:
    """Count each number from 0 to the largest one, at least up to minlength - 1; or add the weights of its elements."""
    attributes = call.attributes
    weighted, least = attributes.flag("has_weights", False), attributes.integer("minlength", 0)
    x = as_indices(call.x)
    weights = call[1] if weighted else F.add(F.mul(x, np.int64(0)), np.int64(1))
    size = F.max(F.add(F.reduce_max(x, i64(0), keepdims=True), np.int64(1)), i64(least))
    zeros = F.constant_of_shape(size, value=np.zeros(1, weights.dtype.numpy))
    found = F.scatter_elements(zeros, x, weights, axis=0, reduction="add", name=call.name)
    result: Value = found if weighted else F.cast(found, to=np.int32)
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
    """Percentiles along axes, all axes if none is given. q: a number or a vector, whose axis comes first."""
    attributes = call.attributes
    x, rank = call.x, rank_of(call.x)
    axes = sorted({axis_of(x, axis) for axis in attributes.integers("axis")}) or list(range(rank))
    interpolation = attributes.choice("interpolation", "linear", "higher", "lower", "midpoint", "nearest")
    kept, number = attributes.flag("keepdims", False), attributes.optional_number("q_scalar")
    q = F.cast(call[1], to="float64") if number is None else constant(np.float64(number))
    others = [axis for axis in range(rank) if axis not in axes]
    rows = transpose(x, *others, *axes)
    sizes = [sizes_of(x, axis) for axis in others]
    rows = F.reshape(rows, F.concat(*sizes, i64(-1), axis=0))
    count = F.shape(rows)[len(others) :]
    ordered = F.top_k(rows, count, axis=-1, largest=False)[0]
    dtype = x.dtype if x.dtype.is_float else DType.FLOAT32
    last = F.cast(F.sub(F.squeeze(count, i64(0)), np.int64(1)), to="float64")
    position = F.mul(F.div(q, np.float64(100)), last)
    below, above, share = _lower_and_upper(position, interpolation)
    found = F.cast(F.gather(ordered, as_indices(below), axis=-1), to="float64")
    if share is not None:
        upper = F.cast(F.gather(ordered, as_indices(above), axis=-1), to="float64")
        found = F.add(found, F.mul(share, F.sub(upper, found)))
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
        left: Value = F.greater(
            F.reduce_max(F.cast(F.greater(state[1], zero), to=np.int32), keepdims=False), np.int32(0)
        )
        return left

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
