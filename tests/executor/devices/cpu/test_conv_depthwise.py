"""Depthwise convolutions, channels last: the native kernels against the references in float64."""

import numpy as np
import pytest

from graphkit.executor.devices.cpu import native
from graphkit.ops.internal.channels_last import ChannelsLastConv
from graphkit.ops.internal.channels_last_gradient import ChannelsLastConvGradInput, ChannelsLastConvGradWeight
from graphkit.ops.xp import numpy_xp


def random_case(seed):
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 4))
    kernel, strides, dilations = (tuple(int(v) for v in rng.integers(1, high, rank)) for high in (5, 4, 3))
    pads = tuple(int(v) for v in rng.integers(0, 3, 2 * rank))
    span = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    spatial = tuple(s + int(rng.integers(0, 9)) for s in span)
    channels = int(rng.choice([1, 3, 8, 16, 17, 32, 45]))
    return (int(rng.integers(0, 4)), *spatial, channels), kernel, dict(strides=strides, dilations=dilations, pads=pads)


CASES = [
    ((2, 9, 9, 16), (3, 3), dict(pads=(1, 1, 1, 1))),
    ((2, 14, 15, 40), (3, 3), dict(pads=(1, 1, 1, 1), strides=(2, 2))),
    ((1, 20, 20, 33), (5, 5), dict(pads=(2, 2, 2, 2), strides=(2, 1))),
    ((1, 9, 9, 3), (7, 7), dict(pads=(3, 3, 3, 3))),
    *(random_case(seed) for seed in range(30)),
]


def check(make, inputs, expected):
    """One result, which has the same bits for 1 and for 3 threads."""
    found = []
    for threads in (1, 3):
        found.append(np.full(expected.shape, np.nan, np.float32))
        make(threads)(inputs, [found[-1]])
    np.testing.assert_array_equal(*found)
    scale = max(1.0, float(np.abs(expected).max(initial=0)))
    np.testing.assert_allclose(found[0], expected, rtol=0, atol=3e-6 * scale)


def first(shape):
    return (shape[0], shape[-1], *shape[1:-1])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_the_references(case, isa):
    shape, kernel, attrs = case
    rng = np.random.default_rng(1)
    channels = shape[-1]
    attrs = {**attrs, "group": channels}
    x, w = (rng.standard_normal(s, dtype=np.float32) for s in (shape, (channels, 1, *kernel)))
    wide = [a.astype(np.float64) for a in (x, w)]
    y = ChannelsLastConv(**attrs).reference(numpy_xp, *wide)
    dy = rng.standard_normal(y.shape, dtype=np.float32)
    g = ChannelsLastConv(**attrs).standard().geometry(first(shape), w.shape)
    window = native.PoolWindow(kernel, g.strides, g.dilations, g.begin, g.end)
    outer, inner = first(shape), first(y.shape)
    check(lambda n: native.DepthwiseConvolution(outer, inner, window, n), [x, w], y)
    dx = ChannelsLastConvGradInput(**attrs).reference(numpy_xp, dy.astype(np.float64), wide[1], x)
    check(lambda n: native.DepthwiseBackwardData(inner, outer, window, n), [dy, w], dx)
    dw = ChannelsLastConvGradWeight(**attrs).reference(numpy_xp, wide[0], dy.astype(np.float64), w)
    check(lambda n: native.DepthwiseBackwardWeights(outer, inner, window, n), [x, dy], dw)
