"""Operators that select or place elements by position, and sorting."""

from __future__ import annotations

import numpy as np

from graphkit.errors import UnsupportedError
from graphkit.ir.graph import Value
from graphkit.mxnet_io.call import (
    Call,
    as_floats,
    as_indices,
    axis_of,
    converter,
    in_range,
    rank_of,
    require_elements,
    reshape,
    scalar,
    sizes_of,
)
from graphkit.ops import F, constant
from graphkit.ops.axes import i64


@converter("take", "_npi_take")
def take(call: Call) -> Value:
    """Rows, or slices along an axis. Indices outside are clipped, wrapped around, or an error (raise)."""
    attributes = call.attributes
    mode = attributes.choice("mode", "clip", "wrap", "raise")
    x, indices = call[0], as_indices(call[1])
    axis = axis_of(x, attributes.integer("axis", 0))
    if mode != "raise":
        indices = in_range(indices, sizes_of(x, axis), mode)
    result: Value = F.gather(x, indices, axis=axis, name=call.name)
    return result


@converter("batch_take")
def batch_take(call: Call) -> Value:
    """Element indices[i] of each row i."""
    x, indices = call[0], as_indices(call[1])
    found = F.gather_elements(x, F.unsqueeze(in_range(indices, sizes_of(x, 1), "clip"), i64(1)), axis=1)
    result: Value = F.squeeze(found, i64(1))
    return result


@converter("pick", "choose_element_0index", "_npx_pick")
def pick(call: Call) -> Value:
    """One element along an axis for each position of the other axes."""
    attributes = call.attributes
    mode = attributes.choice("mode", "clip", "wrap")
    kept = attributes.flag("keepdims", False)
    x, indices = call[0], as_indices(call[1])
    axis = axis_of(x, attributes.integer("axis", -1))
    if indices.rank != x.rank:
        indices = F.unsqueeze(indices, i64(axis))
    found = F.gather_elements(x, in_range(indices, sizes_of(x, axis), mode), axis=axis)
    result: Value = found if kept else F.squeeze(found, i64(axis))
    return result


@converter("gather_nd", "_npi_gather_nd", "_npx_gather_nd")
def gather_nd(call: Call) -> Value:
    """Indices [m, ...]: their first axis contains the positions along the first m axes."""
    indices = as_indices(call[1])
    rank = rank_of(indices)
    last = F.transpose(indices, perm=(*range(1, rank), 0))
    result: Value = F.gather_nd(call[0], last, name=call.name)
    return result


@converter("scatter_nd")
def scatter_nd(call: Call) -> Value:
    """A tensor of zeros with elements at positions as in gather_nd. Of equal positions, the last element remains."""
    data, indices = call[0], as_indices(call[1])
    rank = rank_of(indices)
    last = F.transpose(indices, perm=(*range(1, rank), 0))
    shape = call.attributes.integers("shape")
    zeros = F.constant_of_shape(i64(*shape), value=np.zeros(1, data.dtype.numpy))
    result: Value = F.scatter_nd(zeros, last, data, name=call.name)
    return result


@converter("one_hot", "_npx_one_hot")
def one_hot(call: Call) -> Value:
    """Rows of off_value with on_value at the index; an index outside gives off_value only."""
    attributes = call.attributes
    dtype = attributes.dtype("dtype", "float32")
    depth = attributes.integer("depth", 1)
    values = [attributes.number("off_value", 0.0), attributes.number("on_value", 1.0)]
    require_elements(depth)
    indices = F.unsqueeze(as_indices(call.x), i64(-1))
    hits = F.equal(indices, constant(np.arange(depth)))
    off, on = (constant(np.asarray(value, dtype.numpy)) for value in values)
    result: Value = F.where(hits, on, off, name=call.name)
    return result


# --- sorting --------------------------------------------------------------------------------------------------


def _ordered(call: Call, x: Value, axis: int, count: Value, ascending: bool) -> tuple[Value, Value]:
    values, places = F.top_k(x, count, axis=axis, largest=not ascending, name=call.name)
    return values, places


def _with_axis(call: Call) -> tuple[Value, int]:
    """Return the operand and the axis, which is the last by default; with axis None, the flat operand."""
    axis = call.attributes.axis(-1)
    return (reshape(call.x, [-1]), 0) if axis is None else (call.x, axis_of(call.x, axis))


@converter("topk", "_npx_topk")
def topk(call: Call) -> Value | list[Value]:
    """The k largest, or smallest, elements along an axis: values, indices, both, or a mask."""
    attributes = call.attributes
    kind = attributes.choice("ret_typ", "indices", "value", "both", "mask")
    dtype = attributes.dtype("dtype", "float32")
    ascending, count = attributes.flag("is_ascend", False), attributes.integer("k", 1)
    x, axis = _with_axis(call)
    size = sizes_of(x, axis)
    wanted = F.min(constant(i64(count)), size) if count > 0 else size
    values, places = _ordered(call, x, axis, wanted, ascending)
    if kind == "mask":
        ones = F.constant_of_shape(F.shape(values), value=np.ones(1, x.dtype.numpy))
        zeros = F.constant_of_shape(F.shape(x), value=np.zeros(1, x.dtype.numpy))
        result: Value = F.scatter_elements(zeros, places, ones, axis=axis)
        return result
    indices = F.cast(places, to=dtype)
    if kind == "both":
        return [values, indices]
    return values if kind == "value" else indices


@converter("sort", "_npi_sort")
def sort(call: Call) -> Value:
    ascending = call.attributes.flag("is_ascend", True)
    x, axis = _with_axis(call)
    return _ordered(call, x, axis, sizes_of(x, axis), ascending)[0]


@converter("argsort", "_npi_argsort")
def argsort(call: Call) -> Value:
    ascending, dtype = call.attributes.flag("is_ascend", True), call.attributes.dtype("dtype", "float32")
    x, axis = _with_axis(call)
    places = _ordered(call, x, axis, sizes_of(x, axis), ascending)[1]
    result: Value = F.cast(places, to=dtype)
    return result


@converter("_npi_unique")
def unique(call: Call) -> Value | list[Value]:
    """The different elements, ascending; on request their first positions, the position of each element, and counts."""
    attributes = call.attributes
    axis = attributes.optional_integer("axis")
    wanted = [attributes.flag(f"return_{name}", False) for name in ("index", "inverse", "counts")]
    found, *others = F.unique(call.x, axis=axis, sorted=True, name=call.name)
    chosen = [value for value, there in zip(others, wanted, strict=True) if there]
    result: Value = found
    return [result, *chosen] if chosen else result


@converter("_contrib_boolean_mask", "_npi_boolean_mask")
def boolean_mask(call: Call) -> Value:
    axis = call.attributes.integer("axis", 0)
    mask = call[1]
    result: Value = F.compress(call[0], F.not_(F.equal(mask, scalar(0.0, mask))), axis=axis, name=call.name)
    return result


@converter("_contrib_index_copy")
def index_copy(call: Call) -> Value:
    """Replace rows of the first operand."""
    rows = F.unsqueeze(as_indices(call[1]), i64(-1))
    result: Value = F.scatter_nd(call[0], rows, call[2], name=call.name)
    return result


@converter("_contrib_index_array")
def index_array(call: Call) -> Value:
    """The position of each element along `axes`, as int64 [*shape, axes]."""
    x = call.x
    axes = [axis_of(x, axis) for axis in call.attributes.integers("axes")] or list(range(rank_of(x)))
    parts = []
    for axis in axes:
        shape = [1] * rank_of(x)
        shape[axis] = -1
        count = F.squeeze(sizes_of(x, axis), i64(0))
        line = reshape(F.range(np.int64(0), count, np.int64(1)), shape)
        parts.append(F.unsqueeze(F.expand(line, F.shape(x)), i64(-1)))
    result: Value = F.concat(*parts, axis=-1)
    return result


@converter("ravel_multi_index", "unravel_index", "_ravel_multi_index", "_unravel_index")
def raveled(call: Call) -> Value:
    """Convert between positions along axes, [axes, ...], and positions in the flat tensor."""
    shape = call.attributes.integers("shape")
    if any(size <= 0 for size in shape[1:]):
        raise UnsupportedError(f"shape {shape}")
    strides = [int(np.prod(shape[i + 1 :])) for i in range(len(shape))]
    x = call.x
    indices = as_indices(x)
    if call.op.endswith("ravel_multi_index"):
        weights = reshape(constant(i64(*strides)), [-1] + [1] * (rank_of(x) - 1))
        return as_floats(F.reduce_sum(F.mul(indices, weights), i64(0), keepdims=False), x)
    parts: list[Value] = []
    for stride, size in zip(strides, shape, strict=True):
        quotient = F.div(indices, np.int64(stride))
        parts.append(F.unsqueeze(quotient if not parts else F.mod(quotient, np.int64(size)), i64(0)))
    return as_floats(F.concat(*parts, axis=0), x)
