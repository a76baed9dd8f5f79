"""The native convolutions against the operators' references in float64."""

import ml_dtypes
import numpy as np
import pytest
from combinations import in_one_item

from graphkit.executor.devices.cpu import native
from graphkit.executor.memory.packing import aligned_bytes
from graphkit.ops.nn.conv import Conv, ConvGradInput, ConvGradWeight, ConvTranspose
from graphkit.ops.xp import numpy_xp

pytestmark = pytest.mark.skipif(not native.has_onednn(), reason="built without oneDNN")

# (x, w, attributes)
CASES = [
    ((2, 3, 5, 5), (4, 3, 3, 3), {}),
    ((64, 1, 28, 28), (20, 1, 5, 5), {}),
    ((8, 20, 12, 12), (50, 20, 5, 5), {}),
    ((2, 3, 6, 7), (4, 3, 3, 2), dict(pads=(1, 0, 2, 1), strides=(2, 3))),
    ((1, 2, 9, 9), (2, 2, 2, 3), dict(dilations=(2, 3), pads=(1, 2, 1, 0))),
    ((2, 4, 5, 6), (6, 2, 3, 3), dict(group=2, pads=(1, 1, 1, 1), strides=(2, 2))),
    ((2, 16, 9, 9), (16, 1, 3, 3), dict(group=16, pads=(1, 1, 1, 1))),
    ((2, 3, 5, 5), (6, 1, 3, 3), dict(group=3, dilations=(2, 1))),
    ((2, 3, 7), (4, 3, 3), dict(pads=(1, 1), strides=(2,))),
    ((1, 2, 4, 3, 4), (3, 2, 2, 2, 3), dict(pads=(0, 1, 1, 1, 0, 1), strides=(1, 2, 2))),
    ((1, 6, 4, 4, 4), (4, 3, 2, 2, 2), dict(group=2)),
    ((4, 32, 8, 8), (64, 32, 1, 1), dict(strides=(2, 2))),
]


def random_case(seed: int):
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 4))
    group = int(rng.choice([1, 1, 2, 3]))
    channels, filters = group * int(rng.integers(1, 6)), group * int(rng.integers(1, 6))
    kernel, strides, dilations = (tuple(int(v) for v in rng.integers(1, high, rank)) for high in (4, 4, 3))
    pads = tuple(int(v) for v in rng.integers(0, 3, 2 * rank))
    span = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    spatial = tuple(max(1, s + int(rng.integers(0, 6)) - 2) for s in span)
    pads = tuple(max(p, s - n) for p, s, n in zip(pads, span * 2, spatial * 2, strict=True))
    attrs = dict(group=group, strides=strides, dilations=dilations, pads=pads)
    return (int(rng.integers(1, 4)), channels, *spatial), (filters, channels // group, *kernel), attrs


ALL = CASES + [random_case(seed) for seed in range(40)]


class Example:
    """One convolution with random operands: its shapes, window and float64 reference."""

    def __init__(self, x, w, attrs):
        rng = np.random.default_rng(7)
        self.attrs = attrs
        self.x, self.w = (rng.standard_normal(shape, dtype=np.float32) for shape in (x, w))
        self.geometry = Conv(**attrs).geometry(x, w)
        g = self.geometry
        self.window = native.Window(g.strides, g.dilations, g.begin, g.end, g.group)
        self.y = self.reference(Conv, self.x, self.w)
        self.dy = rng.standard_normal(self.y.shape, dtype=np.float32)
        self.bias = rng.standard_normal(w[0], dtype=np.float32)

    def reference(self, op, *arrays):
        return op(**self.attrs).reference(numpy_xp, *(a.astype(np.float64) for a in arrays))


def packed(kernel, plain):
    """The weights, input 1, as the kernel reads them."""
    if not kernel.packed_inputs:
        return plain
    memory = aligned_bytes(kernel.packed_bytes(1))
    kernel.pack(1, plain, memory)
    return memory


def check(kernel, inputs, *expected, tolerance=2e-6):
    outputs = [np.full(e.shape, np.nan, np.float32) for e in expected]
    kernel(inputs, outputs)
    terms = max((np.prod(a.shape[1:]) for a in inputs if a is not None and a.dtype == np.float32), default=1)
    for got, wanted in zip(outputs, expected, strict=True):
        scale = max(float(np.abs(wanted).max(initial=0)), 1.0)
        np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance * scale * max(np.sqrt(terms), 1))


def column(bias: np.ndarray, rank: int) -> np.ndarray:
    return bias.reshape(-1, *(1,) * (rank - 2))


@in_one_item()
@pytest.mark.parametrize("case", ALL, ids=str)
def test_forward(case):
    e = Example(*case)
    shapes = (e.x.shape, e.w.shape, e.y.shape)
    check(native.Convolution(*shapes, e.window), [e.x, e.w], e.y)
    options = dict(bias=True, epilogue=native.Epilogue("relu"))
    expected = np.maximum(e.y + column(e.bias, e.x.ndim), 0)
    check(native.Convolution(*shapes, e.window, **options), [e.x, e.w, e.bias], expected)
    kernel = native.Convolution(*shapes, e.window, pack_weights=True, **options)
    check(kernel, [e.x, packed(kernel, e.w), e.bias], expected)


def channels_last(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))


@in_one_item("values")
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("case", ALL, ids=str)
def test_layouts_and_residuals(case, last):
    e = Example(*case)
    if 0 in e.x.shape or 0 in e.y.shape:
        pytest.skip("a residual of nothing")
    shapes = (e.x.shape, e.w.shape, e.y.shape)
    place = channels_last if last else np.asarray
    residual = np.random.default_rng(3).standard_normal(e.y.shape, dtype=np.float32)
    for behind in (False, True):
        epilogue = native.Epilogue("relu", residual=True, residual_last=behind)
        kernel = native.Convolution(*shapes, e.window, epilogue=epilogue, pack_weights=True, channels_last=last)
        expected = np.maximum(e.y, 0) + residual if behind else np.maximum(e.y + residual, 0)
        inputs = [place(e.x), packed(kernel, e.w), None, place(residual)]
        check(kernel, inputs, place(expected))
        assert kernel.inplace == [(3, 0)]
        out = inputs[3].copy()
        kernel([*inputs[:3], out], [out])
        np.testing.assert_allclose(out, place(expected), atol=1e-4)


@in_one_item("values")
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("case", ALL, ids=str)
def test_backward_data(case, last):
    e = Example(*case)
    shapes = (e.dy.shape, e.w.shape, e.x.shape)
    place = channels_last if last else np.asarray
    expected = place(e.reference(ConvGradInput, e.dy, e.w, e.x))
    check(native.ConvolutionBackwardData(*shapes, e.window, channels_last=last), [place(e.dy), e.w], expected)
    kernel = native.ConvolutionBackwardData(*shapes, e.window, pack_weights=True, channels_last=last)
    check(kernel, [place(e.dy), packed(kernel, e.w)], expected)


@in_one_item("values")
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("case", ALL, ids=str)
def test_backward_weights(case, last):
    e = Example(*case)
    expected = e.reference(ConvGradWeight, e.x, e.dy, e.w)
    shapes = (e.x.shape, e.dy.shape, e.w.shape)
    place = channels_last if last else np.asarray
    inputs = [place(e.x), place(e.dy)]
    check(native.ConvolutionBackwardWeights(*shapes, e.window, channels_last=last), inputs, expected)
    total = e.dy.astype(np.float64).sum(axis=(0, *range(2, e.dy.ndim)))
    kernel = native.ConvolutionBackwardWeights(*shapes, e.window, bias=True, channels_last=last)
    check(kernel, inputs, expected, total)


@in_one_item()
@pytest.mark.parametrize("case", ALL, ids=str)
def test_transposed(case):
    """ConvTranspose is the adjoint of Conv: the same cases with the two sides exchanged."""
    e = Example(*case)
    surplus = []
    for n, o, k, s, d, begin, end in zip(e.x.shape[2:], e.y.shape[2:], e.w.shape[2:], *e.geometry[:4], strict=True):
        surplus.append(n - ((o - 1) * s + (k - 1) * d + 1 - begin - end))
    op = ConvTranspose(**e.attrs, output_padding=surplus)
    bias = np.random.default_rng(8).standard_normal(e.x.shape[1], dtype=np.float32)
    expected = op.reference(numpy_xp, *(a.astype(np.float64) for a in (e.dy, e.w, bias)))
    assert expected.shape == e.x.shape
    shapes = (e.dy.shape, e.w.shape, e.x.shape)
    check(native.Deconvolution(*shapes, e.window, bias=True), [e.dy, e.w, bias], expected)
    kernel = native.Deconvolution(*shapes, e.window, bias=True, pack_weights=True)
    check(kernel, [e.dy, packed(kernel, e.w), bias], expected)
    plain = native.Deconvolution(*shapes, e.window, epilogue=native.Epilogue("linear", 2, 1))
    check(plain, [e.dy, e.w], 2 * (expected - column(bias, e.x.ndim)) + 1)


@in_one_item()
@pytest.mark.parametrize("case", CASES[:8], ids=str)
def test_thread_counts_agree(case):
    e = Example(*case)
    for threads in (1, 2, 4):
        shapes = (e.x.shape, e.w.shape, e.y.shape)
        check(native.Convolution(*shapes, e.window, threads=threads), [e.x, e.w], e.y)
        step = native.ConvolutionBackwardWeights(e.x.shape, e.dy.shape, e.w.shape, e.window, threads=threads)
        check(step, [e.x, e.dy], e.reference(ConvGradWeight, e.x, e.dy, e.w))
        step = native.ConvolutionBackwardData(e.dy.shape, e.w.shape, e.x.shape, e.window, threads=threads)
        check(step, [e.dy, e.w], e.reference(ConvGradInput, e.dy, e.w, e.x))


def test_steps_repeat_bit_for_bit():
    e = Example(*CASES[2])
    step = native.ConvolutionBackwardWeights(e.x.shape, e.dy.shape, e.w.shape, e.window, threads=4)
    results = [np.empty(e.w.shape, np.float32) for _ in range(3)]
    for result in results:
        step([e.x, e.dy], [result])
    assert results[0].tobytes() == results[1].tobytes() == results[2].tobytes()


WINDOW = ([1, 1], [1, 1], [0, 0], [0, 0])


def test_empty_batch():
    window = native.Window(*WINDOW)
    x, dy = np.zeros((0, 3, 5, 5), np.float32), np.zeros((0, 4, 3, 3), np.float32)
    w = np.ones((4, 3, 3, 3), np.float32)
    check(native.Convolution(x.shape, w.shape, dy.shape, window), [x, w], dy)
    check(native.ConvolutionBackwardData(dy.shape, w.shape, x.shape, window), [dy, w], x)
    step = native.ConvolutionBackwardWeights(x.shape, dy.shape, w.shape, window, bias=True)
    check(step, [x, dy], np.zeros(w.shape), np.zeros(4))
    check(native.Deconvolution(dy.shape, w.shape, x.shape, window), [dy, w], x)


def test_a_window_that_is_larger_than_the_image():
    """There is no place for it: the result is empty."""
    x, w = np.ones((2, 3, 2, 5), np.float32), np.ones((4, 3, 3, 3), np.float32)
    y = np.zeros((2, 4, 0, 3), np.float32)
    check(native.Convolution(x.shape, w.shape, y.shape, native.Window(*WINDOW)), [x, w], y)


@in_one_item()
@pytest.mark.parametrize(
    ("x", "w", "y", "window", "message"),
    [
        ((2, 3, 5, 5), (4, 3, 3, 3), (2, 4, 4, 4), WINDOW, "spatial dimension 0 does not fit"),
        ((2, 3, 5, 5), (4, 2, 3, 3), (2, 4, 3, 3), WINDOW, "batch or channels do not fit with 1 groups"),
        ((2, 3, 5, 5), (4, 3, 3, 3), (1, 4, 3, 3), WINDOW, "batch or channels do not fit"),
        ((2, 3, 5, 5), (4, 3, 3, 3), (2, 4, 3, 3), ([1], [1], [0], [0]), "need 2 entries each"),
        ((2, 3, 5, 5), (4, 3, 3, 3), (2, 4, 3, 3), ([0, 1], *WINDOW[1:]), "must be positive"),
        ((2, 3, 2, 5), (4, 3, 3, 3), (2, 4, 1, 3), WINDOW, "spatial dimension 0 does not fit"),
        ((2, 3), (4, 3), (2, 4), ([], [], [], []), "one to three spatial dimensions"),
        ((2, 3, 5, 5), (4, 3, 3), (2, 4, 3, 3), WINDOW, "ranks differ"),
    ],
)
def test_shapes_that_do_not_fit(x, w, y, window, message):
    with pytest.raises(native.Error, match=message) as caught:
        native.Convolution(x, w, y, native.Window(*window))
    assert str(list(x)) in str(caught.value)


def test_negative_pads_are_left_to_others():
    window = native.Window([1, 1], [1, 1], [-1, 0], [0, 0])
    with pytest.raises(native.Unsupported, match="negative pads"):
        native.Convolution((2, 3, 5, 5), (4, 3, 3, 3), (2, 4, 2, 3), window)


@in_one_item()
@pytest.mark.parametrize("rank", [2, 3])
def test_common_shapes_use_vectorised_kernels(rank):
    window = native.Window([1] * rank, [1] * rank, [1] * rank, [1] * rank)
    x = (2, 32, *(8,) * rank)
    w = (32, 32, *(3,) * rank)
    for step in (
        native.Convolution(x, w, x, window),
        native.ConvolutionBackwardData(x, w, x, window),
        native.ConvolutionBackwardWeights(x, x, w, window),
        native.Deconvolution(x, w, x, window),
    ):
        if {"avx2", "fma"} <= set(native.cpu_features()):
            assert not step.implementation.startswith(("ref", "gemm")), step.implementation


@pytest.mark.skipif(not native.has_bfloat16(), reason="no bfloat16 arithmetic")
@in_one_item()
@pytest.mark.parametrize("gradient", [False, True], ids=["forward", "gradient"])
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("kernel", [1, 3, 5])
@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5, 15, 16, 17])
def test_few_channels_in_bfloat16(channels: int, kernel: int, last: bool, gradient: bool) -> None:
    """NaN and infinities affect only the results whose windows contain them.

    This might fail because products are summed in pairs, and because rows of tiles may extend beyond a window.
    """
    rng = np.random.default_rng(channels)
    shape, weights, size = (2, channels, 9, 9), (8, channels, kernel, kernel), kernel // 2
    x = rng.standard_normal(shape).astype(ml_dtypes.bfloat16)
    w = rng.standard_normal(weights).astype(ml_dtypes.bfloat16)
    x[1, 0, 4, 4], x[0, 0, 0, 0] = np.inf, np.nan
    window = native.Window((1, 1), (1, 1), (size, size), (size, size))
    if gradient:  # of a convolution with as many filters as x has channels
        w = np.ascontiguousarray(w.transpose(1, 0, 2, 3))
        made = native.ConvolutionBackwardData(
            shape, w.shape, (2, 8, 9, 9), window, dtype="bfloat16", channels_last=last
        )
    else:
        made = native.Convolution(shape, weights, (2, 8, 9, 9), window, dtype="bfloat16", channels_last=last)
    assert list(made.packed_inputs) == []
    given = np.ascontiguousarray(np.moveaxis(x, 1, -1)) if last else x
    y = np.zeros((2, 9, 9, 8) if last else (2, 8, 9, 9), ml_dtypes.bfloat16)
    made([given, w, None] if not gradient else [given, w], [y])
    found = np.moveaxis(y, -1, 1) if last else y
    reached = ~np.isfinite(found.astype(np.float32)).all(axis=1)
    expected = np.zeros((2, 9, 9), bool)
    expected[1, 4 - size : 5 + size, 4 - size : 5 + size] = expected[0, : 1 + size, : 1 + size] = True
    np.testing.assert_array_equal(reached, expected)
    assert not np.isnan(found[1].astype(np.float32)).any(), "infinity stays infinity"


@pytest.mark.skipif(not native.has_bfloat16(), reason="no bfloat16 arithmetic")
@in_one_item()
@pytest.mark.parametrize("residual", [None, "first", "last", "in place"])
@pytest.mark.parametrize("kind", ["", "relu", "tanh"])
@pytest.mark.parametrize("channels", [3, 4])
def test_what_follows_few_channels_in_bfloat16(channels: int, kind: str, residual: str | None) -> None:
    """With packed weights, run after run, numbers and infinities by turns: as plain ones, with all that follows."""
    rng = np.random.default_rng(channels)
    shape, weights, result = (2, 9, 9, channels), (8, channels, 3, 3), (2, 9, 9, 8)
    plain_x = rng.standard_normal(shape).astype(ml_dtypes.bfloat16)
    w = rng.standard_normal(weights).astype(ml_dtypes.bfloat16)
    bias = rng.standard_normal(8).astype(ml_dtypes.bfloat16)
    r = rng.standard_normal(result).astype(ml_dtypes.bfloat16)
    window = native.Window((1, 1), (1, 1), (1, 1), (1, 1))
    sizes = ((2, channels, 9, 9), weights, (2, 8, 9, 9), window)
    options = {"bias": True, "dtype": "bfloat16", "channels_last": True}
    alone = native.Convolution(*sizes, **options)
    end = native.Epilogue(kind, residual=residual is not None, residual_last=residual == "last")
    made = native.Convolution(*sizes, epilogue=end, pack_weights=True, **options)
    held = packed(made, w)
    follows = {"": lambda v: v, "relu": lambda v: np.maximum(v, 0), "tanh": np.tanh}[kind]
    for special in (False, True, False, True):
        x = plain_x.copy()
        if special:
            x[1, 4, 4, 0], x[0, 0, 0, 0], x[1, 8, 8, 1] = np.inf, np.nan, -np.inf
        y, got = np.zeros(result, ml_dtypes.bfloat16), r.copy()
        alone([x, w, bias], [y])
        operands = [] if residual is None else [got if residual == "in place" else r]
        made([x, held, bias, *operands], [got])
        wide, added = y.astype(np.float32), r.astype(np.float32)
        expected = follows(wide + (added if residual in ("first", "in place") else 0))
        expected += added if residual == "last" else 0
        np.testing.assert_allclose(got.astype(np.float32), expected, rtol=3e-2, atol=6e-2)
