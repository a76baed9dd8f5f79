"""Softmax and its kin, BatchNormalization, GroupNormalization."""

from __future__ import annotations

import numpy as np

from graphkit.errors import UnsupportedError
from graphkit.onnx_io.upgrade import NodeView, Results, upgrade
from graphkit.ops import F, constant


@upgrade("Softmax", "LogSoftmax", "Hardmax", below=13)
def _coerced_to_matrix(node: NodeView) -> Results | None:
    # Before opset 13, all axes from `axis` (default 1) on were treated as a single axis.
    x = node.operand(0)
    axis = int(node.take("axis", 1))
    rank = x.rank
    if rank is not None and axis % max(rank, 1) == rank - 1:
        node.attrs["axis"] = -1
        return None
    function = {"Softmax": "softmax", "LogSoftmax": "log_softmax", "Hardmax": "hardmax"}[node.op_type]
    return (F.reshape(getattr(F, function)(F.flatten(x, axis=axis), axis=-1), F.shape(x), allowzero=True),)


@upgrade("BatchNormalization", below=9)
def _per_activation(node: NodeView) -> Results | None:
    # spatial=0: one mean and variance per position; the statistics broadcast over the batch as they are.
    if node.take("spatial", 1):
        return None
    if any(node.wants(i) for i in range(1, 5)):
        raise UnsupportedError(f"{node.label}: training with spatial=0 is not supported")
    x, scale, bias, mean, variance = (node.operand(i) for i in range(5))
    epsilon = constant(np.asarray(node.take("epsilon", 1e-5), x.dtype.numpy))
    return (F.add(F.mul(F.div(F.sub(x, mean), F.sqrt(F.add(variance, epsilon))), scale), bias),)


@upgrade("BatchNormalization", below=14)
def _training_mode(node: NodeView) -> Results | None:
    # Further outputs meant training mode. The last two were mean and variance of the batch.
    saved = node.wants(3) or node.wants(4)
    node.outputs = node.outputs[:3]
    if not (saved or node.wants(1) or node.wants(2)):
        return None
    node.attrs["training_mode"] = 1
    if not saved:
        return None
    x = node.operand(0)
    if x.rank is None:
        raise UnsupportedError(f"{node.label}: saved_mean and saved_var need a tensor of known rank")
    axes = constant(np.asarray([a for a in range(x.rank) if a != 1], np.int64))
    mean = F.reduce_mean(x, axes, keepdims=True)
    centred = F.sub(x, mean)
    variance = F.reduce_mean(F.mul(centred, centred), axes, keepdims=False)
    made = F.batch_normalization(*(node.operand(i) for i in range(5)), **node.attrs)
    return (*made, F.squeeze(mean, axes), variance)


@upgrade("GroupNormalization", below=21)
def _per_channel(node: NodeView) -> None:
    # Before opset 21, scale and bias had one element per group. Repeat each for the channels of its group.
    x, groups = node.operand(0), int(node.attrs.get("num_groups", 1))
    channels = F.gather(F.shape(x), constant(np.asarray([1], np.int64)), axis=0)
    count = constant(np.asarray([groups], np.int64))
    shape = F.concat(count, F.div(channels, count), axis=0)
    column = constant(np.asarray([groups, 1], np.int64))
    for index in (1, 2):
        repeated = F.expand(F.reshape(node.operand(index), column), shape)
        node.set_input(index, F.reshape(repeated, constant(np.asarray([-1], np.int64))))
