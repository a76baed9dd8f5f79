"""Normalisation layers. Each makes `<name>_weight` (ones) and `<name>_bias` (zeros) unless affine=False."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch, UsageError
from graphkit.frontend._shared import describe, first, float_operand, known_size, layer, positive
from graphkit.frontend.parameters import parameter, state
from graphkit.ir.graph import Value
from graphkit.ops import F


def _scale_and_shift(name: str, shape: tuple[int, ...], dtype: Any, affine: bool) -> tuple[Any, Any]:
    if affine:
        return parameter(f"{name}_weight", shape, "ones", dtype), parameter(f"{name}_bias", shape, "zeros", dtype)
    return np.ones(shape, dtype.numpy), np.zeros(shape, dtype.numpy)


def _channels(layer: str, name: str, x: Value, channels: int | None) -> int:
    float_operand(layer, name, x)
    if x.rank is not None and x.rank < 2:
        raise TypeMismatch(f"{describe(layer, name, x)}: an operand [N, C, ...] is expected")
    return known_size(layer, name, x, 1, channels, "channels")


@layer
def batch_norm(
    x: Value, *, momentum: float = 0.9, epsilon: float = 1e-5, affine: bool = True, channels: int | None = None,
    name: str = "batch_norm",
) -> Value:  # fmt: skip
    """Batch normalisation: (x - mean) / sqrt(var + epsilon) * weight + bias per channel (Ioffe and Szegedy 2015).

    In inference, mean and var are the states `<name>_running_mean` and `<name>_running_var` [C]. In training they are
    the statistics of the batch, and the states are updated: running = momentum * running + (1 - momentum) * batch.

    Args:
        x: float [N, C, ...].
        momentum: Share of the old running statistics that is kept, as in ONNX. PyTorch's momentum is 1 - momentum.
        epsilon: Added to the variance.
        affine: False leaves out the parameters `<name>_weight` and `<name>_bias` [C].
        channels: C; only needed if this size of x is not a fixed integer.
        name: Name of the layer and prefix of its parameters.
    """
    size = (_channels("batch_norm", name, x, channels),)
    if not 0.0 <= momentum <= 1.0:
        raise UsageError(f"layer {name!r} (batch_norm): momentum must be in [0, 1], not {momentum!r}")
    weight, bias = _scale_and_shift(name, size, x.tensor.dtype, affine)
    mean = state(f"{name}_running_mean", size, "zeros", x.tensor.dtype)
    var = state(f"{name}_running_var", size, "ones", x.tensor.dtype)
    return first(F.batch_normalization(x, weight, bias, mean, var, epsilon=epsilon, momentum=momentum, name=name))


@layer
def layer_norm(
    x: Value, *, axis: int = -1, epsilon: float = 1e-5, affine: bool = True, bias: bool = True, name: str = "layer_norm"
) -> Value:
    """Layer normalisation: (x - mean) / sqrt(var + epsilon) * weight + bias (Ba, Kiros and Hinton 2016).

    Args:
        x: A float tensor.
        axis: Mean and variance are taken over the axes from this one to the last. Their sizes must be integers; the
            parameters `<name>_weight` and `<name>_bias` have this shape.
        epsilon: Added to the variance.
        affine: False leaves out both parameters.
        bias: False leaves out `<name>_bias`.
        name: Name of the layer and prefix of its parameters.
    """
    shape = _trailing("layer_norm", name, x, axis)
    weight, offset = _scale_and_shift(name, shape, x.tensor.dtype, affine)
    return first(
        F.layer_normalization(x, weight, offset if bias and affine else None, axis=axis, epsilon=epsilon, name=name)
    )


@layer
def rms_norm(x: Value, *, axis: int = -1, epsilon: float = 1e-5, affine: bool = True, name: str = "rms_norm") -> Value:
    """RMS normalisation: x / sqrt(mean(x^2) + epsilon) * weight (Zhang and Sennrich 2019).

    Args:
        x: A float tensor.
        axis: The mean is taken over the axes from this one to the last. Their sizes must be integers; the parameter
            `<name>_weight` has this shape.
        epsilon: Added to the mean of squares.
        affine: False leaves out the parameter.
        name: Name of the layer and prefix of its parameter.
    """
    shape = _trailing("rms_norm", name, x, axis)
    weight = (
        parameter(f"{name}_weight", shape, "ones", x.tensor.dtype) if affine else np.ones(shape, x.tensor.dtype.numpy)
    )
    return first(F.rms_normalization(x, weight, axis=axis, epsilon=epsilon, name=name))


@layer
def instance_norm(
    x: Value, *, epsilon: float = 1e-5, affine: bool = True, channels: int | None = None, name: str = "instance_norm"
) -> Value:
    """Instance normalisation: normalise every channel of every sample over its spatial axes (Ulyanov et al. 2016).

    Args:
        x: float [N, C, *spatial].
        epsilon: Added to the variance.
        affine: False leaves out the parameters `<name>_weight` and `<name>_bias` [C].
        channels: C; only needed if this size of x is not a fixed integer.
        name: Name of the layer and prefix of its parameters.
    """
    size = (_channels("instance_norm", name, x, channels),)
    weight, bias = _scale_and_shift(name, size, x.tensor.dtype, affine)
    return first(F.instance_normalization(x, weight, bias, epsilon=epsilon, name=name))


@layer
def group_norm(
    x: Value, groups: int, *, epsilon: float = 1e-5, affine: bool = True, channels: int | None = None,
    name: str = "group_norm",
) -> Value:  # fmt: skip
    """Group normalisation: normalise every group of channels of every sample (Wu and He 2018).

    Args:
        x: float [N, C, *spatial].
        groups: Number of groups; C must be a multiple of it.
        epsilon: Added to the variance.
        affine: False leaves out the parameters `<name>_weight` and `<name>_bias` [C].
        channels: C; only needed if this size of x is not a fixed integer.
        name: Name of the layer and prefix of its parameters.
    """
    count = _channels("group_norm", name, x, channels)
    if count % positive("group_norm", name, "groups", groups):
        raise TypeMismatch(
            f"{describe('group_norm', name, x)}: {count} channels cannot be divided into {groups} equal groups"
        )
    weight, bias = _scale_and_shift(name, (count,), x.tensor.dtype, affine)
    return first(F.group_normalization(x, weight, bias, num_groups=groups, epsilon=epsilon, name=name))


def _trailing(layer: str, name: str, x: Value, axis: int) -> tuple[int, ...]:
    float_operand(layer, name, x)
    if x.rank is None:
        raise UsageError(f"{describe(layer, name, x)}: the rank must be known")
    if not -x.rank <= axis < x.rank:
        raise TypeMismatch(f"{describe(layer, name, x)}: the operand has no axis {axis}")
    return tuple(_integer(layer, name, x, i) for i in range(axis % x.rank, x.rank))


def _integer(layer: str, name: str, x: Value, axis: int) -> int:
    size = x.tensor.known_shape[axis]
    if not isinstance(size, int):
        raise UsageError(
            f"{describe(layer, name, x)}: the parameters have the size of axis {axis}, and {size} is not known"
        )
    return size
