"""Pooling, Pooling_v1 and adaptive pooling, against loops over windows in numpy."""

import itertools
import math

import numpy as np
import pytest

from tests.mxnet_io.operator_cases import case, floats
from tests.mxnet_io.operator_checks import check


def pooled(x, kernel, kind, stride=None, pad=None, count=None, include=True, power=2, divide_by_kernel=False):
    """Pooling by its definition: count(size, kernel, stride, pad) windows of each axis; in 'full', they may reach
    beyond the padding. An average counts the positions up to the end of the padding, or those inside of x.
    """
    root = {1: np.positive, 2: np.sqrt, 3: np.cbrt}[power]
    axes = x.ndim - 2
    stride, pad = stride or (1,) * axes, pad or (0,) * axes
    count = count or (lambda n, k, s, p: (n + 2 * p - k) // s + 1)
    sizes = [count(*part) for part in zip(x.shape[2:], kernel, stride, pad, strict=True)]
    y = np.zeros((*x.shape[:2], *sizes))
    for place in itertools.product(*map(range, sizes)):
        begins = [i * s - p for i, s, p in zip(place, stride, pad, strict=True)]
        ends = [min(b + k, n + p) for b, k, n, p in zip(begins, kernel, x.shape[2:], pad, strict=True)]
        padded = math.prod(e - b for b, e in zip(begins, ends, strict=True))
        cut = tuple(slice(max(b, 0), min(e, n)) for b, e, n in zip(begins, ends, x.shape[2:], strict=True))
        window = x[(..., *cut)].astype(np.float64).reshape(*x.shape[:2], -1)
        divisor = math.prod(kernel) if divide_by_kernel else padded if include else max(window.shape[-1], 1)
        y[(..., *place)] = {
            "max": lambda w: w.max(-1), "sum": lambda w: w.sum(-1), "avg": lambda w, d=divisor: w.sum(-1) / d,
            "lp": lambda w: root((w**power).sum(-1)),
        }[kind](window)  # fmt: skip
    return y


def full(n, k, s, p):
    return math.ceil((n + 2 * p - k) / s) + 1


P1, P2, P3 = floats(2, 3, 10), floats(2, 3, 7, 8), floats(1, 2, 5, 4, 5)
ZEROS_AROUND = np.pad(P2, [(0, 0), (0, 0), (1, 1), (1, 1)])
KINDS = ("max", "avg", "sum", "lp")
POOLING = [
    *(
        case(
            "Pooling",
            P2,
            gives=pooled(P2, (3, 2), kind, (2, 2), (1, 0)),
            kernel=(3, 2),
            stride=(2, 2),
            pad=(1, 0),
            pool_type=kind,
            p_value=2,
        )
        for kind in KINDS
    ),
    *(
        case(
            "Pooling",
            P2,
            gives=pooled(P2, (3, 3), kind, (2, 3), (1, 0), full),
            kernel=(3, 3),
            stride=(2, 3),
            pad=(1, 0),
            pool_type=kind,
            p_value=2,
            pooling_convention="full",
        )
        for kind in KINDS
    ),
    case("Pooling", P2, gives=pooled(P2, (2, 2), "max"), kernel=(2, 2), pool_type="max"),
    # Strides larger than the kernel: the windows that "full" adds have no padding to reach into.
    *(
        case(
            "Pooling",
            P2[..., :7],
            gives=P2[..., ::2, :7:2],
            kernel=(1, 1),
            stride=(2, 2),
            pool_type=kind,
            pooling_convention="full",
        )
        for kind in ("max", "avg", "sum")
    ),
    case(
        "Pooling",
        P2[..., :7],
        gives=pooled(P2[..., :7], (2, 1), "avg", (3, 3), None, full),
        kernel=(2, 1),
        stride=(3, 3),
        pool_type="avg",
        pooling_convention="full",
    ),
    case(
        "Pooling",
        P2,
        gives=pooled(P2, (3, 3), "avg", (2, 2), (1, 1), include=False),
        kernel=(3, 3),
        stride=(2, 2),
        pad=(1, 1),
        pool_type="avg",
        count_include_pad=False,
    ),
    case(
        "Pooling",
        P2,
        gives=pooled(P2, (3, 3), "avg", (2, 2), (1, 1), full, include=False),
        kernel=(3, 3),
        stride=(2, 2),
        pad=(1, 1),
        pool_type="avg",
        count_include_pad=False,
        pooling_convention="full",
    ),
    # The last windows contain padding only.
    case(
        "Pooling",
        P2,
        gives=pooled(P2, (3, 2), "avg", (2, 3), (1, 1), full, include=False),
        kernel=(3, 2),
        stride=(2, 3),
        pad=(1, 1),
        pool_type="avg",
        count_include_pad=False,
        pooling_convention="full",
    ),
    case(
        "Pooling",
        P2,
        gives=pooled(P2, (2, 2), "lp", (2, 2), power=1),
        kernel=(2, 2),
        stride=(2, 2),
        pool_type="lp",
        p_value=1,
    ),
    case(
        "Pooling",
        P2,
        gives=pooled(P2, (2, 2), "lp", (2, 2), power=3),
        kernel=(2, 2),
        stride=(2, 2),
        pool_type="lp",
        p_value=3,
    ),
    case("Pooling", P1, gives=pooled(P1, (3,), "max", (2,), (1,)), kernel=(3,), stride=(2,), pad=(1,), pool_type="max"),
    case(
        "Pooling",
        P1,
        gives=pooled(P1, (4,), "avg", (3,), None, full),
        kernel=(4,),
        stride=(3,),
        pool_type="avg",
        pooling_convention="full",
    ),
    case(
        "Pooling",
        P1,
        gives=pooled(P1, (3,), "max", (2,), None, lambda n, k, s, p: math.ceil(n / s)),
        kernel=(3,),
        stride=(2,),
        pool_type="max",
        pooling_convention="same",
    ),
    case(
        "Pooling",
        P3,
        gives=pooled(P3, (2, 2, 3), "max", (2, 1, 2)),
        kernel=(2, 2, 3),
        stride=(2, 1, 2),
        pool_type="max",
    ),
    case(
        "Pooling",
        P3,
        gives=pooled(P3, (2, 2, 3), "avg", (2, 1, 2), None, full),
        kernel=(2, 2, 3),
        stride=(2, 1, 2),
        pool_type="avg",
        pooling_convention="full",
    ),
    case("Pooling", P2, gives=P2.max((2, 3), keepdims=True), global_pool=True, kernel=(7, 7), pool_type="max"),
    case(
        "Pooling",
        P2,
        gives=P2.mean((2, 3), keepdims=True),
        global_pool=True,
        pool_type="avg",
        pad=(3, 3),
        stride=(2, 2),
        kernel=(1, 1),
    ),
    case("Pooling", P2, gives=P2.sum((2, 3), keepdims=True), global_pool=True, pool_type="sum", kernel=(1, 1)),
    case(
        "Pooling",
        P2,
        gives=np.sqrt((P2**2).sum((2, 3), keepdims=True)),
        global_pool=True,
        pool_type="lp",
        p_value=2,
        kernel=(1, 1),
    ),
    case(
        "Pooling",
        P2.transpose(0, 2, 3, 1),
        gives=pooled(P2, (3, 2), "avg", (2, 2), (1, 0)).transpose(0, 2, 3, 1),
        kernel=(3, 2),
        stride=(2, 2),
        pad=(1, 0),
        pool_type="avg",
        layout="NHWC",
    ),
    case(
        "Pooling",
        P1.swapaxes(1, 2),
        gives=pooled(P1, (3,), "max").swapaxes(1, 2),
        kernel=(3,),
        pool_type="max",
        layout="NWC",
    ),
    case(
        "Pooling",
        P2.transpose(0, 2, 3, 1),
        gives=P2.mean((2, 3), keepdims=True).transpose(0, 2, 3, 1),
        global_pool=True,
        pool_type="avg",
        layout="NHWC",
        kernel=(1, 1),
    ),
    # The first version pads with zeros, also for a maximum, and divides by the size of the kernel.
    case(
        "Pooling_v1",
        P2,
        gives=pooled(P2, (3, 3), "avg", (2, 2), (1, 1), divide_by_kernel=True),
        kernel=(3, 3),
        stride=(2, 2),
        pad=(1, 1),
        pool_type="avg",
    ),
    case(
        "Pooling_v1",
        P2,
        gives=pooled(ZEROS_AROUND, (3, 3), "max", (2, 2), None, full),
        kernel=(3, 3),
        stride=(2, 2),
        pad=(1, 1),
        pool_type="max",
        pooling_convention="full",
    ),
    case(
        "Pooling_v1",
        P2,
        gives=pooled(P2, (3, 3), "avg", (2, 3), (1, 0), full, divide_by_kernel=True),
        kernel=(3, 3),
        stride=(2, 3),
        pad=(1, 0),
        pool_type="avg",
        pooling_convention="full",
    ),
    case(
        "Pooling_v1",
        P2,
        gives=pooled(P2, (3, 3), "sum", (2, 2), (1, 1)),
        kernel=(3, 3),
        stride=(2, 2),
        pad=(1, 1),
        pool_type="sum",
    ),
    case("Pooling_v1", P2, gives=P2.mean((2, 3), keepdims=True), global_pool=True, pool_type="avg", kernel=(1, 1)),
]


def adaptive(x, height, width):
    y = np.zeros((*x.shape[:2], height, width))
    for i, j in itertools.product(range(height), range(width)):
        rows = slice(i * x.shape[2] // height, math.ceil((i + 1) * x.shape[2] / height))
        columns = slice(j * x.shape[3] // width, math.ceil((j + 1) * x.shape[3] / width))
        y[..., i, j] = x[..., rows, columns].mean((2, 3))
    return y


ADAPTIVE = [
    case("_contrib_AdaptiveAvgPooling2D", P2, gives=P2.mean((2, 3), keepdims=True)),
    case("_contrib_AdaptiveAvgPooling2D", P2, gives=adaptive(P2, 3, 3), output_size=3),
    case("_contrib_AdaptiveAvgPooling2D", P2, gives=adaptive(P2, 2, 5), output_size=(2, 5)),
    case("_contrib_AdaptiveAvgPooling2D", P2, gives=adaptive(P2, 9, 10), output_size=(9, 10)),
]


@pytest.mark.parametrize("cases", [POOLING, ADAPTIVE])
def test_values(cases, tmp_path):
    check(cases, tmp_path)
