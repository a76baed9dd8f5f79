"""Epilogues of matrix products, in oneDNN and in graphkit's own pass, compared with float64."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from combinations import in_one_item

from graphkit.executor.devices.cpu import native
from graphkit.ops.xp import numpy_xp

if not native.has_onednn():  # whose classes the examples below are made of
    pytest.skip("built without oneDNN", allow_module_level=True)

BFLOAT16 = ml_dtypes.bfloat16
SIXTH = float(np.float32(1 / 6))
FIFTH = float(np.float32(0.2))


def erfc(x: np.ndarray) -> np.ndarray:
    return np.asarray(numpy_xp.special.erfc(x))


# kind, alpha, beta, the function, units in the last place that a float32 of [-10, 10] may be off: of subnormals those
# of the smallest normal number.
KINDS: list[tuple[str, float, float, Any, float]] = [
    ("relu", 0, 0, lambda x: np.maximum(x, 0), 0),
    ("relu", 0.25, 0, lambda x: np.where(x >= 0, x, x * 0.25), 0),
    ("tanh", 0, 0, np.tanh, 3),
    ("sigmoid", 0, 0, lambda x: 1 / (1 + np.exp(-x)), 3),
    ("gelu", 0, 0, lambda x: 0.5 * x * erfc(-x * math.sqrt(0.5)), 12),
    ("gelu_tanh", 0, 0, lambda x: x / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))), 256),
    ("swish", 1.5, 0, lambda x: x / (1 + np.exp(-1.5 * x)), 16),
    ("hard_swish", SIXTH, 0.5, lambda x: x * np.clip(SIXTH * x + 0.5, 0, 1), 2),
    ("hard_sigmoid", FIFTH, 0.5, lambda x: np.clip(FIFTH * x + 0.5, 0, 1), 1),
    ("elu", 0.5, 0, lambda x: np.where(x > 0, x, 0.5 * np.expm1(np.minimum(x, 0))), 2),
    ("clip", -0.5, 6, lambda x: np.clip(x, -0.5, 6), 0),
    ("clip", -math.inf, 0.75, lambda x: np.minimum(x, 0.75), 0),
    ("softplus", 2, 0, lambda x: np.logaddexp(0, 2 * x) / 2, 4),
    ("abs", 0, 0, np.abs, 0),
    ("sqrt", 0, 0, np.sqrt, 1),
    ("exp", 0, 0, np.exp, 1.2),
    ("square", 0, 0, np.square, 1),
    ("linear", 1.5, 0.25, lambda x: 1.5 * x + 0.25, 1),
]
IDS = [f"{kind} {alpha:g} {beta:g}" for kind, alpha, beta, *_ in KINDS]
SPECIAL = [math.nan, -math.nan, math.inf, -math.inf, 1e-41, -1e-41, -0.0, 0.0, 1.2e38, -1.2e38, 700, -700]


def activate(kind: str, alpha: float, beta: float, x: np.ndarray, fused: bool, threads: int = 1) -> np.ndarray:
    """Return the activation of a vector x, after a convolution that leaves all elements unchanged, also NaN."""
    x_shape, w_shape = (1, 1, x.size, 1), (1, 1, 1, 1)
    dtype = "float32" if x.dtype == np.float32 else "bfloat16"
    kernel = native.Convolution(
        *(x_shape, w_shape, x_shape, native.Window((1, 1), (1, 1), (0, 0), (0, 0))),
        epilogue=native.Epilogue(kind, alpha, beta, fused=fused),
        dtype=dtype,
        threads=threads,
    )
    y = np.full(x_shape, 77, x.dtype)
    kernel([x.reshape(x_shape), np.ones(w_shape, x.dtype), None], [y])
    return y.reshape(-1)


def behind_a_convolution(epilogue: native.Epilogue, x: np.ndarray, *others: np.ndarray, threads: int = 1) -> np.ndarray:
    """Return the epilogue of x, after a convolution that leaves two channels unchanged. others: bias, residual."""
    shape, w = (1, 2, x.size, 1), np.eye(2, dtype=np.float32).reshape(2, 2, 1, 1)
    kernel = native.Convolution(
        *(shape, w.shape, shape, native.Window((1, 1), (1, 1), (0, 0), (0, 0))),
        bias=bool(others),
        epilogue=epilogue,
        channels_last=True,
        threads=threads,
    )
    y = np.full((1, x.size, 1, 2), 77, np.float32)
    operands = [np.repeat(x, 2).reshape(y.shape), w, *(others or (None,))]
    kernel(operands, [y])
    return y.reshape(-1, 2)


def units(got: np.ndarray, expected: np.ndarray, dtype: Any, least: float) -> np.ndarray:
    """Distances in units in the last place of the expected numbers, or of `least`: sums of rounded products cancel."""
    limits = ml_dtypes.finfo(dtype)
    with np.errstate(all="ignore"):
        size = np.maximum(np.abs(expected), max(least, float(limits.tiny)))
        unit = np.exp2(np.floor(np.log2(size)) - limits.nmant)
        return np.asarray(np.abs(got.astype(np.float64) - expected) / unit)


def operands(kind: str, dtype: Any, span: float) -> np.ndarray:
    x = np.random.default_rng(3).uniform(-span, span, 50021).astype(dtype)
    return np.abs(x) if kind == "sqrt" else x


@in_one_item()
@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(("kind", "alpha", "beta", "function", "most"), KINDS, ids=IDS)
def test_numbers(kind: str, alpha: float, beta: float, function: Any, most: float, dtype: Any, isa: str) -> None:
    x = operands(kind, dtype, 10)
    got = activate(kind, alpha, beta, x, fused=False)
    with np.errstate(all="ignore"):
        expected = function(x.astype(np.float64))
    # Results in float32 are rounded once to bfloat16, however far they were off.
    most = most if dtype == np.float32 else 0.51
    assert units(got, expected, dtype, 0.25 if isa == "baseline" else 0).max() <= most


@in_one_item()
@pytest.mark.parametrize(("kind", "alpha", "beta", "function", "most"), KINDS, ids=IDS)
def test_not_worse_than_the_library(kind: str, alpha: float, beta: float, function: Any, most: float) -> None:
    """In absolute error of [-1, 1] and [-10, 10], up to an ulp of the largest result."""
    for span in (1.0, 10.0):
        x = operands(kind, np.float32, span)
        with np.errstate(all="ignore"):
            expected = function(x.astype(np.float64))
        own, fused = (np.abs(activate(kind, alpha, beta, x, fused=f) - expected).max() for f in (False, True))
        assert own <= fused + np.spacing(np.float32(np.abs(expected).max()))


@in_one_item()
@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(("kind", "alpha", "beta", "function", "most"), KINDS, ids=IDS)
def test_special_numbers(
    kind: str, alpha: float, beta: float, function: Any, most: float, fused: bool, dtype: Any, isa: str
) -> None:
    """In whole vectors and in their tails. Of bfloat16, the library's products make zeros of subnormals."""
    if kind == "softplus":  # whose argument is multiplied before the logarithm is taken
        function = lambda x: np.logaddexp(0, (2 * x).astype(np.float32)) / 2  # noqa: E731
    numbers = [v for v in SPECIAL if dtype == np.float32 or abs(v) != 1e-41]
    x = np.repeat(np.array(numbers).astype(dtype), 19)
    got = activate(kind, alpha, beta, x, fused)
    with np.errstate(all="ignore"):
        expected = function(x.astype(np.float64)).astype(np.float32)
    tolerance = 1e-6 if dtype == np.float32 else 4e-3
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(got.astype(np.float32), expected.astype(dtype).astype(np.float32), tolerance, 1e-37)


FEW, MANY = 1000, 1 << 40  # results that a cache holds, and that none does


@in_one_item()
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("kind", ["swish", "sigmoid"])
def test_few_results_are_activated_in_a_pass(kind: str, with_bias: bool, threads: int) -> None:
    finite = [v for v in SPECIAL if math.isfinite(v)]  # others would reach both channels
    x = np.concatenate([operands(kind, np.float32, 10), np.array(finite, np.float32)])
    bias = [np.array([0.25, -3.0], np.float32)] if with_bias else []
    given = native.Epilogue(kind, 1.0)
    got = {count: behind_a_convolution(given.for_results(count), x, *bias, threads=threads) for count in (FEW, MANY)}
    own = behind_a_convolution(native.Epilogue(kind, 1.0, fused=False), x, *bias, threads=threads)
    library = behind_a_convolution(given, x, *bias, threads=threads)
    np.testing.assert_array_equal(got[FEW], own)
    np.testing.assert_array_equal(got[MANY], library)
    assert not np.array_equal(own, library)  # otherwise the test would not distinguish them
    with np.errstate(all="ignore"):
        wide = x[:, None].astype(np.float64) + (bias[0] if bias else np.zeros(2))
        expected = (wide if kind == "swish" else 1) / (1 + np.exp(-wide))
    np.testing.assert_allclose(got[FEW], expected.astype(np.float32), 1e-5, 1e-6)


def test_what_stays_with_the_library() -> None:
    x = operands("relu", np.float32, 10)
    bias, residual = np.zeros(2, np.float32), np.ones((1, x.size, 1, 2), np.float32)
    for given, others in (
        (native.Epilogue("tanh"), ()),
        (native.Epilogue("swish", 1.0, residual=True, residual_last=True), (bias, residual)),
    ):
        results = [behind_a_convolution(e, x, *others) for e in (given, given.for_results(FEW))]
        np.testing.assert_array_equal(*results)


def products(dtype: str) -> dict[str, Any]:
    """Makers of kernels with the shapes of their operands and the axis of channels: every form of a result."""
    window = native.Window((1, 1), (1, 1), (1, 1), (1, 1), 1)

    def convolution(kind: Any, last: bool, channels: int) -> Any:
        x, w = (2, channels, 7, 9), (channels, channels, 3, 3)

        def make(**options: Any) -> Any:
            return kind(x, w, x, window, bias=True, channels_last=last, dtype=dtype, **options)

        placed = (x[0], *x[2:], x[1]) if last else x
        return make, placed, w, (channels,), placed

    def matmul(**options: Any) -> Any:
        return native.MatMul((5, 6, 9), (9, 11), bias=(11,), dtype=dtype, **options)

    return {
        "matmul": (matmul, (5, 6, 9), (9, 11), (11,), (5, 6, 11)),
        "convolution": convolution(native.Convolution, False, 13),
        "convolution, channels last": convolution(native.Convolution, True, 13),
        "one channel": convolution(native.Convolution, True, 1),
        "transposed": convolution(native.Deconvolution, False, 6),
        "transposed, channels last": convolution(native.Deconvolution, True, 16),
    }


@in_one_item()
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", products("float32"))
def test_pass_equals_fused(name: str, dtype: str, threads: int) -> None:
    """With bias, with the residual first and last, in separate memory and in place of the result."""
    if dtype == "bfloat16" and not native.has_bfloat16() and "transposed" in name:
        pytest.skip("no bfloat16 arithmetic")
    make, *shapes = products(dtype)[name]
    rng = np.random.default_rng(4)
    kinds = np.float32 if dtype == "float32" else BFLOAT16
    x, w, bias, residual = (rng.standard_normal(shape).astype(kinds) for shape in shapes)
    for kind, adds, last in (("relu", True, False), ("tanh", True, True), ("", True, False), ("clip", False, False)):
        if adds and "transposed" in name:
            adds = last = False
        results = []
        for fused in (True, False):
            epilogue = native.Epilogue(kind, 0, 0.75 * (kind == "clip"), residual=adds, residual_last=last, fused=fused)
            kernel = make(epilogue=epilogue, threads=threads)
            y = np.full(shapes[3], 77, kinds)
            kernel([x, w, bias, residual][: 4 if adds else 3], [y])
            results.append(y.astype(np.float32))
            if adds:
                assert (3, 0) in kernel.inplace
                inplace = residual.copy()
                kernel([x, w, bias, inplace], [inplace])
                np.testing.assert_array_equal(inplace.astype(np.float32), results[-1])
        tolerance = 1e-5 if dtype == "float32" else 3e-2
        np.testing.assert_allclose(results[1], results[0], rtol=tolerance, atol=tolerance)


@in_one_item()
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("kind", ["relu", "clip", "hard_sigmoid", "gelu"])
def test_sum_in_the_place_of_its_residual(kind: str, last: bool, dtype: str) -> None:
    """NaN and infinities of the product, and then of the residual as well, which the fused sum has overwritten."""
    make, *shapes = products(dtype)["convolution, channels last"]
    rng = np.random.default_rng(8)
    kinds = np.float32 if dtype == "float32" else BFLOAT16
    x, w, bias, residual = (rng.standard_normal(shape).astype(kinds) for shape in shapes)
    x.reshape(-1)[[0, 300, 500]] = np.nan, np.inf, -np.inf
    alpha, beta = {"clip": (-0.5, 6), "hard_sigmoid": (FIFTH, 0.5)}.get(kind, (0, 0))
    kernel, after = (
        make(epilogue=native.Epilogue(kind, alpha, beta, residual=True, residual_last=last, fused=fused))
        for fused in (True, False)
    )
    for what in ("finite", "infinite"):
        if what == "infinite":
            residual.reshape(-1)[[1, 301, 700]] = np.inf, -np.inf, np.nan
        expected, inplace = np.empty(shapes[3], kinds), residual.copy()
        after([x, w, bias, residual], [expected])
        kernel([x, w, bias, inplace], [inplace])
        assert np.isnan(expected.astype(np.float32)).any()
        tolerance = 1e-5 if dtype == "float32" else 3e-2
        np.testing.assert_allclose(inplace.astype(np.float32), expected.astype(np.float32), tolerance, tolerance)


def test_scaled_product() -> None:
    """alpha * a b + beta * bias, as Gemm has them, with an activation: fused and in a pass."""
    rng = np.random.default_rng(6)
    a, b, bias = (rng.standard_normal(s).astype(np.float32) for s in ((7, 33), (33, 20), (7, 1)))
    expected = np.maximum(0.5 * (a.astype(np.float64) @ b) - 2 * bias, 0)
    for fused in (True, False):
        epilogue = native.Epilogue("relu", fused=fused)
        y = np.empty((7, 20), np.float32)
        native.MatMul(a.shape, b.shape, bias=bias.shape, alpha=0.5, beta=-2, epilogue=epilogue)([a, b, bias], [y])
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


def test_threads_do_not_change_bits() -> None:
    x = np.random.default_rng(7).standard_normal(480011).astype(np.float32)
    bits = {activate("gelu", 0, 0, x, fused=False, threads=threads).tobytes() for threads in (1, 2, 3)}
    assert len(bits) == 1


@in_one_item()
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_thread_tells_what_was_invalid(threads: int) -> None:
    a, b = np.ones((512, 256), np.float32), np.ones((256, 256), np.float32)
    kernel = native.MatMul(a.shape, b.shape, epilogue=native.Epilogue("relu"), threads=threads)
    y = np.empty((512, 256), np.float32)
    for row in (0, 130, 500):  # of the first piece, one between, and the last
        a[:] = 1
        a[row, 7] = np.nan
        kernel([a, b], [y])
        assert np.isnan(y[row]).all()
        assert np.isnan(y).sum() == 256
