"""Random networks: convolution, pooling and resizing. The functions return the same as those of `random_arithmetic`."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.checks.random_network import Built, Network
from graphkit.ops import F


def windows(net: Network, shape: tuple[int, ...], pooling: bool) -> dict[str, Any] | None:
    """Draw kernel, strides, dilations and pads with which the result is not empty; None if there are none."""
    kernel, strides, dilations, begins, ends = [], [], [], [], []
    for size in shape:
        k, s, d = net.number(1, 4), net.number(1, 3), net.choose([1, 1, 1, 2, 3])
        most = k - 1 if pooling else 3
        a, b = (0, 0) if net.chance(0.3) else (net.number(0, most), net.number(0, most))
        if size + a + b < (k - 1) * d + 1:
            k = 1
            if pooling:
                a = b = 0
        kernel.append(k)
        strides.append(s)
        dilations.append(d)
        begins.append(a)
        ends.append(b)
    if pooling and net.chance(0.5):
        dilations = [1] * len(shape)
    if any(n + a + b < (k - 1) * d + 1 for n, k, d, a, b in zip(shape, kernel, dilations, begins, ends, strict=True)):
        return None
    return {
        "kernel_shape": tuple(kernel),
        "strides": tuple(strides),
        "dilations": tuple(dilations),
        "pads": (*begins, *ends),
    }


def images(array: np.ndarray) -> bool:
    return 3 <= array.ndim <= 5 and 0 not in array.shape[1:]


def convolution(net: Network) -> Built:
    x = net.pick(images)
    if x is None:
        return None
    _, channels, *spatial = net.shape(x)
    with_window = windows(net, tuple(spatial), pooling=False)
    if with_window is None:
        return None
    groups = net.choose([1, 1, channels, *(g for g in range(2, channels) if channels % g == 0)])
    transposed = net.chance(0.25)
    out = net.number(1, 5) * (1 if transposed else groups)
    kernel = with_window["kernel_shape"]
    if transposed:
        stride, dilation, pads = with_window["strides"], with_window["dilations"], list(with_window["pads"])
        half = len(spatial)
        for i, size in enumerate(spatial):
            if (size - 1) * stride[i] + (kernel[i] - 1) * dilation[i] + 1 - pads[i] - pads[i + half] < 1:
                pads[i] = pads[i + half] = 0
        with_window["pads"] = tuple(pads)
        if net.chance(0.4):
            with_window["output_padding"] = tuple(net.number(0, s - 1) for s in stride)
        weight = net.param(channels, out, *kernel)
        bias = net.param(out * groups) if net.chance(0.5) else None
        if net.chance(0.3):
            with_window.pop("kernel_shape")
        return F.conv_transpose(x, weight, bias, group=groups, **with_window), False
    scale = F.mul(net.param(out, channels // groups, *kernel), np.array(0.3, net.dtype)) if net.chance(0.2) else None
    weight = net.param(out, channels // groups, *kernel) if scale is None else scale
    result = F.conv(x, weight, net.param(out) if net.chance(0.5) else None, group=groups, **with_window)
    choice = net.number(0, 8)
    if choice == 0:
        made = F.batch_normalization(
            result, net.param(out), net.param(out), net.param(out), net.param(out, low=0.5), epsilon=1e-3
        )
        result = made[0] if isinstance(made, tuple) else made
    if choice in (0, 1):
        result = F.add(result, net.param(out, *(1,) * len(spatial)))
    if net.chance(0.5):
        result = net.choose(
            [F.relu, F.sigmoid, F.hard_swish, lambda v: F.clip(v, F.cast_like(0.0, v), F.cast_like(6.0, v))]
        )(result)
    net.compute(result)
    same = net.pick(lambda a: a.shape == net.shape(result))
    return (result if same is None else F.relu(F.add(same, result))), False


def starts_behind(size: int, axis: int, window: dict[str, Any]) -> bool:
    """Whether ceil_mode would add a window within the padding. Kernels omit it; onnx's shape inference counts it."""
    pads = window["pads"]
    begin, end = pads[axis], pads[axis + len(pads) // 2]
    stride, span = window["strides"][axis], (window["kernel_shape"][axis] - 1) * window["dilations"][axis] + 1
    return bool(-(-(size + begin + end - span) // stride) * stride >= size + begin)


def pooling(net: Network) -> Built:
    x = net.pick(images)
    if x is None:
        return None
    if net.chance(0.15):
        return net.choose([F.global_average_pool, F.global_max_pool])(x), False
    window = windows(net, net.shape(x)[2:], pooling=True)
    if window is None:
        return None
    ceil_mode = net.chance(0.4) and not any(starts_behind(n, i, window) for i, n in enumerate(net.shape(x)[2:]))
    if net.chance(0.5):
        made = F.max_pool(x, ceil_mode=ceil_mode, **window)
        return (made[0] if isinstance(made, tuple) else made), x in net.exact
    return F.average_pool(x, ceil_mode=ceil_mode, count_include_pad=net.chance(0.5), **window), False


def resize(net: Network) -> Built:
    x = net.pick(lambda a: images(a) and a.size > 0 and a.ndim == 4)
    if x is None:
        return None
    _, _, h, w = net.shape(x)
    mode = net.choose(["nearest", "linear", "cubic"])
    how = net.choose(["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"])
    sizes = np.array([*net.shape(x)[:2], net.number(1, 2 * h + 1), net.number(1, 2 * w + 1)])
    if mode == "nearest":
        scales = np.array([1, 1, net.choose([1.0, 2.0, 0.5, 3.0]), net.choose([1.0, 2.0, 0.5])], np.float32)
        if (np.floor(np.array([h, w]) * scales[2:]) < 1).any():
            return None
        return F.resize(
            x, None, scales, mode=mode, coordinate_transformation_mode="asymmetric", nearest_mode="floor"
        ), (x in net.exact)
    return F.resize(x, None, None, sizes, mode=mode, coordinate_transformation_mode=how), False
