"""Data movement: operators that the standard has under other names, and sliding windows."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.errors import UnsupportedError
from graphkit.ir.types import DType
from graphkit.onnx_io.upgrade import NodeView, Results
from graphkit.onnx_io.upgrade.contrib import contrib
from graphkit.onnx_io.upgrade.contrib.scores import int64
from graphkit.ops import F, constant
from graphkit.ops.axes import i64
from graphkit.ops.pointwise import scalar_like


def _scalar(x: Any) -> Any:
    """Convert a tensor of one element to a scalar, if it is not a scalar."""
    return x if x.rank == 0 else F.reshape(x, constant(np.zeros(0, np.int64)))


@contrib("SampleOp")
def _sample_op(node: NodeView) -> Results:
    return (F.identity(node.operand(0)),)


@contrib("ExpandDims")
def _expand_dims(node: NodeView) -> Results:
    axis = F.reshape(F.cast(node.operand(1), to=DType.INT64), i64(1))
    return (F.unsqueeze(node.operand(0), axis),)


@contrib("GatherND")
def _gather_nd(node: NodeView) -> Results:
    return (F.gather_nd(node.operand(0), F.cast(node.operand(1), to=DType.INT64)),)


@contrib("TorchEmbedding")
def _embedding(node: NodeView) -> Results:
    return (F.gather(node.operand(0), node.operand(1), axis=0),)


@contrib("Trilu")
def _trilu(node: NodeView) -> Results:
    diagonal = node.input(1)
    upper = bool(node.take("upper", 1))
    return (F.trilu(node.operand(0), None if diagonal is None else _scalar(diagonal), upper=upper),)


@contrib("Range")
def _range(node: NodeView) -> Results:
    start, limit, delta = node.operand(0), node.operand(1), node.input(2)
    step = scalar_like(1, start) if delta is None else _scalar(delta)
    return (F.range(_scalar(start), _scalar(limit), step),)


@contrib("Pad")
def _pad(node: NodeView) -> Results:
    value = node.input(2)
    pads = F.reshape(node.operand(1), i64(-1))
    filled = None if value is None else _scalar(value)
    return (F.pad(node.operand(0), pads, filled, mode=node.take("mode", "constant")),)


@contrib("Unique")
def _unique(node: NodeView) -> Results:
    """Unique elements in order of occurrence, the index of each element of x in them, and their counts."""
    y, _, inverse, counts = F.unique(node.operand(0), sorted=False)
    return y, inverse, counts


@contrib("GridSample")
def _grid_sample(node: NodeView) -> Results:
    mode = node.take("mode", "bilinear")
    attrs = node.taken("align_corners", "padding_mode")
    names = {"bilinear": "linear", "bicubic": "cubic"}
    return (F.grid_sample(node.operand(0), node.operand(1), mode=names.get(mode, mode), **attrs),)


@contrib("IsAllFinite")
def _is_all_finite(node: NodeView) -> Results:
    """Whether all elements are finite. Attributes restrict the check to infinities, or to NaN."""
    only_nan, only_infinite = bool(node.take("isnan_only", 0)), bool(node.take("isinf_only", 0))
    if only_nan and only_infinite:
        raise UnsupportedError(f"{node.label}: isnan_only and isinf_only exclude each other")
    found: Any = int64(0)
    for index in range(len(node.inputs)):
        x = node.operand(index)
        tests = [F.is_nan] * (not only_infinite) + [F.is_inf] * (not only_nan)
        for test in tests:
            found = F.add(found, F.reduce_sum(F.cast(test(x), to=DType.INT64), keepdims=False))
    return (F.equal(found, int64(0)),)


def windows(x: Any, axis: int, size: int, step: int) -> Any:
    """All windows of `size` elements along `axis`, with a distance of `step`: [..., windows, size, ...]."""
    last = F.sub(F.gather(F.shape(x), int64(axis)), int64(size - 1))
    starts = F.unsqueeze(F.range(int64(0), F.max(last, int64(0)), int64(step)), i64(1))
    return F.gather(x, F.add(starts, F.range(int64(0), int64(size), int64(1))), axis=axis)


@contrib("UnfoldTensor")
def _unfold(node: NodeView) -> Results:
    """All windows along an axis. Their elements are along a new last axis."""
    x, axis = node.operand(0), int(node.take("dim", -1))
    size, step = int(node.require("size")), int(node.take("step", 1))
    if x.rank is None:
        raise UnsupportedError(f"{node.label}: a tensor of unknown rank is not supported")
    if size < 1 or step < 1:
        raise UnsupportedError(f"{node.label}: size={size} and step={step} must be positive")
    axis %= max(x.rank, 1)
    found = windows(x, axis, size, step)
    return (F.transpose(found, perm=(*range(axis + 1), *range(axis + 2, x.rank + 1), axis + 1)),)


@contrib("NGramRepeatBlock")
def _no_repeats(node: NodeView) -> Results:
    """The scores, with -inf for tokens that would repeat a sequence of `ngram_size` tokens."""
    ids, scores, size = node.operand(0), node.operand(1), int(node.require("ngram_size"))
    if size < 1:
        raise UnsupportedError(f"{node.label}: ngram_size={size} must be positive")
    runs = windows(ids, 1, size, 1)
    tokens = F.gather(runs, int64(size - 1), axis=2)
    most = np.iinfo(np.int64).max
    # The last size - 1 tokens, to be compared with the beginnings of all windows.
    ending = F.unsqueeze(F.slice(ids, i64(1 - size) if size > 1 else i64(most), i64(most), i64(1)), i64(1))
    begins = F.slice(runs, i64(0), i64(size - 1), i64(2))
    differ = F.reduce_sum(F.cast(F.not_(F.equal(begins, ending)), to=DType.INT64), i64(2), keepdims=False)
    barred = F.where(F.equal(differ, int64(0)), scalar_like(-np.inf, scores), scalar_like(np.inf, scores))
    return (F.scatter_elements(scores, tokens, barred, axis=1, reduction="min"),)
