"""Reduce*, Split, Pad, Reshape, Shape, Range, SpaceToDepth, Scatter*: features that older opsets write differently."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphkit.ir import dims
from graphkit.ir.graph import Value
from graphkit.ir.types import DType
from graphkit.onnx_io.downgrade import ALWAYS, Site, Spelling, constant_array, rewrites, spells
from graphkit.ops import F, constant, operator
from graphkit.ops.math.reduce import Reduction
from graphkit.ops.tensor.concat import Split
from graphkit.ops.tensor.rearrangement import SpaceToDepth
from graphkit.ops.tensor.shape import Shape

_REDUCTIONS = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSumSquare",
)  # fmt: skip


def _i64(*values: int) -> Value:
    return constant(np.asarray(values, np.int64))


@rewrites(*_REDUCTIONS, below=18)
def _reduce_nothing(site: Site) -> Sequence[Value] | None:
    # noop_with_empty_axes has no older spelling: reduce over one new axis of size 1 instead.
    op = operator(site.node, Reduction)
    if not op.noop_with_empty_axes:
        return None
    axes = site.input(1)
    if axes is not None:
        known = constant_array(axes)
        if known is None:
            raise site.fail("noop_with_empty_axes with computed axes")
        if known.size:
            return None
    widened = F.unsqueeze(site.operand(0), _i64(0))
    return site.node.rebuilt([widened, _i64(0)], op.replace(keepdims=False, noop_with_empty_axes=False)).outputs


@rewrites("ReduceMax", "ReduceMin", below=20)
def _reduce_booleans(site: Site) -> Sequence[Value] | None:
    x = site.operand(0)
    if x.dtype is not DType.BOOL:
        return None
    reduced = site.node.rebuilt([F.cast(x, to=DType.INT32), *site.inputs[1:]]).output
    return [F.cast(reduced, to=DType.BOOL)]


@spells(*_REDUCTIONS, below=18)
def _axes_to_attribute(spelling: Spelling) -> None:
    spelling.attrs.pop("noop_with_empty_axes", None)
    spelling.input_to_attribute(1, "axes")
    if spelling.attrs.get("axes") == []:
        del spelling.attrs["axes"]


@rewrites("Split", below=18)
def _uneven_split(site: Site) -> Sequence[Value] | None:
    # Before opset 18, the number of parts was the number of outputs, and the parts had to be equal.
    op, x = operator(site.node, Split), site.operand(0)
    if site.input(1) is not None:
        return None
    assert op.num_outputs is not None, "a Split without sizes has a number"
    count, axis = op.num_outputs, op.axis
    if x.shape is not None and dims.mod(x.shape[axis], count) == 0:
        return None
    size = F.gather(F.shape(x), _i64(axis), axis=0)
    part = F.div(F.add(size, _i64(count - 1)), _i64(count))
    last = F.sub(size, F.mul(part, _i64(count - 1)))
    sizes = F.concat(*[part] * (count - 1), last, axis=0)
    return list(site.node.rebuilt([x, sizes], op.replace(num_outputs=None)).outputs)


@spells("Split", below=18)
def _count_from_outputs(spelling: Spelling) -> None:
    spelling.attrs.pop("num_outputs", None)


@spells("Pad", below=19)
def _no_wrap(spelling: Spelling) -> None:
    if spelling.attrs.get("mode") == "wrap":
        raise spelling.fail("mode='wrap'")


@rewrites("Pad", below=ALWAYS)
def _axes_as_int64(site: Site) -> Sequence[Value] | None:
    # ONNX Runtime's shape inference reads axes as int64, whatever their type.
    axes = site.input(3)
    if axes is None or axes.dtype is DType.INT64:
        return None
    known = constant_array(axes)
    wide = F.cast(axes, to=DType.INT64) if known is None else constant(known.astype(np.int64))
    return [site.node.rebuilt([*site.inputs[:3], wide]).output]


@rewrites("CenterCropPad", below=ALWAYS)
def _sizes_as_int64(site: Site) -> Sequence[Value] | None:
    # ONNX Runtime runs the standard's function body, which only supports int64 sizes.
    x, sizes = site.operand(0), site.operand(1)
    if sizes.dtype is DType.INT64:
        return None
    return [site.node.rebuilt([x, F.cast(sizes, to=DType.INT64)]).output]


@rewrites("Pad", below=18)
def _pads_of_all_axes(site: Site) -> Sequence[Value] | None:
    axes, x = site.input(3), site.operand(0)
    if axes is None:
        return None
    known = constant_array(axes)
    if known is None or x.rank is None:
        raise site.fail("padding of computed axes")
    # Multiply the pads by a matrix of zeros and ones: rows are the given pads, columns the pads of all axes.
    chosen = [int(a) % x.rank for a in known.reshape(-1)]
    spread = np.zeros((2 * len(chosen), 2 * x.rank), np.int64)
    for row, axis in enumerate(chosen):
        spread[row, axis] = spread[len(chosen) + row, x.rank + axis] = 1
    pads = site.operand(1)
    given = constant_array(pads)
    if given is not None:
        full: Value = constant(given.reshape(-1).astype(np.int64) @ spread)
    else:
        full = F.reduce_sum(F.mul(F.unsqueeze(pads, _i64(1)), constant(spread)), _i64(0), keepdims=False)
    return [site.node.rebuilt([x, full, site.input(2), None]).output]


@spells("Reshape", below=14)
def _zero_means_copy(spelling: Spelling) -> None:
    if spelling.attrs.pop("allowzero", 0):
        shape = spelling.input(1)
        known = None if shape is None else shape.tensor.value
        if known is None or any(not isinstance(d, int) or d == 0 for d in known):
            raise spelling.fail("allowzero=1 with a shape that may contain 0")


@rewrites("Shape", below=15)
def _slice_of_shape(site: Site) -> Sequence[Value] | None:
    op = operator(site.node, Shape)
    start, end = op.start, op.end
    if start == 0 and end is None:
        return None
    most = np.iinfo(np.int64).max
    return [F.slice(F.shape(site.operand(0)), _i64(start), _i64(most if end is None else end), _i64(0))]


@spells("ScatterElements", "ScatterND", below=16)
def _scatter_without_reduction(spelling: Spelling) -> None:
    spelling.only("reduction", "none")


@spells("ScatterElements", "ScatterND", below=18)
def _scatter_sums(spelling: Spelling) -> None:
    if spelling.attrs.get("reduction") in ("max", "min"):
        raise spelling.fail(f"reduction={spelling.attrs['reduction']!r}")


@rewrites("SpaceToDepth", below=28)
def _depth_last(site: Site) -> Sequence[Value] | None:
    """Write mode="CRD", which the gradient of DepthToSpace uses: [N, C, H, b, W, b] to [N, C, b, b, H, W]."""
    op, x = operator(site.node, SpaceToDepth), site.operand(0)
    if op.mode != "CRD":
        return None
    batch, channels, height, width = (F.gather(F.shape(x), _i64(axis)) for axis in range(4))
    block, squares = _i64(op.blocksize), _i64(op.blocksize**2)
    rows, columns = F.div(height, block), F.div(width, block)
    apart = F.reshape(x, F.concat(batch, channels, rows, block, columns, block, axis=0))
    turned = F.transpose(apart, perm=(0, 1, 3, 5, 2, 4))
    return [F.reshape(turned, F.concat(batch, F.mul(channels, squares), rows, columns, axis=0))]


@spells("SpaceToDepth", below=28)
def _depth_first(spelling: Spelling) -> None:
    spelling.only("mode", "DCR")


@spells("DFT", below=20)
def _axis_to_attribute(spelling: Spelling) -> None:
    spelling.input_to_attribute(2, "axis")
    axis = spelling.attrs.get("axis", -2)
    spelling.attrs["axis"] = int(np.asarray(axis).reshape(-1)[0])
