"""Depthwise convolutions, channels last: the native kernels against the references in float64."""

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.executor.devices.cpu import native
from graphkit.executor.devices.cpu._base import epilogue
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.registry import make_kernel
from graphkit.executor.memory.packing import aligned_bytes
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import TensorType
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
    # Windows that slide over copies: several parts of lines and groups of channels, and lines that see padding only.
    ((2, 30, 29, 77), (7, 7), dict(pads=(3, 3, 3, 3))),
    ((1, 33, 300, 35), (5, 5), dict(pads=(2, 1, 2, 4))),
    ((1, 25, 14, 32), (9, 5), dict(pads=(12, 0, 11, 6), dilations=(2, 1), strides=(3, 1))),
    ((1, 6, 5, 16), (5, 7), dict(pads=(9, 8, 9, 9))),
    ((3, 7, 23, 31), (5, 5), {}),
    # Lines of 3 elements in runs of several blocks.
    ((1, 5, 40, 70), (3, 3), dict(pads=(1, 1, 1, 1))),
    ((2, 9, 41, 37), (3, 3), dict(pads=(2, 1, 0, 2), strides=(3, 2))),
    ((1, 50, 64), (3,), dict(strides=(2,))),
    # Windows with few rows in common, which are not copied.
    ((1, 50, 13, 20), (7, 7), dict(pads=(24, 3, 24, 3), dilations=(9, 1))),
    ((1, 60, 14, 33), (5, 5), dict(pads=(2, 2, 2, 2), strides=(11, 1))),
    ((1, 6, 900, 4), (5, 5), dict(pads=(2, 2, 2, 2))),
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


@in_one_item()
@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_the_references(case, every_isa):
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


@in_one_item("pairs")
@pytest.mark.parametrize(
    ("activation", "apply"),
    [
        (("", 0.0, 0.0), lambda y: y),
        (("Relu", 0.0, 0.0), lambda y: np.where(y < 0, 0, y)),
        (("LeakyRelu", 0.25, 0.0), lambda y: np.where(y < 0, y * 0.25, y)),
        (("Clip", -0.5, 1.0), lambda y: np.where(y < -0.5, -0.5, np.where(y > 1, 1, y))),
        (("Silu", 0.0, 0.0), lambda y: y / (1 + np.exp(-y))),
        (("Tanh", 0.0, 0.0), np.tanh),
    ],
    ids=lambda v: v[0] or "none" if isinstance(v, tuple) else "",
)
@pytest.mark.parametrize("packs", [False, True])
@pytest.mark.parametrize("channels", [1, 16, 37])
@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("is_finite", [False, True])
def test_what_follows(activation, apply, packs, channels, size, is_finite, isa):
    """Bias and activation, with NaN in the data, and with weights that are not finite at the padding."""
    rng = np.random.default_rng(channels)
    x = rng.standard_normal((2, 6, 5, channels), dtype=np.float32)
    w = rng.standard_normal((channels, 1, size, size), dtype=np.float32)
    bias = rng.standard_normal(channels, dtype=np.float32)
    x[1, 2, 3, 0] = np.nan
    if not is_finite:
        w[-1, 0, 0, 0] = np.inf
    pad = size // 2
    wide = [a.astype(np.float64) for a in (x, w)]
    with np.errstate(invalid="ignore"):
        y = _by_definition(*wide) + bias
    kind, alpha, beta = activation
    node = Node(
        ChannelsLastConv(
            group=channels, pads=(pad,) * 4, activation=kind, activation_alpha=alpha, activation_beta=beta
        ),
        [Value(TensorType("float32", a.shape)) for a in (x, w, bias)],
    )
    window = native.PoolWindow((size, size), (1, 1), (1, 1), (pad, pad), (pad, pad))
    shapes = [first(a.shape) for a in (x, y)]
    found = []
    for threads in (1, 3):
        kernel = native.DepthwiseConvolution(
            *shapes, window, threads, bias=True, epilogue=epilogue(node, residual=3), pack_weights=packs
        )
        weights = w
        if packs:
            weights = aligned_bytes(kernel.packed_bytes(1))
            kernel.pack(1, w, weights)
        found.append(np.zeros(y.shape, np.float32))
        kernel([x, weights, bias], [found[-1]])
    np.testing.assert_array_equal(*found)
    with np.errstate(invalid="ignore", over="ignore"):
        expected = apply(y)
    np.testing.assert_allclose(found[0], expected, rtol=1e-5, atol=1e-5)


def _by_definition(x, w):
    """A convolution of square windows that keeps the size. Padding is not multiplied, so that infinities add no NaN."""
    y = np.zeros(x.shape)

    def spans(offset, size):
        """Return the range that a tap reads, and the range of the results that it is added to, along one axis."""
        return slice(max(offset, 0), size + min(offset, 0)), slice(max(-offset, 0), size + min(-offset, 0))

    size = w.shape[-1]
    for i, j in np.ndindex(size, size):
        (rows, down), (columns, right) = spans(i - size // 2, x.shape[1]), spans(j - size // 2, x.shape[2])
        y[:, down, right] += x[:, rows, columns] * w[:, 0, i, j]
    return y


def test_a_residual_is_refused():
    last = native.Epilogue("relu", residual=True)
    window = native.PoolWindow((3, 3), (1, 1), (1, 1), (0, 0), (0, 0))
    with pytest.raises(native.Unsupported, match="more follows"):
        native.DepthwiseConvolution((1, 4, 5, 5), (1, 4, 3, 3), window, 1, epilogue=last)


@pytest.mark.skipif(not native.has_onednn(), reason="built without oneDNN")
@in_one_item()
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize(
    ("channels", "width", "kernel", "attrs"),
    [
        (32, 40, 31, dict(pads=(15, 15))),
        (48, 90, 9, dict(pads=(3, 5), strides=(2,))),
        (5, 17, 3, dict(dilations=(3,), pads=(2, 1))),
        (16, 3, 3, dict(pads=(30, 31))),
        (16, 1, 1, {}),
    ],
    ids=str,
)
def test_one_axis(channels, width, kernel, attrs, constant, residual):
    """oneDNN computes a convolution along one axis as one of images of one row, never by its reference code."""
    rng = np.random.default_rng(channels)
    op = ChannelsLastConv(group=channels, **attrs)
    x = rng.standard_normal((2, width, channels), dtype=np.float32)
    w = rng.standard_normal((channels, 1, kernel), dtype=np.float32)
    b = rng.standard_normal(channels, dtype=np.float32)
    y = op.reference(numpy_xp, *(a.astype(np.float64) for a in (x, w, b)))
    operands = [x, w, b]
    if residual:
        operands.append(rng.standard_normal(y.shape, dtype=np.float32))
        y = y + operands[-1]
    node = Node(op, [Value(TensorType("float32", a.shape)) for a in operands])
    found = []
    for threads in (1, 3):
        made = make_kernel("cpu", node, KernelContext(threads, constant_inputs={1: w} if constant else {}))
        # Images of one row; w has its row before the columns.
        given = [a[..., None, :] if i == 1 else a[:, None] if a.ndim > 1 else a for i, a in enumerate(operands)]
        if made.packed_inputs:
            given[1] = aligned_bytes(made.packed_bytes(1))
            made.pack(1, w, given[1])
        found.append(np.full(y.shape, np.nan, np.float32))
        made(given, [found[-1][:, None]])
        if {"avx2", "fma"} <= set(native.cpu_features()) and channels % 16 == 0:
            assert not made.implementation.startswith(("ref", "gemm")), made.implementation
    np.testing.assert_array_equal(*found)
    np.testing.assert_allclose(found[0], y, rtol=0, atol=2e-6 * max(1, np.abs(y).max()) * kernel**0.5)


@in_one_item()
@pytest.mark.parametrize(
    ("dilation", "stride", "width", "copies"),
    [(1, 1, 56, True), (4, 1, 56, True), (1, 4, 56, True), (9, 1, 56, False), (1, 8, 56, False), (1, 1, 1000, False)],
)
def test_copies_are_shared_by_lines(dilation, stride, width, copies):
    """If lines of windows share few rows, copies would be larger than the result."""
    pad = 3 * dilation
    window = native.PoolWindow((7, 7), (stride, 1), (dilation, 1), (pad, 3), (pad, 3))
    y = (1, 32, (56 - 1) // stride + 1, width)
    assert native.DepthwiseConvolution.slides(y, window) == copies
    kernel = native.DepthwiseConvolution((1, 32, 56, width), y, window, 1, pack_weights=True)
    assert (kernel.scratch_bytes > 0) == copies
    assert kernel.scratch_bytes <= 4 * (1 << 16) + 4 * 49 * 32


@pytest.mark.skipif(not native.has_onednn(), reason="built without oneDNN")
def test_windows_slide_in_models():
    """Large windows of wide images slide over copies; others do not."""
    rng = np.random.default_rng(0)
    for size, stride, width, slides in [(5, 1, 12, True), (7, 1, 30, True), (5, 1, 11, False), (5, 2, 30, False),
                                        (3, 1, 30, False)]:  # fmt: skip
        op = ChannelsLastConv(group=32, pads=(size // 2,) * 4, strides=(stride, stride))
        x = rng.standard_normal((1, width, width, 32), dtype=np.float32)
        w = rng.standard_normal((32, 1, size, size), dtype=np.float32)
        node = Node(op, [Value(TensorType("float32", a.shape)) for a in (x, w)])
        kernel = make_kernel("cpu", node, KernelContext(1, constant_inputs={1: w}))
        assert isinstance(kernel, native.DepthwiseConvolution) == slides, (size, stride, width)
        packed = aligned_bytes(kernel.packed_bytes(1))
        kernel.pack(1, w, packed)
        y = np.full(node.output.tensor.static_shape, np.nan, np.float32)
        kernel([x, packed], [y])
        expected = op.reference(numpy_xp, *(a.astype(np.float64) for a in (x, w)))
        np.testing.assert_allclose(y, expected, rtol=0, atol=1e-4)
