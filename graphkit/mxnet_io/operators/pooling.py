"""Pooling, Pooling_v1 and adaptive pooling.

MXNet's convention "full" rounds the number of windows up. This equals "valid" with more padding at the end.
The divisor of an average counts the positions of a window that are inside of the padded input, without those that were
added for "full". Source: src/operator/nn/pool.h of MXNet 1.9.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit.errors import UnsupportedError
from graphkit.ir.dims import Dim, is_static
from graphkit.ir.graph import Value
from graphkit.mxnet_io.call import (
    Call,
    ShapeNeeded,
    converter,
    rank_of,
    require_elements,
    scalar,
    shape_of,
    static_sizes,
)
from graphkit.mxnet_io.operators.convolution import channels_last, to_back, to_front
from graphkit.named_tuples import NamedTuple
from graphkit.ops import F, constant
from graphkit.ops.axes import i64


class _Window(NamedTuple):
    """A pooling window: kernel, stride, padding before and after, and what "full" adds after the padding."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    pad: tuple[int, ...]
    surplus: tuple[int, ...]


@converter("Pooling", "Pooling_v1", "_npx_pooling")
def pooling(call: Call) -> Value:
    attributes = call.attributes
    kind = attributes.choice("pool_type", "max", "avg", "sum", "lp")
    power = attributes.integer("p_value", 2)
    include = attributes.flag("count_include_pad", True)
    last = channels_last(call)
    x = to_front(call[0]) if last else call[0]
    if attributes.flag("global_pool", False):
        attributes.ignore("kernel", "stride", "pad", "pooling_convention")
        y = _global(x, kind, power)
    else:
        y = _windowed(call, x, kind, power, include)
    return to_back(y) if last else y


def _global(x: Value, kind: str, power: int) -> Value:
    if kind == "max":
        result: Value = F.global_max_pool(x)
    elif kind == "avg":
        result = F.global_average_pool(x)
    else:
        axes = i64(*range(2, rank_of(x)))
        added = F.reduce_sum(_powered(x, power) if kind == "lp" else x, axes, keepdims=True)
        result = _root(added, power) if kind == "lp" else added
    return result


def _windowed(call: Call, x: Value, kind: str, power: int, include: bool) -> Value:
    attributes = call.attributes
    kernel = attributes.integers("kernel")
    zeros = (0,) * len(kernel)
    stride = attributes.integers("stride", (1,) * len(kernel)) or (1,) * len(kernel)
    pad = attributes.integers("pad", zeros) or zeros
    convention = attributes.choice("pooling_convention", "valid", "full", "same")
    surplus = zeros
    if convention == "full":
        sizes = shape_of(x)[2:]
        surplus = tuple(_surplus(*part) for part in zip(sizes, kernel, stride, pad, strict=True))
    if convention == "same":
        if len(kernel) != 1 or kind != "max":
            raise UnsupportedError(f"pooling_convention same of {kind} pooling over {len(kernel)} axes")
        # ceil(size / stride) windows from the first element on; the last ones may reach beyond the end.
        surplus = (kernel[0] - 1,)
    window = _Window(kernel, stride, pad, surplus)
    if kind == "max" and call.op == "Pooling_v1" and any(pad):
        # The first version pads with zeros, which may be the maximum; beyond the padding is nothing.
        inner = _padded(x, pad, pad)
        result: Value = F.max_pool(inner, kernel_shape=kernel, strides=stride, pads=(*zeros, *surplus))[0]
        return result
    if kind == "max":
        pads = (*pad, *(p + s for p, s in zip(pad, surplus, strict=True)))
        result = F.max_pool(x, kernel_shape=kernel, strides=stride, pads=pads)[0]
        return result
    if kind == "avg" and call.op != "Pooling_v1":
        return _average(x, window, include)
    added = _sum(_powered(x, power) if kind == "lp" else x, window)
    if kind == "avg":  # the first version divides by the size of the kernel, also at the border
        return F.div(added, scalar(float(np.prod(kernel)), x))
    return _root(added, power) if kind == "lp" else added


def _surplus(size: Dim, kernel: int, stride: int, pad: int) -> int:
    """Return what the last window of "full" needs after the padding: at most stride - 1.

    Raises ShapeNeeded if the size is unknown, and a window could consist of padding only, which ONNX does not have.
    """
    if not is_static(size):
        if stride > max(kernel - pad, 1):
            raise ShapeNeeded(f'pooling_convention full with stride {stride} needs fixed sizes, but one is "{size}"')
        return stride - 1
    room = int(size) + 2 * pad
    count = -(-(room - kernel) // stride) + 1
    return max((count - 1) * stride + kernel - room, 0)


def _average(x: Value, window: _Window, include: bool) -> Value:
    plain: dict[str, Any] = {"kernel_shape": window.kernel, "strides": window.stride}
    if not any(window.surplus):
        pads = (*window.pad, *window.pad)
        result: Value = F.average_pool(x, **plain, pads=pads, count_include_pad=include)
    elif include:
        # Padding that counts becomes part of the tensor; the surplus stays padding, which does not count.
        inner = _padded(x, window.pad, window.pad)
        after = (*(0 for _ in window.kernel), *window.surplus)
        result = F.average_pool(inner, **plain, pads=after, count_include_pad=False)
    elif any(p + s >= k for p, s, k in zip(window.pad, window.surplus, window.kernel, strict=True)):
        # The mean of a window without any element is 0.
        ones = F.constant_of_shape(
            F.concat(i64(1, 1), F.shape(x, start=2), axis=0), value=np.ones(1, x.dtype.numpy)
        )  # fmt: skip
        result = F.div(_sum(x, window), F.max(_sum(ones, window), scalar(1.0, x)))
    else:
        pads = (*window.pad, *(p + s for p, s in zip(window.pad, window.surplus, strict=True)))
        result = F.average_pool(x, **plain, pads=pads, count_include_pad=False)
    return result


def _sum(x: Value, window: _Window) -> Value:
    after = tuple(p + s for p, s in zip(window.pad, window.surplus, strict=True))
    padded = _padded(x, window.pad, after)
    mean = F.average_pool(padded, kernel_shape=window.kernel, strides=window.stride)
    result: Value = F.mul(mean, scalar(float(np.prod(window.kernel)), x))
    return result


def _padded(x: Value, before: Sequence[int], after: Sequence[int]) -> Value:
    if not any((*before, *after)):
        return x
    result: Value = F.pad(x, constant(i64(0, 0, *before, 0, 0, *after)))
    return result


def _powered(x: Value, power: int) -> Value:
    """x^power. Odd powers keep the sign, as in MXNet."""
    if power not in (1, 2, 3):
        raise UnsupportedError(f"p_value {power}: MXNet has 1, 2 and 3")
    result = x
    for _ in range(power - 1):
        result = F.mul(result, x)
    return result


def _root(x: Value, power: int) -> Value:
    if power == 3:
        result: Value = F.mul(F.sign(x), F.pow(F.abs(x), scalar(1.0 / 3.0, x)))
    else:
        result = x if power == 1 else F.sqrt(x)
    return result


@converter("_contrib_AdaptiveAvgPooling2D", "_npx_adaptive_avg_pool2d")
def adaptive_average_pooling(call: Call) -> Value:
    """Output i is the mean of the elements floor(i n / m) to ceil((i + 1) n / m), for size n and output size m."""
    sizes = call.attributes.integers("output_size") or (1,)
    x = call.x
    height, width = sizes * 2 if len(sizes) == 1 else sizes
    if (height, width) == (1, 1):
        result: Value = F.global_average_pool(x)
        return result
    rows, columns = static_sizes(x, (2, 3))
    require_elements(max(rows, columns), max(height, width))
    left = constant(_means(rows, height).astype(x.dtype.numpy))
    right = constant(_means(columns, width).T.astype(x.dtype.numpy))
    result = F.mat_mul(F.mat_mul(left, x), right)
    return result


def _means(size: int, wanted: int) -> np.ndarray:
    """Return the matrix [wanted, size] whose product with a vector contains the means of its windows."""
    matrix = np.zeros((wanted, size))
    for row in range(wanted):
        begin, end = row * size // wanted, -(-(row + 1) * size // wanted)
        matrix[row, begin:end] = 1.0 / (end - begin)
    return matrix
