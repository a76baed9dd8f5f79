"""Writers of operators that move elements, and of reductions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from graphkit.errors import UnsupportedError
from graphkit.ir.dims import is_static
from graphkit.ir.graph import Value
from graphkit.mxnet_io.writing import Entry, Writer, writes

_END = np.iinfo(np.int32).max


@writes("Reshape")
def reshape(writer: Writer) -> Entry:
    return writer.add("Reshape", [writer.entry(0)], shape=_codes(writer))


def _codes(writer: Writer) -> list[int]:
    """Return MXNet's target shape: 0 copies the size at the same position, and one -1 is inferred."""
    target = writer.value(1)
    if writer.writing.is_fixed(target):
        codes = [int(size) for size in writer.writing.array(target)]
        if 0 in codes and writer["allowzero"]:
            raise UnsupportedError("allowzero: MXNet has no tensors without elements")
        return codes
    known, before = target.tensor.value, writer.value(0).tensor.shape
    if known is None or before is None:
        raise UnsupportedError(f"the shape {target} depends on the data")
    codes = []
    for axis, size in enumerate(known):
        same = axis < len(before) and before[axis] == size
        codes.append(int(size) if is_static(size) else 0 if same else -1)
    if codes.count(-1) > 1:
        raise UnsupportedError(f"the shape {target} has several sizes that depend on the inputs")
    return codes


@writes("Flatten")
def flatten(writer: Writer) -> Entry:
    if writer["axis"] != 1:
        raise UnsupportedError(f"axis {writer['axis']}: MXNet's Flatten keeps the first axis")
    return writer.add("Flatten", [writer.entry(0)])


@writes("Transpose")
def transpose(writer: Writer) -> Entry:
    return writer.add("transpose", [writer.entry(0)], axes=writer["perm"])


@writes("Concat")
def concat(writer: Writer) -> Entry:
    entries = [writer.entry(i) for i in range(len(writer.inputs))]
    return writer.add("Concat", entries, dim=writer["axis"], num_args=len(entries))


@writes("Split")
def split(writer: Writer) -> list[Entry]:
    """Equal parts are a SliceChannel; others are slices."""
    axis, outputs = writer["axis"], writer.node.outputs
    shapes = [output.tensor.shape for output in outputs]
    known = [shape[axis] for shape in shapes if shape is not None]
    if len(known) != len(outputs) or not all(map(is_static, known)):
        raise UnsupportedError("the sizes of the parts depend on the inputs")
    sizes = [int(size) for size in known if is_static(size)]
    if len(set(sizes)) == 1 and len(sizes) > 1:
        index, _ = writer.add("SliceChannel", [writer.entry(0)], num_outputs=len(sizes), axis=axis)
        return [(index, output) for output in range(len(sizes))]
    ends = np.cumsum(sizes).tolist()
    return [
        writer.add("slice_axis", [writer.entry(0)], last=False, axis=axis, begin=end - size, end=end)
        for size, end in zip(sizes, ends, strict=True)
    ]


@writes("Slice")
def slice_(writer: Writer) -> Entry:
    starts, ends, axes, steps = (writer.array(i) for i in range(1, 5))
    assert starts is not None
    assert ends is not None
    chosen = range(len(starts)) if axes is None else [int(a) for a in axes]
    strides = [1] * len(starts) if steps is None else [int(s) for s in steps]
    rank = writer.value(0).rank
    if rank is None:
        raise UnsupportedError(f"the rank of {writer.value(0)} is unknown")
    begin: list[int | None] = [None] * rank
    end: list[int | None] = [None] * rank
    step: list[int | None] = [None] * rank
    for axis, first, last, stride in zip(chosen, starts.tolist(), ends.tolist(), strides, strict=True):
        if abs(first) < _END:
            begin[axis] = first
        if abs(last) < _END:
            end[axis] = last
        step[axis] = stride
    return writer.add("slice", [writer.entry(0)], begin=tuple(begin), end=tuple(end), step=tuple(step))


@writes("Unsqueeze")
def unsqueeze(writer: Writer) -> Entry:
    rank = writer.node.output.rank
    axes = _axes(writer, 1, rank)
    result = writer.entry(0)
    for axis in axes:
        result = writer.add("expand_dims", [result], last=axis == axes[-1], axis=axis)
    return result


@writes("Squeeze")
def squeeze(writer: Writer) -> Entry:
    axes = None if writer.given(1) is None else tuple(_axes(writer, 1, writer.value(0).rank))
    return writer.add("squeeze", [writer.entry(0)], axis=axes)


def _axes(writer: Writer, position: int, rank: int | None) -> list[int]:
    given = writer.array(position)
    if given is None:
        return []
    if rank is None:
        raise UnsupportedError("the rank is unknown")
    return sorted(int(axis) % rank for axis in given)


@writes("Pad")
def pad(writer: Writer) -> Entry:
    rank = writer.value(0).rank
    pads = writer.array(1)
    assert pads is not None
    if rank not in (4, 5) or writer.given(3) is not None or writer["mode"] == "wrap" or (pads < 0).any():
        raise UnsupportedError("MXNet pads the last axes of tensors of rank 4 and 5, by numbers, edges or reflection")
    before, after = pads[:rank].tolist(), pads[rank:].tolist()
    widths = [width for pair in zip(before, after, strict=True) for width in pair]
    if any(widths[:4]):
        raise UnsupportedError("MXNet does not pad the batch or the channels")
    number = writer.array(2)
    return writer.add(
        "Pad", [writer.entry(0)], mode=writer["mode"], pad_width=tuple(widths),
        constant_value=0.0 if number is None else float(number),
    )  # fmt: skip


@writes("Expand")
def expand(writer: Writer) -> Entry:
    shape = writer.array(1)
    rank = writer.value(0).rank
    assert shape is not None
    if rank != len(shape):
        raise UnsupportedError("MXNet's broadcast_to keeps the rank")
    return writer.add("broadcast_to", [writer.entry(0)], shape=tuple(0 if s == 1 else int(s) for s in shape))


@writes("Tile")
def tile(writer: Writer) -> Entry:
    counts = writer.array(1)
    assert counts is not None
    return writer.add("tile", [writer.entry(0)], reps=tuple(counts.tolist()))


@writes("DepthToSpace", "SpaceToDepth")
def depth_to_space(writer: Writer) -> Entry:
    is_inverse = writer.node.op.name == "SpaceToDepth"
    if not is_inverse and writer["mode"] != "DCR":
        raise UnsupportedError(f"mode {writer['mode']}: MXNet has DCR")
    op = "space_to_depth" if is_inverse else "depth_to_space"
    return writer.add(op, [writer.entry(0)], block_size=writer["blocksize"])


@writes("Resize")
def resize(writer: Writer) -> Entry:
    """Nearest by an integer is UpSampling; linear with static sizes is BilinearResize2D."""
    x, y = writer.value(0), writer.node.output
    mode, coordinates = writer["mode"], writer["coordinate_transformation_mode"]
    before, after = _spatial(x), _spatial(y)
    if mode == "nearest":
        scales = writer.array(2) if writer.given(2) is not None else None
        grown = [b / a for a, b in zip(before, after, strict=True)]
        factors = set(grown if scales is None else scales[2:].tolist())
        plain = (coordinates, writer["nearest_mode"]) in (("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"))
        (factor,) = factors if len(factors) == 1 else (0.0,)
        if plain and factor == int(factor) and factor > 0:
            return writer.add("UpSampling", [writer.entry(0)], scale=int(factor), sample_type="nearest", num_args=1)
    elif mode == "linear" and coordinates in ("align_corners", "half_pixel") and not writer["antialias"]:
        height, width = after
        return writer.add(
            "_contrib_BilinearResize2D", [writer.entry(0)], height=height, width=width,
            align_corners=coordinates == "align_corners",
        )  # fmt: skip
    raise UnsupportedError(f"mode {mode} with {coordinates}: MXNet enlarges by integers, or interpolates linearly")


def _spatial(x: Value) -> Sequence[int]:
    shape = x.tensor.shape
    if shape is None or len(shape) != 4:
        raise UnsupportedError(f"MXNet resizes images [N, C, H, W], not {x}")
    sizes = [int(size) for size in shape[2:] if is_static(size)]
    if len(sizes) != 2:
        raise UnsupportedError(f"MXNet needs the sizes of {x}")
    return sizes


@writes("Where")
def where(writer: Writer) -> Entry:
    """MXNet's operands have equal shapes."""
    return writer.add("where", [_broadcast(writer, i) for i in range(3)])


def _broadcast(writer: Writer, position: int) -> Entry:
    """Return an operand in the shape of the result."""
    value, result = writer.value(position), writer.node.output
    before, after = value.tensor.shape, result.tensor.shape
    if before is not None and before == after:
        return writer.entry(position)
    if before is None or after is None or not all(map(is_static, (*before, *after))):
        raise UnsupportedError(f"MXNet broadcasts to known shapes only, not {value} to {result}")
    aligned = (*(1,) * (len(after) - len(before)), *before)
    x = writer.add("Reshape", [writer.entry(position)], last=False, shape=aligned)
    return writer.add("broadcast_to", [x], last=False, shape=after)


# --- reductions -------------------------------------------------------------------------------------------


def _reduce(op: str, order: int | None, writer: Writer) -> Entry:
    rank = writer.value(0).rank
    axes = tuple(_axes(writer, 1, rank)) or None
    if axes is None and writer["noop_with_empty_axes"]:
        return writer.add("identity", [writer.entry(0)])
    if rank is None:
        raise UnsupportedError("the rank is unknown")
    if not writer["keepdims"] and len(axes or range(rank)) == rank:
        raise UnsupportedError("MXNet has no scalars: a reduction over all axes has the shape [1]")
    return writer.add(op, [writer.entry(0)], axis=axes, keepdims=writer["keepdims"], ord=order)


@writes("ReduceSumSquare")
def reduce_sum_square(writer: Writer) -> Entry:
    axes = tuple(_axes(writer, 1, writer.value(0).rank)) or None
    squares = writer.add("square", [writer.entry(0)], last=False)
    return writer.add("sum", [squares], axis=axes, keepdims=writer["keepdims"])


for _name, _op, _order in (
    ("ReduceSum", "sum", None), ("ReduceMean", "mean", None), ("ReduceMax", "max", None), ("ReduceMin", "min", None),
    ("ReduceProd", "prod", None), ("ReduceL1", "norm", 1), ("ReduceL2", "norm", 2),
):  # fmt: skip
    writes(_name)(partial(_reduce, _op, _order))
