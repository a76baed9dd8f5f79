"""Operators on batches of sequences of different lengths: [time, batch, ...], or [batch, time, ...] with axis 1."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphkit.errors import InvalidModel
from graphkit.ir.graph import Value
from graphkit.mxnet_io.call import Call, along_axis, as_indices, converter, rank_of, scalar, sizes_of
from graphkit.ops import F
from graphkit.ops.axes import i64


def positions_below(x: Value, lengths: Value, axis: int, others: Sequence[int]) -> Value:
    """Return a mask, broadcast to x: whether the position along `axis` is below the length.

    others: the axes of x that the axes of `lengths` belong to.
    """
    rank = rank_of(x)
    count = F.squeeze(sizes_of(x, axis), i64(0))
    positions = along_axis(F.range(np.int64(0), count, np.int64(1)), axis, rank)
    missing = [i for i in range(rank) if i not in others]
    bounds = F.unsqueeze(as_indices(lengths), i64(*missing)) if missing else as_indices(lengths)
    result: Value = F.less(positions, bounds)
    return result


def _lengths(call: Call) -> tuple[Value, Value | None, int]:
    """Return the data, the lengths if they are used, and the axis of time, 0 or 1."""
    axis = call.attributes.integer("axis", 0)
    if axis not in (0, 1):
        raise InvalidModel(f"axis {axis}: time is axis 0 or 1")
    used = call.attributes.flag("use_sequence_length", False)
    return call[0], call[1] if used else None, axis


@converter("SequenceMask", "_npx_sequence_mask")
def sequence_mask(call: Call) -> Value:
    """Replace the elements after the end of each sequence by a number."""
    number = call.attributes.number("value", 0.0)
    x, lengths, axis = _lengths(call)
    if lengths is None:
        return x
    result: Value = F.where(positions_below(x, lengths, axis, [1 - axis]), x, scalar(number, x), name=call.name)
    return result


@converter("SequenceLast")
def sequence_last(call: Call) -> Value:
    """The last element of each sequence."""
    x, lengths, axis = _lengths(call)
    if lengths is None:
        result: Value = F.gather(x, np.int64(-1), axis=axis, name=call.name)
        return result
    rank = rank_of(x)
    last = along_axis(F.sub(as_indices(lengths), np.int64(1)), 1 - axis, rank)
    shape = [sizes_of(x, i) for i in range(rank)]
    shape[axis] = F.div(shape[axis], shape[axis])  # 1
    found = F.gather_elements(x, F.expand(last, F.concat(*shape, axis=0)), axis=axis)
    result = F.squeeze(found, i64(axis))
    return result


@converter("SequenceReverse")
def sequence_reverse(call: Call) -> Value:
    """Reverse each sequence; elements after its end stay where they are."""
    x, lengths, axis = _lengths(call)
    if lengths is None:
        result: Value = F.slice(x, i64(-1), i64(-np.iinfo(np.int64).max), i64(axis), i64(-1), name=call.name)
        return result
    result = F.reverse_sequence(x, as_indices(lengths), time_axis=axis, batch_axis=1 - axis, name=call.name)
    return result
