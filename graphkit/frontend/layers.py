"""gk.nn: layers, which are functions that make named parameters and apply operators to them.

A layer called `fc` makes the node `fc` and the parameters `fc_weight`, `fc_bias`. Unnamed layers get the name of their
function; a Graph numbers equal names (`linear_weight`, `linear_weight_1`). Weights have the layout of PyTorch and ONNX
([out, in], [out, in / groups, *kernel]). Their first values are PyTorch's defaults, unless `init` is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from graphkit.errors import TypeMismatch, UsageError, did_you_mean
from graphkit.frontend._shared import (
    checked_rank,
    describe,
    first,
    float_operand,
    known_size,
    layer,
    named,
    per_axis,
    positive,
    weight_and_bias,
)
from graphkit.frontend.normalization import batch_norm, group_norm, instance_norm, layer_norm, rms_norm
from graphkit.frontend.parameters import input, parameter, state
from graphkit.frontend.recurrent import gru, lstm, rnn
from graphkit.ir.graph import Value
from graphkit.ops import F, registry
from graphkit.ops._calls import elsewhere
from graphkit.ops.nn.conv import check_not_empty

__all__ = [
    "avg_pool2d", "batch_norm", "conv1d", "conv2d", "conv3d", "conv_transpose2d", "dropout", "embedding",
    "global_avg_pool", "global_max_pool", "group_norm", "gru", "input", "instance_norm", "layer_norm", "linear", "lstm",
    "max_pool2d", "parameter", "rms_norm", "rnn", "state",
]  # fmt: skip


# --- linear, embedding ------------------------------------------------------------------------------


@layer
def linear(
    x: Value,
    units: int,
    *,
    bias: bool | Value = True,
    init: Any = None,
    bias_init: Any = None,
    weight: Value | None = None,
    in_features: int | None = None,
    name: str = "linear",
) -> Value:
    """Fully connected layer: y = x W^T + b over the last axis.

    The parameters are `<name>_weight`, W [units, in_features], and `<name>_bias`, b [units]. The operator is Gemm if x
    is a matrix, else MatMul with the transposed weight.

    Args:
        x: float [..., in_features].
        units: Number of outputs.
        bias: False leaves out b. If a Value is given, it is used as b instead of a new parameter.
        init: Initialiser of W (default: uniform in +-1 / sqrt(in_features), as in PyTorch; see `gk.init.of`).
        bias_init: Initialiser of b (default: uniform in the same range).
        weight: An existing parameter to use as W.
        in_features: Size of the last axis of x; only needed if this size is not a fixed integer.
        name: Name of the layer and prefix of its parameters.

    Returns:
        y, [..., units].

    Raises:
        UsageError: An argument is wrong, or `in_features` is needed and not given.
        TypeMismatch: x is not a float tensor, or `weight` has another shape.
    """
    float_operand("linear", name, x)
    positive("linear", name, "units", units)
    features = known_size("linear", name, x, -1, in_features, "in_features")
    weight, offset = weight_and_bias(name, (units, features), units, x.tensor.dtype, init, bias, bias_init, weight)
    if x.rank == 2:
        return first(F.gemm(x, weight, offset, transB=True, name=name))
    product = F.mat_mul(x, F.transpose(weight, perm=(1, 0)), name=name if offset is None else "")
    return product if offset is None else F.add(product, offset, name=name)


@layer
def embedding(
    indices: Value, rows: int, features: int, *, init: Any = None, dtype: Any = "float32", weight: Value | None = None,
    name: str = "embedding",
) -> Value:  # fmt: skip
    """Look up rows of a table, the parameter `<name>_weight` [rows, features].

    Args:
        indices: Integers of any shape, from 0 to rows - 1.
        rows: Number of rows, such as the size of a vocabulary.
        features: Number of elements of a row.
        init: Initialiser of the table (default: standard normal).
        dtype: Element type of the table.
        weight: An existing parameter to use as the table.
        name: Name of the layer and prefix of its parameter.

    Returns:
        The rows, [*indices.shape, features].

    Raises:
        TypeMismatch: The indices are not integers.
    """
    if not indices.tensor.dtype.is_integer:
        raise TypeMismatch(f"{describe('embedding', name, indices)}: integer indices are expected")
    shape = (positive("embedding", name, "rows", rows), positive("embedding", name, "features", features))
    table, _ = weight_and_bias(
        name, shape, 0, dtype, {"type": "normal", "std": 1.0} if init is None else init, False, None, weight
    )
    return first(F.gather(table, indices, axis=0, name=name))


# --- convolution ------------------------------------------------------------------------------------

_AXES = {1: "[N, C, W]", 2: "[N, C, H, W]", 3: "[N, C, D, H, W]"}


def _padding(
    layer: str,
    name: str,
    pad: int | str | Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> dict[str, Any]:
    """ONNX padding attributes for pad = integer | one per axis | begins then ends | "valid" | "same"."""
    count = len(kernel)
    if isinstance(pad, str):
        if pad not in ("same", "valid"):
            raise UsageError(f"{named(layer, name)}: pad must be integers, 'same' or 'valid', not {pad!r}")
        if pad == "valid":
            return {"pads": (0,) * 2 * count}
        if any(s != 1 for s in stride):
            return {"auto_pad": "SAME_UPPER"}
        # With stride 1 the padding does not depend on the operand's size; the odd element goes to the end.
        total = [(k - 1) * d for k, d in zip(kernel, dilation, strict=True)]
        return {"pads": (*(t // 2 for t in total), *(t - t // 2 for t in total))}
    values = pad if isinstance(pad, int) else tuple(pad)
    if isinstance(values, tuple) and len(values) == 2 * count:
        return {"pads": per_axis(layer, name, "pad", values, 2 * count, 0)}
    return {"pads": per_axis(layer, name, "pad", values, count, 0) * 2}


def _conv(
    layer: str,
    x: Value,
    channels: int,
    kernel: int | Sequence[int],
    stride: int | Sequence[int],
    pad: int | str | Sequence[int],
    dilation: int | Sequence[int],
    groups: int,
    bias: bool | Value,
    init: Any,
    bias_init: Any,
    weight: Value | None,
    in_channels: int | None,
    name: str,
) -> Value:
    count = int(layer[4])
    float_operand(layer, name, x)
    checked_rank(layer, name, x, count + 2, _AXES[count])
    positive(layer, name, "channels", channels)
    positive(layer, name, "groups", groups)
    sizes = per_axis(layer, name, "kernel", kernel, count, 1)
    strides = per_axis(layer, name, "stride", stride, count, 1)
    dilations = per_axis(layer, name, "dilation", dilation, count, 1)
    inputs = known_size(layer, name, x, 1, in_channels, "in_channels")
    if inputs % groups or channels % groups:
        raise TypeMismatch(
            f"{describe(layer, name, x)}: {inputs} input and {channels} output channels cannot be divided into "
            f"{groups} groups"
        )
    shape = (channels, inputs // groups, *sizes)
    weight, offset = weight_and_bias(name, shape, channels, x.tensor.dtype, init, bias, bias_init, weight)
    y = F.conv(
        x,
        weight,
        offset,
        kernel_shape=sizes,
        strides=strides,
        dilations=dilations,
        group=groups,
        **_padding(layer, name, pad, sizes, strides, dilations),
        name=name,
    )
    return check_not_empty(first(y))


@layer
def conv1d(
    x: Value, channels: int, kernel: int | Sequence[int], *, stride: int | Sequence[int] = 1,
    pad: int | str | Sequence[int] = 0, dilation: int | Sequence[int] = 1, groups: int = 1, bias: bool | Value = True,
    init: Any = None, bias_init: Any = None, weight: Value | None = None, in_channels: int | None = None,
    name: str = "conv1d",
) -> Value:  # fmt: skip
    """Convolution (cross-correlation) over one axis: [N, C, W] to [N, channels, W'].

    The parameters are `<name>_weight` [channels, C / groups, kw] and `<name>_bias` [channels]. W' = floor((W +
    pads - dilation * (kw - 1) - 1) / stride) + 1, where pads are the zeros at both ends.

    Args:
        x: float [N, C, W].
        channels: Number of output channels.
        kernel: Size of the kernel: an integer.
        stride: Distance between windows: an integer.
        pad: Zeros added around x: an integer for both ends, or two integers, for the begin and the end. "valid" adds
            none. "same" adds as many as make W' = ceil(W / stride).
        dilation: Distance between elements of a window: an integer.
        groups: Number of groups of channels. Each group of outputs reads one group of inputs.
        bias: False leaves out the bias. If a Value is given, it is used as bias instead of a new parameter.
        init: Initialiser of the weight (default: uniform in +-1 / sqrt(fan in), as in PyTorch; see `gk.init.of`).
        bias_init: Initialiser of the bias (default: uniform in the same range).
        weight: An existing parameter to use as weight.
        in_channels: C; only needed if this size of x is not a fixed integer.
        name: Name of the layer and prefix of its parameters.

    Returns:
        The result, [N, channels, W'].

    Raises:
        UsageError: An argument is wrong, or `in_channels` is needed and not given.
        TypeMismatch: x has another type or rank, or the channels cannot be divided into `groups`.
    """
    return _conv(
        "conv1d", x, channels, kernel, stride, pad, dilation, groups, bias, init, bias_init, weight, in_channels, name
    )


@layer
def conv2d(
    x: Value, channels: int, kernel: int | Sequence[int], *, stride: int | Sequence[int] = 1,
    pad: int | str | Sequence[int] = 0, dilation: int | Sequence[int] = 1, groups: int = 1, bias: bool | Value = True,
    init: Any = None, bias_init: Any = None, weight: Value | None = None, in_channels: int | None = None,
    name: str = "conv2d",
) -> Value:  # fmt: skip
    """Convolution (cross-correlation) of [N, C, H, W] to [N, channels, H', W'].

    The parameters are `<name>_weight` [channels, C / groups, kh, kw] and `<name>_bias` [channels]. H' = floor((H +
    pads - dilation * (kh - 1) - 1) / stride) + 1, where pads are the zeros at both ends of the axis; W' likewise.

    Args:
        x: float [N, C, H, W].
        channels: Number of output channels.
        kernel: Size of the kernel: one integer, or one per axis.
        stride: Distance between windows: one integer, or one per axis.
        pad: Zeros added around x: one integer for all ends; one per axis, for both of its ends; or two per axis, first
            all begins, then all ends. "valid" adds none. "same" adds as many as make H' = ceil(H / stride).
        dilation: Distance between elements of a window: one integer, or one per axis.
        groups: Number of groups of channels. Each group of outputs reads one group of inputs.
        bias: False leaves out the bias. If a Value is given, it is used as bias instead of a new parameter.
        init: Initialiser of the weight (default: uniform in +-1 / sqrt(fan in), as in PyTorch; see `gk.init.of`).
        bias_init: Initialiser of the bias (default: uniform in the same range).
        weight: An existing parameter to use as weight.
        in_channels: C; only needed if this size of x is not a fixed integer.
        name: Name of the layer and prefix of its parameters.

    Returns:
        The result, [N, channels, H', W'].

    Raises:
        UsageError: An argument is wrong, or `in_channels` is needed and not given.
        TypeMismatch: x has another type or rank, or the channels cannot be divided into `groups`.
    """
    return _conv(
        "conv2d", x, channels, kernel, stride, pad, dilation, groups, bias, init, bias_init, weight, in_channels, name
    )


@layer
def conv3d(
    x: Value, channels: int, kernel: int | Sequence[int], *, stride: int | Sequence[int] = 1,
    pad: int | str | Sequence[int] = 0, dilation: int | Sequence[int] = 1, groups: int = 1, bias: bool | Value = True,
    init: Any = None, bias_init: Any = None, weight: Value | None = None, in_channels: int | None = None,
    name: str = "conv3d",
) -> Value:  # fmt: skip
    """Convolution (cross-correlation) over three axes: [N, C, D, H, W] to [N, channels, D', H', W'].

    The parameters are `<name>_weight` [channels, C / groups, kd, kh, kw] and `<name>_bias` [channels]. D' =
    floor((D + pads - dilation * (kd - 1) - 1) / stride) + 1, where pads are the zeros at both ends of the axis; H' and
    W' likewise.

    Args:
        x: float [N, C, D, H, W].
        channels: Number of output channels.
        kernel: Size of the kernel: one integer, or one per axis.
        stride: Distance between windows: one integer, or one per axis.
        pad: Zeros added around x: one integer for all ends; one per axis, for both of its ends; or two per axis, first
            all begins, then all ends. "valid" adds none. "same" adds as many as make D' = ceil(D / stride).
        dilation: Distance between elements of a window: one integer, or one per axis.
        groups: Number of groups of channels. Each group of outputs reads one group of inputs.
        bias: False leaves out the bias. If a Value is given, it is used as bias instead of a new parameter.
        init: Initialiser of the weight (default: uniform in +-1 / sqrt(fan in), as in PyTorch; see `gk.init.of`).
        bias_init: Initialiser of the bias (default: uniform in the same range).
        weight: An existing parameter to use as weight.
        in_channels: C; only needed if this size of x is not a fixed integer.
        name: Name of the layer and prefix of its parameters.

    Returns:
        The result, [N, channels, D', H', W'].

    Raises:
        UsageError: An argument is wrong, or `in_channels` is needed and not given.
        TypeMismatch: x has another type or rank, or the channels cannot be divided into `groups`.
    """
    return _conv(
        "conv3d", x, channels, kernel, stride, pad, dilation, groups, bias, init, bias_init, weight, in_channels, name
    )


@layer
def conv_transpose2d(
    x: Value, channels: int, kernel: int | Sequence[int], *, stride: int | Sequence[int] = 1,
    pad: int | Sequence[int] = 0, output_pad: int | Sequence[int] = 0, dilation: int | Sequence[int] = 1,
    groups: int = 1, bias: bool | Value = True, init: Any = None, bias_init: Any = None, weight: Value | None = None,
    in_channels: int | None = None, name: str = "conv_transpose2d",
) -> Value:  # fmt: skip
    """Transposed convolution: [N, C, H, W] to [N, channels, H', W']; the transpose of conv2d.

    The parameters are `<name>_weight` [C, channels / groups, kh, kw] and `<name>_bias` [channels]. H' = (H - 1) *
    stride - pads + dilation * (kh - 1) + output_pad + 1, where pads are the elements removed at both ends of the axis;
    W' likewise.

    Args:
        x: float [N, C, H, W].
        channels: Number of output channels.
        kernel: Size of the kernel: one integer, or one per axis.
        stride: Distance between the windows of two neighbouring elements of x: one integer, or one per axis.
        pad: Elements removed from the result: one integer for all ends; one per axis, for both of its ends; or two per
            axis, first all begins, then all ends.
        output_pad: Elements added at the end of each axis of the result: one integer, or one per axis.
        dilation: Distance between elements of a window: one integer, or one per axis.
        groups: Number of groups of channels. Each group of outputs reads one group of inputs.
        bias: False leaves out the bias. If a Value is given, it is used as bias instead of a new parameter.
        init: Initialiser of the weight (default: uniform in +-1 / sqrt(fan in), as in PyTorch; see `gk.init.of`).
        bias_init: Initialiser of the bias (default: uniform in the same range).
        weight: An existing parameter to use as weight.
        in_channels: C; only needed if this size of x is not a fixed integer.
        name: Name of the layer and prefix of its parameters.

    Returns:
        The result, [N, channels, H', W'].

    Raises:
        UsageError: An argument is wrong, or `in_channels` is needed and not given.
        TypeMismatch: x has another type or rank, or the channels cannot be divided into `groups`.
    """
    layer = "conv_transpose2d"
    float_operand(layer, name, x)
    checked_rank(layer, name, x, 4, _AXES[2])
    positive(layer, name, "channels", channels)
    positive(layer, name, "groups", groups)
    sizes = per_axis(layer, name, "kernel", kernel, 2, 1)
    strides = per_axis(layer, name, "stride", stride, 2, 1)
    dilations = per_axis(layer, name, "dilation", dilation, 2, 1)
    if isinstance(pad, str):
        raise UsageError(f"{named(layer, name)}: pad must be integers, not {pad!r}")
    inputs = known_size(layer, name, x, 1, in_channels, "in_channels")
    if inputs % groups or channels % groups:
        raise TypeMismatch(
            f"{describe(layer, name, x)}: {inputs} input and {channels} output channels cannot be divided into "
            f"{groups} groups"
        )
    shape = (inputs, channels // groups, *sizes)
    weight, offset = weight_and_bias(name, shape, channels, x.tensor.dtype, init, bias, bias_init, weight)
    y = F.conv_transpose(
        x, weight, offset, kernel_shape=sizes, strides=strides, dilations=dilations, group=groups,
        output_padding=per_axis(layer, name, "output_pad", output_pad, 2, 0),
        **_padding(layer, name, pad, sizes, strides, dilations), name=name,
    )  # fmt: skip
    return check_not_empty(first(y))


# --- pooling, dropout -------------------------------------------------------------------------------


@layer
def max_pool2d(
    x: Value, kernel: int | Sequence[int], *, stride: int | Sequence[int] | None = None,
    pad: int | str | Sequence[int] = 0, dilation: int | Sequence[int] = 1, ceil_mode: bool = False, name: str = "",
) -> Value:  # fmt: skip
    """Maximum over windows of [N, C, H, W]; returns [N, C, H', W'].

    Args:
        x: The operand, [N, C, H, W].
        kernel: Size of the windows: one integer, or one per axis.
        stride: Distance between windows (default: their size).
        pad: Positions added around x: one integer for all ends; one per axis, for both of its ends; or two per axis,
            first all begins, then all ends. "valid" adds nothing. "same" adds as much as makes H' = ceil(H / stride).
            Padding is never the maximum.
        dilation: Distance between elements of a window.
        ceil_mode: Also add a last window that reaches beyond the padding.
        name: Name of the node.
    """
    layer = "max_pool2d"
    checked_rank(layer, name, x, 4, _AXES[2])
    sizes = per_axis(layer, name, "kernel", kernel, 2, 1)
    strides = sizes if stride is None else per_axis(layer, name, "stride", stride, 2, 1)
    dilations = per_axis(layer, name, "dilation", dilation, 2, 1)
    padding = _padding(layer, name, pad, sizes, strides, dilations)
    y = F.max_pool(
        x, kernel_shape=sizes, strides=strides, dilations=dilations, ceil_mode=ceil_mode, **padding, name=name
    )
    return first(y)


@layer
def avg_pool2d(
    x: Value, kernel: int | Sequence[int], *, stride: int | Sequence[int] | None = None,
    pad: int | str | Sequence[int] = 0, ceil_mode: bool = False, count_include_pad: bool = False, name: str = "",
) -> Value:  # fmt: skip
    """Mean over windows of [N, C, H, W]; returns [N, C, H', W'].

    Args:
        x: float [N, C, H, W].
        kernel: Size of the windows: one integer, or one per axis.
        stride: Distance between windows (default: their size).
        pad: Zeros added around x: one integer for all ends; one per axis, for both of its ends; or two per axis, first
            all begins, then all ends. "valid" adds none. "same" adds as many as make H' = ceil(H / stride).
        ceil_mode: Also add a last window that reaches beyond the padding.
        count_include_pad: Divide by the size of the whole window, also where it reaches into the padding. By default
            only elements of x are counted, as in ONNX. (PyTorch's default is True.)
        name: Name of the node.
    """
    layer = "avg_pool2d"
    checked_rank(layer, name, x, 4, _AXES[2])
    sizes = per_axis(layer, name, "kernel", kernel, 2, 1)
    strides = sizes if stride is None else per_axis(layer, name, "stride", stride, 2, 1)
    padding = _padding(layer, name, pad, sizes, strides, (1, 1))
    y = F.average_pool(
        x, kernel_shape=sizes, strides=strides, ceil_mode=ceil_mode, count_include_pad=count_include_pad, **padding,
        name=name,
    )  # fmt: skip
    return first(y)


@layer
def global_avg_pool(x: Value, *, name: str = "") -> Value:
    """Mean over all spatial axes: [N, C, *spatial] to [N, C, 1, ...]."""
    return first(F.global_average_pool(x, name=name))


@layer
def global_max_pool(x: Value, *, name: str = "") -> Value:
    """Maximum over all spatial axes: [N, C, *spatial] to [N, C, 1, ...]."""
    return first(F.global_max_pool(x, name=name))


@layer
def dropout(x: Value, ratio: float = 0.5, *, name: str = "") -> Value:
    """Dropout: in training, set elements to 0 at random and scale the others; in inference, return x.

    Args:
        x: A float tensor.
        ratio: Probability that an element becomes 0, from 0 to below 1. The others are divided by 1 - ratio.
        name: Name of the node.
    """
    float_operand("dropout", name, x)
    if not 0.0 <= ratio < 1.0:
        raise UsageError(f"{named('dropout', name)}: ratio must be in [0, 1), not {ratio!r}")
    return first(F.dropout(x, float(ratio), name=name))


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        right = f"gk.{name}" if registry.function(name) is not None and not name.startswith("_") else elsewhere(name)
        hint = did_you_mean(name, __all__, alike=0.7) if right is None else f"; write {right}"
        raise AttributeError(f"gk.nn has no layer {name!r}{hint}")
