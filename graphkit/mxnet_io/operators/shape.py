"""Operators that move elements: Reshape, transpose, Concat, slices, Pad, tile and others."""

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
    scalar,
    shape_of,
    sizes_of,
    static_sizes,
    transpose,
)
from graphkit.ops import F, constant
from graphkit.ops.axes import i64, reshape_like

_END = np.iinfo(np.int64).max


# --- reshaping ------------------------------------------------------------------------------------------


@converter("Reshape", "reshape", "_npx_reshape", "_np_reshape", "_npi_reshape")
def reshaped(call: Call) -> Value:
    """0 copies a size, -1 is inferred, -2 copies all that remain, -3 joins two, -4 splits one into the two that follow.

    With reverse, the codes apply from the last axis on.
    """
    attributes = call.attributes
    attributes.ignore("order")
    if call.op not in ("Reshape", "reshape"):
        return reshape(call.x, attributes.integers("newshape" if "newshape" in attributes else "shape"))
    codes = attributes.integers("shape") or attributes.integers("target_shape")
    reverse = attributes.flag("reverse", False)
    attributes.ignore("target_shape")
    if attributes.flag("keep_highest", False):
        codes = (0, *codes[1:])
    x = call.x
    if codes.count(-1) <= 1 and all(code > 0 or code == -1 for code in codes):
        return reshape(x, codes)
    return joined_sizes(x, target_sizes(codes, rank_of(x), reverse))


def target_sizes(codes: Sequence[int], rank: int, reverse: bool = False) -> list[int | tuple[int, ...]]:
    """Return the sizes of a result: a number, -1 for the size to infer, or the axes whose sizes are multiplied."""
    if reverse:
        # From the last axis on: a code -4 is followed by its two sizes in the given order.
        mirrored = target_sizes(_mirrored(codes), rank)
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


def _mirrored(codes: Sequence[int]) -> list[int]:
    """Reverse codes, keeping each -4 before its two sizes."""
    found: list[list[int]] = []
    position = 0
    while position < len(codes):
        width = 3 if codes[position] == -4 else 1
        part = list(codes[position : position + width])
        found.append([part[0], *part[:0:-1]] if width == 3 else part)
        position += width
    return [code for part in reversed(found) for code in part]


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
    for name in ("lhs_begin", "lhs_end", "rhs_begin", "rhs_end"):
        if call.attributes.optional_integer(name) is not None:
            raise UnsupportedError(f"{name}: reshape_like of some axes")
    result: Value = reshape_like(call[0], call[1])
    return result


@converter("expand_dims", "_npi_expand_dims")
def expand_dims(call: Call) -> Value:
    result: Value = F.unsqueeze(call.x, i64(call.attributes.integer("axis", 0)), name=call.name)
    return result


@converter("squeeze", "_npi_squeeze", "_np_squeeze")
def squeeze(call: Call) -> Value:
    axes = call.attributes.integers("axis")
    result: Value = F.squeeze(call.x, i64(*axes) if axes else None, name=call.name)
    return result


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


# --- joining and splitting -------------------------------------------------------------------------------


@converter("Concat", "concat", "_npi_concatenate", "_rnn_param_concat")
def concat(call: Call) -> Value:
    axis = call.attributes.integer("axis" if "axis" in call.attributes else "dim", 1)
    result: Value = F.concat(*call.operands(), axis=axis, name=call.name)
    return result


@converter("stack", "_npi_stack")
def stack(call: Call) -> Value:
    axis = call.attributes.integer("axis", 0)
    operands = call.operands()
    axis += rank_of(operands[0]) + 1 if axis < 0 else 0
    result: Value = F.concat(*(F.unsqueeze(v, i64(axis)) for v in operands), axis=axis, name=call.name)
    return result


@converter("SliceChannel", "split")
def slice_channel(call: Call) -> list[Value]:
    attributes = call.attributes
    count, axis = attributes.integer("num_outputs", 1), attributes.integer("axis", 1)
    return _split(call, [], count, axis, attributes.flag("squeeze_axis", False))


@converter("_split_v2", "_npi_split", "_npi_array_split")
def split_v2(call: Call) -> list[Value]:
    """Split into `sections` equal parts, or before each of `indices`; the first index, 0, begins the first part."""
    attributes = call.attributes
    axis, squeezed = attributes.integer("axis", 0), attributes.flag("squeeze_axis", False)
    return _split(call, attributes.integers("indices"), attributes.integer("sections", 0), axis, squeezed)


def _split(call: Call, starts: Sequence[int], count: int, axis: int, squeezed: bool) -> list[Value]:
    x = call.x
    if count:
        parts = F.split(x, axis=axis, num_outputs=count, name=call.name)
        parts = list(parts) if isinstance(parts, tuple) else [parts]
    else:
        begins = list(starts) if starts[:1] == (0,) else [0, *starts]
        (size,) = static_sizes(x, [axis_of(x, axis)])
        parts = [_sliced(x, axis, a, b) for a, b in zip(begins, [*begins[1:], size], strict=True)]
    return [F.squeeze(part, i64(axis)) for part in parts] if squeezed else parts


def _sliced(x: Value, axis: int, begin: int, end: int) -> Value:
    result: Value = F.slice(x, i64(begin), i64(end), i64(axis))
    return result


# --- slices -----------------------------------------------------------------------------------------------


@converter("slice_axis")
def slice_axis(call: Call) -> Value:
    attributes = call.attributes
    begin, end = attributes.integer("begin", 0), attributes.optional_integer("end")
    return _sliced(call.x, attributes.integer("axis", 0), begin, _END if end is None else end)


@converter("slice", "crop", "_npi_slice")
def slice_(call: Call) -> Value:
    """Numpy's slices of the first axes. A step that is None is 1; with a negative step, None means from the end."""
    attributes = call.attributes
    begin, end = attributes.optional_integers("begin"), attributes.optional_integers("end")
    steps = attributes.optional_integers("step") or (None,) * len(begin)
    step = [1 if s is None else s for s in steps]
    first = [(0 if s > 0 else _END) if b is None else b for b, s in zip(begin, step, strict=True)]
    last = [(_END if s > 0 else -_END) if e is None else e for e, s in zip(end, step, strict=True)]
    result: Value = F.slice(call.x, i64(*first), i64(*last), i64(*range(len(begin))), i64(*step), name=call.name)
    return result


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


# --- repeating and padding ----------------------------------------------------------------------------------


@converter("Pad", "pad")
def pad(call: Call) -> Value:
    """pad_width has (before, after) of each axis; its four first numbers are 0."""
    attributes = call.attributes
    mode = attributes.choice("mode", "constant", "edge", "reflect")
    widths = attributes.integers("pad_width")
    x = call.x
    pads = i64(*widths[0::2], *widths[1::2])
    filling = attributes.number("constant_value", 0.0)
    number = scalar(filling, x) if mode == "constant" else None
    result: Value = F.pad(x, pads, number, mode=mode, name=call.name)
    return result


@converter("tile", "_npi_tile")
def tile(call: Call) -> Value:
    """Numpy's tile: the shorter of the shape and reps gets leading ones."""
    x = call.x
    reps = call.attributes.integers("reps")
    rank = max(len(reps), rank_of(x))
    if rank > rank_of(x):
        x = F.unsqueeze(x, i64(*range(rank - rank_of(x))))
    result: Value = F.tile(x, i64(*(1,) * (rank - len(reps)), *reps), name=call.name)
    return result


@converter("repeat", "_np_repeat", "_npi_repeats")
def repeat(call: Call) -> Value:
    """Repeat each element along an axis; without an axis, of the flat tensor."""
    count, axis = call.attributes.integer("repeats", 1), call.attributes.optional_integer("axis")
    x = reshape(call.x, [-1]) if axis is None else call.x
    axis = 0 if axis is None else axis_of(x, axis)
    wide = F.unsqueeze(x, i64(axis + 1))
    counts = [1] * (rank_of(x) + 1)
    counts[axis + 1] = count
    sizes: list[int | tuple[int, ...]] = [(i,) for i in range(rank_of(x) + 1)]
    sizes[axis : axis + 2] = [(axis, axis + 1)]
    return joined_sizes(F.tile(wide, i64(*counts)), sizes)


@converter("reverse", "flip", "_npi_flip")
def reverse(call: Call) -> Value:
    x = call.x
    axes = call.attributes.integers("axis") or tuple(range(rank_of(x)))
    minus = [-1] * len(axes)
    result: Value = F.slice(x, i64(*minus), i64(*(-_END for _ in axes)), i64(*axes), i64(*minus), name=call.name)
    return result


@converter("broadcast_axis", "broadcast_axes")
def broadcast_axis(call: Call) -> Value:
    """Repeat axes of size 1."""
    x = call.x
    axes, sizes = call.attributes.integers("axis"), call.attributes.integers("size")
    wanted = [1] * rank_of(x)
    for axis, size in zip(axes, sizes, strict=True):
        wanted[axis_of(x, axis)] = size
    result: Value = F.expand(x, i64(*wanted), name=call.name)
    return result


@converter("broadcast_to", "_npi_broadcast_to")
def broadcast_to(call: Call) -> Value:
    """A size 0 keeps the operand's size."""
    x = call.x
    sizes = [max(size, 1) for size in call.attributes.integers("shape")]
    result: Value = F.expand(x, i64(*sizes), name=call.name)
    return result


@converter("broadcast_like", "_npx_broadcast_like")
def broadcast_like(call: Call) -> Value:
    attributes = call.attributes
    x, like = call[0], call[1]
    axes, others = attributes.integers("lhs_axes"), attributes.integers("rhs_axes")
    if not axes:
        result: Value = F.expand(x, F.shape(like), name=call.name)
        return result
    sizes = [constant(i64(1))] * rank_of(x)
    for axis, other in zip(axes, others, strict=True):
        sizes[axis_of(x, axis)] = sizes_of(like, axis_of(like, other))
    result = F.expand(x, F.concat(*sizes, axis=0), name=call.name)
    return result


@converter("depth_to_space")
def depth_to_space(call: Call) -> Value:
    result: Value = F.depth_to_space(call.x, blocksize=call.attributes.integer("block_size", 1), name=call.name)
    return result


@converter("space_to_depth")
def space_to_depth(call: Call) -> Value:
    result: Value = F.space_to_depth(call.x, blocksize=call.attributes.integer("block_size", 1), name=call.name)
    return result


@converter("shape_array")
def shape_array(call: Call) -> Value:
    result: Value = F.shape(call.x, name=call.name)
    return result


@converter("size_array")
def size_array(call: Call) -> Value:
    result: Value = F.unsqueeze(F.size(call.x), i64(0))
    return result
