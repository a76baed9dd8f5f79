"""Squeeze, Unsqueeze, Split, Slice, Pad, TopK, OneHot, Scatter, Reduce*: attributes that became inputs."""

from __future__ import annotations

import numpy as np

from graphkit.onnx_io.upgrade import ALWAYS, NodeView, upgrade
from graphkit.ops import F, constant

_REDUCTIONS = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSumSquare",
)  # fmt: skip


@upgrade(*_REDUCTIONS, below=18)
@upgrade("ReduceSum", "Squeeze", "Unsqueeze", below=13)
def _axes_to_input(node: NodeView) -> None:
    node.attribute_to_input("axes", 1)


@upgrade("Squeeze", "Unsqueeze", below=ALWAYS)
def _scalar_axis(node: NodeView) -> None:
    # The standard requires a vector, but its own function bodies also pass scalars.
    axes = node.input(1)
    if axes is not None and axes.rank == 0:
        node.set_input(1, F.reshape(axes, constant(np.asarray([1], np.int64))))


@upgrade("Split", below=13)
def _split_to_input(node: NodeView) -> None:
    node.attribute_to_input("split", 1)


@upgrade("Split", below=18)
def _split_evenly(node: NodeView) -> None:
    # Without sizes, the number of parts is the number of outputs.
    if node.input(1) is None:
        node.attrs["num_outputs"] = len(node.outputs)


@upgrade("Slice", below=10)
def _slice_to_inputs(node: NodeView) -> None:
    starts, ends, axes = node.require("starts"), node.require("ends"), node.take("axes")
    for index, bounds in enumerate((starts, ends, axes), start=1):
        if bounds is not None:
            node.set_input(index, constant(np.asarray(bounds, np.int64)))


@upgrade("Pad", below=11)
def _pad_to_inputs(node: NodeView) -> None:
    node.set_input(1, constant(np.asarray(node.require("pads"), np.int64)))
    value = node.take("value", 0.0)
    if value != 0.0:
        node.set_input(2, constant(np.asarray(value, node.operand(0).dtype.numpy)))


@upgrade("TopK", below=10)
def _k_to_input(node: NodeView) -> None:
    node.set_input(1, constant(np.asarray([node.require("k")], np.int64)))


@upgrade("OneHot", below=11)
def _one_hot_of_negative(node: NodeView) -> None:
    # Before opset 11, negative indices selected nothing. Since then they count from the end, so use `depth` instead,
    # which selects nothing.
    indices, depth = node.operand(0), node.operand(1)
    limit = F.cast(F.reshape(depth, constant(np.zeros(0, np.int64))), to=indices.dtype)
    node.set_input(0, F.where(F.less(indices, constant(np.zeros((), indices.dtype.numpy))), limit, indices))


@upgrade("Scatter", below=ALWAYS, becomes="ScatterElements")
def _scatter(node: NodeView) -> None:
    # Deprecated since opset 11, but newer files still contain it.
    node.op_type = "ScatterElements"
