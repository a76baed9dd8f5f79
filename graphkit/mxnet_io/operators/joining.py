"""Operators that join and split tensors: Concat, stack, SliceChannel and others."""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.ir.graph import Value
from graphkit.mxnet_io.call import Call, converter, rank_of, reshape
from graphkit.mxnet_io.operators.slices import END, sliced
from graphkit.ops import F
from graphkit.ops.axes import i64


@converter("Concat", "concat", "_rnn_param_concat", "_npi_rnn_param_concat")
def concat(call: Call) -> Value:
    return _joined(call, call.operands(), call.attributes.integer("axis" if "axis" in call.attributes else "dim", 1))


@converter("_npi_concatenate")
def concatenate(call: Call) -> Value:
    """With axis None, the operands are flattened."""
    call.attributes.ignore("dim")
    axis = call.attributes.axis(0)
    if axis is None:
        return _joined(call, [reshape(v, [-1]) for v in call.operands()], 0)
    return _joined(call, call.operands(), axis)


def _joined(call: Call, operands: list[Value], axis: int) -> Value:
    result: Value = F.concat(*operands, axis=axis, name=call.name)
    return result


def _at_least(x: Value, rank: int) -> Value:
    """Give a tensor of a lower rank leading axes of size 1."""
    missing = rank - rank_of(x)
    result: Value = F.unsqueeze(x, i64(*range(missing))) if missing > 0 else x
    return result


@converter("_npi_vstack")
def vstack(call: Call) -> Value:
    return _joined(call, [_at_least(v, 2) for v in call.operands()], 0)


@converter("_npi_hstack")
def hstack(call: Call) -> Value:
    call.attributes.ignore("dim")
    operands = [_at_least(v, 1) for v in call.operands()]
    return _joined(call, operands, min(1, rank_of(operands[0]) - 1))


@converter("_npi_dstack")
def dstack(call: Call) -> Value:
    call.attributes.ignore("dim")
    matrices = [_at_least(v, 2) for v in call.operands()]
    return _joined(call, [F.unsqueeze(v, i64(2)) if v.rank == 2 else v for v in matrices], 2)


@converter("_npi_column_stack")
def column_stack(call: Call) -> Value:
    return _joined(call, [F.unsqueeze(v, i64(1)) if v.rank == 1 else v for v in call.operands()], 1)


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


@converter("_split_v2", "_npi_split", "_npi_hsplit", "_npi_dsplit")
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
        parts = [sliced(x, axis, a, b) for a, b in zip(begins, [*begins[1:], END], strict=True)]
    return [F.squeeze(part, i64(axis)) for part in parts] if squeezed else parts
