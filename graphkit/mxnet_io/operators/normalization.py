"""Normalisations: BatchNorm, LayerNorm, InstanceNorm, GroupNorm, L2Normalization, LRN."""

from __future__ import annotations

import numpy as np

from graphkit.errors import UnsupportedError
from graphkit.ir.dims import is_static
from graphkit.ir.graph import Value
from graphkit.mxnet_io.call import (
    Call,
    ShapeNeeded,
    along_axis,
    axis_of,
    converter,
    rank_of,
    scalar,
    shape_of,
    with_channels_second,
)
from graphkit.ops import F, constant
from graphkit.ops.axes import i64


@converter("BatchNorm", "BatchNorm_v1", "_contrib_SyncBatchNorm", "_npx_batch_norm", "CuDNNBatchNorm")
def batch_norm(call: Call) -> Value:
    """With fix_gamma, which is the default, the scale is 1 whatever the file contains, and training keeps it.

    With use_global_stats, training normalises by the running statistics, and does not update them.
    """
    attributes = call.attributes
    attributes.ignore("ndev", "key", "min_calib_range", "max_calib_range")
    if attributes.flag("output_mean_var", False):
        raise UnsupportedError("output_mean_var=True")
    epsilon = attributes.number("eps", 1e-3)
    momentum = attributes.number("momentum", 0.9)
    axis = attributes.integer("axis", 1)
    fixed = attributes.flag("fix_gamma", True)
    x, shift, mean, variance = call[0], call[2], call[3], call[4]
    scale = _ones_like(shift) if fixed else call[1]
    if attributes.flag("use_global_stats", False):
        factor = F.div(scale, F.sqrt(F.add(variance, scalar(epsilon, variance))))
        offset = F.sub(shift, F.mul(mean, factor))
        axis, rank = axis_of(x, axis), rank_of(x)
        result: Value = F.add(F.mul(x, along_axis(factor, axis, rank)), along_axis(offset, axis, rank))
        return result

    def normalised(channels_second: Value) -> Value:
        y: Value = F.batch_normalization(
            channels_second, scale, shift, mean, variance, epsilon=epsilon, momentum=momentum, name=call.name
        )
        return y

    return with_channels_second(x, axis, normalised)


@converter("_contrib_BatchNormWithReLU")
def batch_norm_with_relu(call: Call) -> Value:
    result: Value = F.relu(batch_norm(call))
    return result


def _ones_like(vector: Value) -> Value:
    (size,) = shape_of(vector)
    if not is_static(size):
        raise UnsupportedError(f"the number of channels is unknown: {vector}")
    return constant(np.ones(size, vector.dtype.numpy))


@converter("LayerNorm", "_npx_layer_norm")
def layer_norm(call: Call) -> Value:
    """Normalise one axis, which need not be the last."""
    if call.attributes.flag("output_mean_var", False):
        raise UnsupportedError("output_mean_var=True")
    epsilon = call.attributes.number("eps", 1e-5)
    x, scale, shift = call[0], call[1], call[2]
    axis, rank = axis_of(x, call.attributes.integer("axis", -1)), rank_of(x)
    if axis == rank - 1:
        result: Value = F.layer_normalization(x, scale, shift, axis=-1, epsilon=epsilon, name=call.name)[0]
        return result
    axes = i64(axis)
    centred = F.sub(x, F.reduce_mean(x, axes, keepdims=True))
    variance = F.reduce_mean(F.mul(centred, centred), axes, keepdims=True)
    normal = F.div(centred, F.sqrt(F.add(variance, scalar(epsilon, x))))
    result = F.add(F.mul(normal, along_axis(scale, axis, rank)), along_axis(shift, axis, rank))
    return result


@converter("InstanceNorm", "_npx_instance_norm")
def instance_norm(call: Call) -> Value:
    epsilon = call.attributes.number("eps", 1e-3)
    result: Value = F.instance_normalization(call[0], call[1], call[2], epsilon=epsilon, name=call.name)
    return result


@converter("GroupNorm", "_npx_group_norm")
def group_norm(call: Call) -> Value:
    """Scale and shift have one element per group up to MXNet 1.9, one per channel in MXNet 2."""
    attributes = call.attributes
    if attributes.flag("output_mean_var", False):
        raise UnsupportedError("output_mean_var=True")
    epsilon, groups = attributes.number("eps", 1e-5), attributes.integer("num_groups", 1)
    x = call[0]
    channels = shape_of(x)[1]
    scale, shift = (_per_channel(call[i], channels, groups) for i in (1, 2))
    result: Value = F.group_normalization(x, scale, shift, epsilon=epsilon, num_groups=groups, name=call.name)
    return result


def _per_channel(vector: Value, channels: object, groups: int) -> Value:
    if shape_of(vector) != (groups,) or channels == groups:
        return vector
    if not isinstance(channels, int):
        raise ShapeNeeded(f"the number of channels is not known, but {vector} may be for channels or for groups")
    positions = np.repeat(np.arange(groups), channels // groups)
    result: Value = F.gather(vector, i64(*positions.tolist()), axis=0)
    return result


@converter("L2Normalization")
def l2_normalization(call: Call) -> Value:
    """Divide by sqrt(sum of squares + eps): over all axes but the first, over channels, or over the other axes."""
    mode = call.attributes.choice("mode", "instance", "channel", "spatial")
    x = call.x
    rank = rank_of(x)
    axes = {"instance": range(1, rank), "channel": range(1, 2), "spatial": range(2, rank)}[mode]
    squares = F.reduce_sum_square(x, i64(*axes), keepdims=True)
    result: Value = F.div(x, F.sqrt(F.add(squares, scalar(call.attributes.number("eps", 1e-10), x))))
    return result


@converter("LRN", "_npx_lrn")
def lrn(call: Call) -> Value:
    """(knorm + alpha / nsize * sum of squares over nsize channels)^-beta times x, as ONNX has it."""
    attributes = call.attributes
    result: Value = F.lrn(
        call.x,
        size=attributes.integer("nsize", 5),
        alpha=attributes.number("alpha", 1e-4),
        beta=attributes.number("beta", 0.75),
        bias=attributes.number("knorm", 2.0),
        name=call.name,
    )
    return result
