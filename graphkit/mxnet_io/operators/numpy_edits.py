"""Operators of mx.np that insert and delete slices: insert, delete.

The positions are one integer, the start, stop and step of a slice, or a tensor of integers.
"""

from __future__ import annotations

import numpy as np

from graphkit.errors import InvalidModel
from graphkit.ir.dims import is_static
from graphkit.ir.graph import Value
from graphkit.mxnet_io.call import (
    Call,
    as_indices,
    axis_of,
    converter,
    rank_of,
    reshape,
    shape_of,
    sizes_of,
    static_sizes,
)
from graphkit.ops import F, constant
from graphkit.ops.axes import i64
from graphkit.passes.core.match import array_of


def _flattened(call: Call, x: Value) -> tuple[Value, int]:
    """Return x and the axis of the positions. Without an axis, x is flattened."""
    axis = call.attributes.optional_integer("axis")
    return (reshape(x, [-1]), 0) if axis is None else (x, axis_of(x, axis))


def _listed(call: Call, x: Value, axis: int) -> np.ndarray | int | None:
    """Return the positions that attributes determine: one, or those of a slice. None if an operand has them."""
    attributes = call.attributes
    one = attributes.optional_integer("int_ind")
    parts = [attributes.optional_integer(name) for name in ("start", "stop", "step")]
    if one is not None:
        return one
    if parts == [None] * 3 and not call.op.endswith("_slice"):
        return None
    return np.arange(static_sizes(x, [axis])[0])[slice(*parts)]


def _wrapped(positions: Value, size: Value) -> Value:
    """Count negative positions from the end."""
    result: Value = F.where(F.less(positions, np.int64(0)), F.add(positions, size), positions)
    return result


def _require_inside(x: Value, axis: int, positions: Value) -> None:
    """Raise InvalidModel if a position, where it and the size are known, is out of the axis."""
    size, known = shape_of(x)[axis], array_of(positions)
    if known is not None and is_static(size) and np.any((known < -size) | (known > size)):
        raise InvalidModel(f"the positions {known} are not all from -{size} to {size}, the size of axis {axis}")


@converter("_npi_insert_scalar", "_npi_insert_slice", "_npi_insert_tensor")
def insert(call: Call) -> Value:
    """Insert values before positions of the original axis. Several values may be inserted before one position."""
    x, axis = _flattened(call, call.x)
    rank, number = rank_of(x), call.attributes.optional_number("val")
    listed = _listed(call, x, axis)
    positions = reshape(as_indices(call[len(call) - 1]), [-1]) if listed is None else constant(i64(*np.ravel(listed)))
    values = call[1] if number is None else constant(np.asarray(number, x.dtype.numpy))
    values = values if values.dtype is x.dtype else F.cast(values, to=x.dtype)
    if (missing := rank - rank_of(values)) > 0:
        values = F.unsqueeze(values, i64(*range(missing)))
    _require_inside(x, axis, positions)
    if isinstance(listed, int):
        values = F.transpose(values, perm=(*range(1, axis + 1), 0, *range(axis + 1, rank)))
    (count,) = static_sizes(positions, [0])
    if count == 1:
        count = static_sizes(values, [axis])[0]
        positions = F.expand(positions, i64(count))
    size = F.squeeze(sizes_of(x, axis), i64(0))
    shape = [sizes_of(x, i) for i in range(rank)]
    shape[axis] = constant(i64(count))
    block = F.expand(values, F.concat(*shape, axis=0))
    # The element i of x has the key 2 i + 1, and a value that is inserted before it the key 2 i.
    old = F.range(np.int64(0), size, np.int64(1))
    keys = F.concat(F.mul(_wrapped(positions, size), np.int64(2)), F.add(F.mul(old, np.int64(2)), np.int64(1)), axis=0)
    order = F.top_k(keys, F.shape(keys), axis=0, largest=False)[1]
    result: Value = F.gather(F.concat(block, x, axis=axis), order, axis=axis, name=call.name)
    return result


@converter("_npi_delete")
def delete(call: Call) -> Value:
    """Delete slices. Positions in a tensor that are out of the axis have no effect."""
    x, axis = _flattened(call, call.x)
    listed = _listed(call, x, axis)
    if listed is not None:
        size = static_sizes(x, [axis])[0]
        try:
            left = np.delete(np.arange(size), listed)
        except IndexError as error:
            raise InvalidModel(str(error)) from None
        result: Value = F.gather(x, i64(*left), axis=axis, name=call.name)
        return result
    length = F.squeeze(sizes_of(x, axis), i64(0))
    positions = _wrapped(reshape(as_indices(call[1]), [-1]), length)
    inside = F.and_(F.greater_or_equal(positions, np.int64(0)), F.less(positions, length))
    # The last mark is that of positions out of the axis.
    marks = F.constant_of_shape(F.add(sizes_of(x, axis), np.int64(1)), value=np.zeros(1, np.int32))
    ones = F.constant_of_shape(F.shape(positions), value=np.ones(1, np.int32))
    marks = F.scatter_elements(marks, F.where(inside, positions, length), ones, axis=0)
    result = F.compress(x, F.equal(marks[:-1], np.int32(0)), axis=axis, name=call.name)
    return result
