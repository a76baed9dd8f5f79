"""Operators that cut out parts: slices, Crop, diagonals and triangles."""

from __future__ import annotations

import math

import numpy as np

from graphkit.frontend import linalg
from graphkit.ir.graph import Value
from graphkit.mxnet_io.call import (
    Call,
    axis_of,
    converter,
    rank_of,
    require_elements,
    scalar,
    sizes_of,
    static_sizes,
    transpose,
)
from graphkit.named_tuples import NamedTuple
from graphkit.ops import F, constant
from graphkit.ops.axes import i64

END = np.iinfo(np.int64).max


def sliced(x: Value, axis: int, begin: int, end: int) -> Value:
    result: Value = F.slice(x, i64(begin), i64(end), i64(axis))
    return result


@converter("slice_axis")
def slice_axis(call: Call) -> Value:
    attributes = call.attributes
    begin, end = attributes.integer("begin", 0), attributes.optional_integer("end")
    return sliced(call.x, attributes.integer("axis", 0), begin, END if end is None else end)


class _Range(NamedTuple):
    """Begins, ends and steps of a slice of the first axes, in the form of ONNX's Slice."""

    begin: list[int]
    end: list[int]
    step: list[int]


def _range(call: Call) -> _Range:
    """Read begin, end and step. A step that is None is 1; with a negative step, None means from the end."""
    attributes = call.attributes
    begin, end = attributes.optional_integers("begin"), attributes.optional_integers("end")
    steps = attributes.optional_integers("step") or (None,) * len(begin)
    step = [1 if s is None else s for s in steps]
    first = [(0 if s > 0 else END) if b is None else b for b, s in zip(begin, step, strict=True)]
    last = [(END if s > 0 else -END) if e is None else e for e, s in zip(end, step, strict=True)]
    return _Range(first, last, step)


@converter("slice", "crop", "_npi_slice", "_npx_slice")
def slice_(call: Call) -> Value:
    """Numpy's slices of the first axes."""
    places = _range(call)
    axes = range(len(places.begin))
    result: Value = F.slice(call.x, i64(*places.begin), i64(*places.end), i64(*axes), i64(*places.step), name=call.name)
    return result


@converter("_slice_assign", "_crop_assign", "_npi_slice_assign")
def slice_assign(call: Call) -> Value:
    """Replace the elements of a slice of the first operand by the second."""
    return _assigned(call, call[1])


@converter("_slice_assign_scalar", "_crop_assign_scalar", "_npi_slice_assign_scalar")
def slice_assign_scalar(call: Call) -> Value:
    return _assigned(call, scalar(call.attributes.number("scalar", 0.0), call.x))


def _assigned(call: Call, new: Value) -> Value:
    x = call.x
    shape = static_sizes(x, range(rank_of(x)))
    places = _range(call)
    cut = tuple(slice(*_numpy_bounds(*part)) for part in zip(*places, strict=True))
    require_elements(*shape)
    chosen = np.arange(math.prod(shape), dtype=np.int64).reshape(shape)[cut]
    flat = F.scatter_elements(
        F.reshape(x, i64(-1)),
        chosen.ravel(),
        F.reshape(F.expand(new, i64(*chosen.shape)), i64(-1)),
        axis=0,
    )
    result: Value = F.reshape(flat, i64(*shape), name=call.name)
    return result


def _numpy_bounds(begin: int, end: int, step: int) -> tuple[int | None, int | None, int]:
    return None if begin == END else begin, None if abs(end) == END else end, step


@converter("slice_like")
def slice_like(call: Call) -> Value:
    """Cut x to the sizes of the second operand along some axes (default: all)."""
    x, like = call[0], call[1]
    axes = tuple(axis_of(x, axis) for axis in call.attributes.integers("axes")) or tuple(range(rank_of(x)))
    result: Value = F.slice(x, i64(*(0 for _ in axes)), sizes_of(like, *axes), i64(*axes), name=call.name)
    return result


@converter("Crop")
def crop(call: Call) -> Value:
    """Cut images to h_w, or to the size of the second operand: at an offset, or in the centre."""
    attributes = call.attributes
    offset = attributes.integers("offset", (0, 0))
    size = attributes.integers("h_w", (0, 0))
    centred = attributes.flag("center_crop", False)
    x = call[0]
    wanted = sizes_of(call[1], 2, 3) if len(call) == 2 else constant(i64(*size))
    if centred:
        begin: Value = F.div(F.sub(sizes_of(x, 2, 3), wanted), constant(i64(2)))
    else:
        begin = constant(i64(*offset))
    result: Value = F.slice(x, begin, F.add(begin, wanted), i64(2, 3), name=call.name)
    return result


# --- diagonals and triangles ------------------------------------------------------------------------------


@converter("diag", "_np_diag")
def diag(call: Call) -> Value:
    """The matrix that has a vector on its diagonal k; of a tensor, the diagonals over two axes, as the last axis."""
    attributes = call.attributes
    offset = attributes.integer("k", 0)
    first, second = attributes.integer("axis1", 0), attributes.integer("axis2", 1)
    x = call.x
    return linalg.makediag(x, offset) if rank_of(x) == 1 else _diagonals(x, offset, first, second)


@converter("_np_diagonal")
def diagonal(call: Call) -> Value:
    attributes = call.attributes
    axes = attributes.integer("axis1", 0), attributes.integer("axis2", 1)
    return _diagonals(call.x, attributes.integer("offset", 0), *axes)


@converter("_np_trace")
def trace(call: Call) -> Value:
    result: Value = F.reduce_sum(diagonal(call), i64(-1), keepdims=False, name=call.name)
    return result


@converter("_np_diagflat")
def diag_flat(call: Call) -> Value:
    """The matrix that has the elements of the flat tensor on its diagonal k."""
    return linalg.makediag(F.reshape(call.x, i64(-1)), call.attributes.integer("k", 0))


def _diagonals(x: Value, offset: int, first: int, second: int) -> Value:
    first, second = axis_of(x, first), axis_of(x, second)
    others = (axis for axis in range(rank_of(x)) if axis not in (first, second))
    return linalg.extractdiag(transpose(x, *others, first, second), offset)


@converter("_npi_tril")
def tril(call: Call) -> Value:
    """Set the elements above diagonal k to 0. A vector is first repeated as the rows of a square matrix."""
    x = call.x
    if rank_of(x) == 1:
        (size,) = static_sizes(x, [0])
        x = F.expand(x, i64(size, size))
    result: Value = F.trilu(x, np.int64(call.attributes.integer("k", 0)), upper=False, name=call.name)
    return result
