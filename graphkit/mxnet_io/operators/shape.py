"""Operators that move elements: Reshape, transpose, flip and others."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from graphkit.errors import InvalidModel, UnsupportedError
from graphkit.ir.dims import is_static
from graphkit.ir.graph import Value
from graphkit.mxnet_io.call import (
    Call,
    axis_of,
    converter,
    flattened,
    rank_of,
    reshape,
    shape_of,
    sizes_of,
    static_sizes,
    transpose,
)
from graphkit.ops import F, constant
from graphkit.ops.axes import i64, reshape_like

_END = np.iinfo(np.int64).max


# --- reshaping ------------------------------------------------------------------------------------------


@converter("Reshape", "reshape")
def reshaped(call: Call) -> Value:
    """0 copies a size, -1 is inferred, -2 copies all that remain, -3 joins two, -4 splits one into the two that follow.

    With reverse, the codes apply from the last axis on.
    """
    attributes = call.attributes
    codes = attributes.integers("shape") or attributes.integers("target_shape")
    reverse = attributes.flag("reverse", False)
    attributes.ignore("target_shape")
    if attributes.flag("keep_highest", False):
        codes = (0, *codes[1:])
    x = call.x
    if codes.count(-1) <= 1 and all(code > 0 or code == -1 for code in codes):
        return reshape(x, codes)
    return joined_sizes(x, target_sizes(codes, rank_of(x), reverse))


@converter("_np_reshape")
def numpy_reshaped(call: Call) -> Value:
    attributes = call.attributes
    if attributes.text("order", "C") != "C":
        raise UnsupportedError("order: only row-major order (C) is supported")
    result: Value = F.reshape(call.x, i64(*attributes.integers("newshape")), allowzero=True)
    return result


# The codes of _npx_reshape, except -3, in those of Reshape.
_NPX_CODES = {-1: -1, -2: 0, -4: -2, -5: -3, -6: -4}


@converter("_npx_reshape", "_npi_reshape")
def npx_reshaped(call: Call) -> Value:
    """As Reshape with other codes: -2 copies a size, -3 drops an axis of size 1, -4 copies all that remain, -5 joins
    two, -6 splits one into the two that follow.
    """
    attributes = call.attributes
    codes, reverse = attributes.integers("newshape"), attributes.flag("reverse", False)
    attributes.ignore("order")
    x = call.x
    if -3 in codes:
        x, codes = _without_dropped(x, codes, reverse)
    bad = [code for code in codes if code < 0 and code not in _NPX_CODES]
    if bad or 0 in codes:
        raise UnsupportedError(f"newshape {codes}")
    return joined_sizes(x, target_sizes([_NPX_CODES.get(code, code) for code in codes], rank_of(x), reverse))


def _without_dropped(x: Value, codes: tuple[int, ...], reverse: bool) -> tuple[Value, tuple[int, ...]]:
    """Remove the axes that the codes -3 drop, and these codes. Other codes before a -3 must each use one axis."""
    ordered = codes[::-1] if reverse else codes
    last = len(ordered) - ordered[::-1].index(-3)
    if any(code not in (-2, -3) and code < 1 for code in ordered[:last]):
        raise UnsupportedError(f"newshape {codes}: -3 after a code that uses several axes, or an unknown number")
    rank = rank_of(x)
    axes = [rank - 1 - i if reverse else i for i, code in enumerate(ordered) if code == -3]
    return F.squeeze(x, i64(*axes)), tuple(code for code in codes if code != -3)


def target_sizes(codes: Sequence[int], rank: int, reverse: bool = False) -> list[int | tuple[int, ...]]:
    """Return the sizes of a result: a number, -1 for the size to infer, or the axes whose sizes are multiplied."""
    if reverse:
        mirrored = target_sizes(codes[::-1], rank)
        flipped = [size if isinstance(size, int) else tuple(rank - 1 - axis for axis in size) for size in mirrored]
        return flipped[::-1]
    sizes: list[int | tuple[int, ...]] = []
    axis, position = 0, 0
    while position < len(codes):
        code = codes[position]
        position += 1
        if code == 0:
            sizes.append((axis,))
            axis += 1
        elif code == -2:
            sizes += [(i,) for i in range(axis, rank)]
            axis = rank
        elif code == -3:
            sizes.append((axis, axis + 1))
            axis += 2
        elif code == -4:
            sizes += codes[position : position + 2]
            position += 2
            axis += 1
        else:
            sizes.append(code)
            axis += 1
    if any(axis >= rank for size in sizes if not isinstance(size, int) for axis in size):
        raise InvalidModel(f"shape {tuple(codes)} refers to an axis that a tensor of rank {rank} does not have")
    return sizes


def joined_sizes(x: Value, sizes: Sequence[int | tuple[int, ...]]) -> Value:
    """Reshape to sizes that may be products of sizes of x. At most one of those that are not known becomes -1."""
    shape = shape_of(x)
    plain: list[int] = []
    unknown: list[int] = []
    for index, size in enumerate(sizes):
        if isinstance(size, int):
            plain.append(size)
            continue
        found = [shape[axis] for axis in size]
        known = [int(d) for d in found if is_static(d)]
        if len(known) == len(found):
            plain.append(math.prod(known))
        elif size == (index,):
            plain.append(0)  # ONNX's code for the size at the same position
        else:
            plain.append(-1)
            unknown.append(index)
    if plain.count(-1) <= 1:
        return reshape(x, plain)
    parts = []
    for index, number in enumerate(plain):
        size = sizes[index]
        if index in unknown and not isinstance(size, int):
            parts.append(F.reduce_prod(sizes_of(x, *size), i64(0), keepdims=True))
        else:
            parts.append(sizes_of(x, index) if number == 0 else constant(i64(number)))
    result: Value = F.reshape(x, F.concat(*parts, axis=0))
    return result


@converter("Flatten", "flatten", "_npx_batch_flatten")
def flatten(call: Call) -> Value:
    return flattened(call.x)


@converter("reshape_like", "_npx_reshape_like")
def reshaped_like(call: Call) -> Value:
    """Replace the axes lhs_begin to lhs_end by the axes rhs_begin to rhs_end of the second operand (default: all)."""
    attributes = call.attributes
    x, like = call[0], call[1]
    begins, ends = [], []
    for value, prefix in ((x, "lhs"), (like, "rhs")):
        rank = rank_of(value)
        begin, end = attributes.integer(f"{prefix}_begin", 0), attributes.integer(f"{prefix}_end", rank)
        begins.append(begin + rank if begin < 0 else begin)
        ends.append(end + rank if end < 0 else end)
    if begins == [0, 0] and ends == [rank_of(x), rank_of(like)]:
        result: Value = reshape_like(x, like)
        return result
    before, after = range(begins[0]), range(ends[0], rank_of(x))
    parts = [(x, before), (like, range(begins[1], ends[1])), (x, after)]
    sizes = [sizes_of(value, *axes) for value, axes in parts if axes]
    result = F.reshape(x, F.concat(*sizes, axis=0), name=call.name)
    return result


@converter("expand_dims", "_npi_expand_dims")
def expand_dims(call: Call) -> Value:
    result: Value = F.unsqueeze(call.x, i64(call.attributes.integer("axis", 0)), name=call.name)
    return result


@converter("squeeze", "_npi_squeeze", "_np_squeeze")
def squeeze(call: Call) -> Value:
    """Remove axes of size 1. If all axes would go, MXNet's operator keeps one; numpy's does not."""
    x = call.x
    axes = call.attributes.integers("axis")
    if not axes:
        axes = tuple(i for i, size in enumerate(static_sizes(x, range(rank_of(x)))) if size == 1)
    result: Value = F.squeeze(x, i64(*axes), name=call.name) if axes else x
    return reshape(result, [1]) if result.rank == 0 and not call.op.startswith("_np") else result


@converter("transpose", "_np_transpose", "_npi_transpose")
def transposed(call: Call) -> Value:
    x = call.x
    axes = call.attributes.integers("axes") or tuple(range(rank_of(x)))[::-1]
    return transpose(x, *(axis_of(x, axis) for axis in axes))


@converter("SwapAxis", "swapaxes", "_npi_swapaxes")
def swap_axes(call: Call) -> Value:
    x = call.x
    first, second = (axis_of(x, call.attributes.integer(name, 0)) for name in ("dim1", "dim2"))
    order = list(range(rank_of(x)))
    order[first], order[second] = second, first
    return transpose(x, *order)


@converter("_np_moveaxis")
def move_axes(call: Call) -> Value:
    x = call.x
    rank = rank_of(x)
    sources, targets = ([axis_of(x, a) for a in call.attributes.integers(n)] for n in ("source", "destination"))
    order = [axis for axis in range(rank) if axis not in sources]
    for target, source in sorted(zip(targets, sources, strict=True)):
        order.insert(target, source)
    return transpose(x, *order)


@converter("reverse", "flip", "_npi_flip")
def reverse(call: Call) -> Value:
    x = call.x
    axes = call.attributes.integers("axis") or tuple(range(rank_of(x)))
    return _reversed(x, *axes)


def _reversed(x: Value, *axes: int) -> Value:
    minus = [-1] * len(axes)
    result: Value = F.slice(x, i64(*minus), i64(*(-_END for _ in axes)), i64(*axes), i64(*minus))
    return result


@converter("_npi_rot90")
def rotated(call: Call) -> Value:
    """Rotate by k times 90 degrees from the first of the axes to the second."""
    x = call.x
    turns = call.attributes.integer("k", 1) % 4
    first, second = (axis_of(x, axis) for axis in call.attributes.integers("axes", (0, 1)))
    order = list(range(rank_of(x)))
    order[first], order[second] = second, first
    if turns == 0:
        return x
    if turns == 2:
        return _reversed(x, first, second)
    return _reversed(transpose(x, *order), first) if turns == 1 else transpose(_reversed(x, first), *order)


@converter("_np_roll")
def roll(call: Call) -> Value:
    """Shift the elements along axes; what leaves at one end enters at the other. Without axes, the flat tensor."""
    shifts, axes = call.attributes.integers("shift"), call.attributes.integers("axis")
    x = call.x
    y = x if axes else reshape(x, [-1])
    axes = axes or (0,)
    for shift, axis in zip(shifts * len(axes) if len(shifts) == 1 else shifts, axes, strict=True):
        (size,) = static_sizes(y, [axis_of(y, axis)])
        cut = -shift % size if size else 0
        places = i64(axis)
        y = F.concat(F.slice(y, i64(cut), i64(_END), places), F.slice(y, i64(0), i64(cut), places), axis=axis)
    result: Value = y if call.attributes.integers("axis") else reshape_like(y, x)
    return result


@converter("depth_to_space")
def depth_to_space(call: Call) -> Value:
    result: Value = F.depth_to_space(call.x, blocksize=call.attributes.integer("block_size", 1), name=call.name)
    return result


@converter("space_to_depth")
def space_to_depth(call: Call) -> Value:
    result: Value = F.space_to_depth(call.x, blocksize=call.attributes.integer("block_size", 1), name=call.name)
    return result


@converter("shape_array", "_npx_shape_array")
def shape_array(call: Call) -> Value:
    result: Value = F.shape(call.x, name=call.name)
    return result


@converter("size_array")
def size_array(call: Call) -> Value:
    result: Value = F.unsqueeze(F.size(call.x), i64(0))
    return result
