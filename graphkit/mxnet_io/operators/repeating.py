"""Operators that repeat elements: padding, tile, repeat and broadcasting."""

from __future__ import annotations

from graphkit.errors import InvalidModel, UnsupportedError
from graphkit.ir.graph import Value
from graphkit.mxnet_io.call import Call, axis_of, converter, rank_of, reshape, scalar, sizes_of
from graphkit.mxnet_io.operators.shape import joined_sizes
from graphkit.ops import F, constant
from graphkit.ops.axes import i64


@converter("Pad", "pad")
def pad(call: Call) -> Value:
    """pad_width has (before, after) of each axis; its four first numbers are 0."""
    attributes = call.attributes
    mode = attributes.choice("mode", "constant", "edge", "reflect")
    widths = attributes.integers("pad_width")
    x = call.x
    pads = i64(*widths[0::2], *widths[1::2])
    value = attributes.number("constant_value", 0.0)
    number = scalar(value, x) if mode == "constant" else None
    result: Value = F.pad(x, pads, number, mode=mode, name=call.name)
    return result


_NUMPY_MODES = ("constant", "edge", "reflect")


@converter("_npi_pad")
def numpy_pad(call: Call) -> Value:
    """pad_width has a pair (before, after) for each axis."""
    attributes = call.attributes
    mode = attributes.text("mode", "constant")
    if mode not in _NUMPY_MODES:
        raise UnsupportedError(f"mode {mode}")
    if attributes.text("reflect_type", "even") != "even":
        raise UnsupportedError("reflect_type odd")
    widths = attributes.pairs("pad_width")
    x = call.x
    if len(widths) != rank_of(x):
        raise InvalidModel(f"pad_width has {len(widths)} pairs; the operand has {rank_of(x)} axes")
    value = attributes.number("constant_value", 0.0)
    number = scalar(value, x) if mode == "constant" else None
    pads = i64(*(before for before, _ in widths), *(after for _, after in widths))
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
