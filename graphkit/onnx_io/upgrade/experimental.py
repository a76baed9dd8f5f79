"""Operators that were experimental in ai.onnx until opset 10, except elementwise ones: fills, slices, FC, GRUUnit.

They are defined in onnx/defs/experiments/defs.cc of ONNX 1.0 to 1.4, and, where that is unclear, by Caffe2.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.errors import InvalidModel, UnsupportedError
from graphkit.ir.types import DType
from graphkit.onnx_io.tensors import dtype_of_code
from graphkit.onnx_io.upgrade import BUILT, NodeView, Results, upgrade
from graphkit.ops import F, constant
from graphkit.ops.axes import i64
from graphkit.ops.pointwise import scalar_like

_UNTIL = 10


@upgrade("Scale", below=_UNTIL, becomes=BUILT)
def _scale(node: NodeView) -> Results:
    x = node.operand(0)
    return (F.mul(x, scalar_like(node.take("scale", 1.0), x)),)


@upgrade("DynamicSlice", below=_UNTIL, becomes=BUILT)
def _dynamic_slice(node: NodeView) -> Results:
    return (F.slice(node.operand(0), node.operand(1), node.operand(2), node.input(3)),)


def _shape(node: NodeView) -> Any:
    """The shape to fill: an attribute, the operand's shape, or the operand itself; then sizes of `extra_shape`."""
    x, shape, more = node.input(0), node.take("shape"), node.take("extra_shape")
    operand_is_shape = bool(node.take("input_as_shape", 0))
    if x is None:
        return constant(np.asarray(shape or (), np.int64))
    if shape is not None:
        raise InvalidModel(f"{node.label}: the shape is given twice, as an operand and as the attribute 'shape'")
    found = F.cast(x, to=DType.INT64) if operand_is_shape else F.shape(x)
    return F.concat(found, i64(*more), axis=0) if more else found


@upgrade("ConstantFill", below=_UNTIL, becomes=BUILT)
def _constant_fill(node: NodeView) -> Results:
    dtype = dtype_of_code(int(node.take("dtype", 1)), f"{node.label}: attribute 'dtype'")
    value = np.asarray(node.take("value", 0.0)).astype(dtype.numpy)
    return (F.expand(constant(value), _shape(node)),)


@upgrade("GivenTensorFill", below=_UNTIL, becomes=BUILT)
def _given_fill(node: NodeView) -> Results:
    values = constant(np.asarray(node.require("values"), np.float32))
    return (F.reshape(values, _shape(node), allowzero=True),)


@upgrade("FC", below=_UNTIL, becomes=BUILT)
def _fully_connected(node: NodeView) -> Results:
    """X W^T + B. Axes before `axis` are kept in the result."""
    x, w, bias = (node.operand(i) for i in range(3))
    axis, axis_w = int(node.take("axis", 1)), int(node.take("axis_w", 1))
    y = F.gemm(F.flatten(x, axis=axis), F.flatten(w, axis=axis_w), bias, transB=True)
    if axis == 1:
        return (y,)
    return (F.reshape(y, F.concat(F.shape(x, end=axis), F.shape(y, start=1), axis=0), allowzero=True),)


@upgrade("GRUUnit", below=_UNTIL, becomes=BUILT)
def _gru_unit(node: NodeView) -> Results:
    """One step of a GRU: h * u + tanh(o) * (1 - u), where u = sigmoid(update), of gates [reset, update, output].

    A sequence that ended before step t keeps its state; with drop_states, the state becomes 0.
    """
    hidden, gates, sequence, t = (node.operand(i) for i in range(4))
    dropped = bool(node.take("drop_states", 0))
    _, update, output = F.split(gates, axis=-1, num_outputs=3)
    kept = F.sigmoid(update)
    one = scalar_like(1.0, kept)
    new = F.add(F.mul(hidden, kept), F.mul(F.tanh(output), F.sub(one, kept)))
    # Shape [N, 1], to broadcast with states [1, N, D].
    valid = F.unsqueeze(F.less(F.cast(t, to=DType.INT64), F.cast(sequence, to=DType.INT64)), i64(-1))
    return (F.where(valid, new, F.mul(hidden, scalar_like(0.0, hidden)) if dropped else hidden),)


@upgrade("MeanVarianceNormalization", below=9)
def _across_channels(node: NodeView) -> Results | None:
    """Normalise over batch and positions, or over channels, too. With normalize_variance=0, only subtract the mean."""
    channels, variance = bool(node.take("across_channels", 0)), bool(node.take("normalize_variance", 1))
    x = node.operand(0)
    if x.rank is None:
        raise UnsupportedError(f"{node.label}: a tensor of unknown rank is not supported")
    axes = (0, *range(1 if channels else 2, x.rank))
    if variance:
        node.attrs["axes"] = axes
        return None
    return (F.sub(x, F.reduce_mean(x, i64(*axes))),)


@upgrade("ATen", below=_UNTIL, becomes=BUILT)
def _aten(node: NodeView) -> Results:
    name = node.attrs.get("operator", "of no name")
    raise UnsupportedError(f"{node.label}: PyTorch's operator {name} is not supported")
