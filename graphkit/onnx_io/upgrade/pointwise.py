"""Clip, Dropout, and the elementwise operators that ai.onnx had as experiments before opset 10."""

from __future__ import annotations

import numpy as np

from graphkit.ir.graph import Value
from graphkit.onnx_io.upgrade import ALWAYS, BUILT, NodeView, Results, upgrade
from graphkit.ops import F, constant


@upgrade("Clip", below=11)
def _bounds_to_inputs(node: NodeView) -> None:
    # The old defaults, the limits of float32, have no effect, so they are dropped.
    dtype = node.operand(0).dtype.numpy
    limit = np.finfo(np.float32).max
    low, high = node.take("min"), node.take("max")
    if low is not None and low > -limit:
        node.set_input(1, constant(np.asarray(low, dtype)))
    if high is not None and high < limit:
        node.set_input(2, constant(np.asarray(high, dtype)))


@upgrade("Clip", below=ALWAYS)
def _one_element(node: NodeView) -> None:
    # ONNX Runtime accepts a vector of one element as a scalar, and some files contain it.
    for index in (1, 2):
        bound = node.input(index)
        if bound is not None and bound.shape == (1,):
            node.set_input(index, F.reshape(bound, constant(np.zeros(0, np.int64))))


@upgrade("Dropout", below=12)
def _ratio_to_input(node: NodeView) -> Results | None:
    # Before opset 12, the runtime chose the mode. Without the operand training_mode, a node runs in inference mode.
    node.attribute_to_input("ratio", 1, np.float32)
    if node.version >= 10 or not node.wants(1):
        return None
    # Until 10 the mask had the data's type.
    y, mask = F.dropout(node.operand(0), *node.inputs[1:])
    return y, F.cast(mask, to=node.operand(0).dtype)


def _scalar(value: float, like: Value) -> Value:
    return constant(np.asarray(value, like.dtype.numpy))


@upgrade("Affine", below=10, becomes=BUILT)
def _affine(node: NodeView) -> Results:
    x = node.operand(0)
    alpha, beta = node.take("alpha", 1.0), node.take("beta", 0.0)
    return (F.add(F.mul(x, _scalar(alpha, x)), _scalar(beta, x)),)


@upgrade("ImageScaler", below=10, becomes=BUILT)
def _image_scaler(node: NodeView) -> Results:
    x = node.operand(0)
    bias = np.asarray(node.require("bias"), x.dtype.numpy).reshape(-1, 1, 1)
    return (F.add(F.mul(x, _scalar(node.take("scale", 1.0), x)), constant(bias)),)


@upgrade("ScaledTanh", below=10, becomes=BUILT)
def _scaled_tanh(node: NodeView) -> Results:
    x = node.operand(0)
    alpha, beta = node.take("alpha", 1.0), node.take("beta", 1.0)
    return (F.mul(F.tanh(F.mul(x, _scalar(beta, x))), _scalar(alpha, x)),)


@upgrade("ParametricSoftplus", below=10, becomes=BUILT)
def _parametric_softplus(node: NodeView) -> Results:
    x = node.operand(0)
    alpha, beta = node.take("alpha", 1.0), node.take("beta", 1.0)
    return (F.mul(F.softplus(F.mul(x, _scalar(beta, x))), _scalar(alpha, x)),)


@upgrade("Crop", below=10, becomes=BUILT)
def _crop(node: NodeView) -> Results:
    """border: elements to remove at the left, top, right and bottom of the last two axes.

    scale: height and width of the result, which begins after the left and top border.
    """
    x = node.operand(0)
    left, top, right, bottom = (int(v) for v in node.require("border"))
    scale = node.take("scale")
    most = np.iinfo(np.int64).max
    if scale is not None:
        ends = [top + int(scale[0]), left + int(scale[1])]
    else:
        ends = [-bottom if bottom else most, -right if right else most]
    return (F.slice(x, *(constant(np.asarray(v, np.int64)) for v in ([top, left], ends, [2, 3]))),)
