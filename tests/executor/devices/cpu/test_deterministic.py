"""Products and convolutions that are cut into pieces: right, and the same bits for any number of threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from combinations import in_one_item

from graphkit.executor.devices.cpu import native
from graphkit.executor.memory.packing import aligned_bytes
from graphkit.ops.nn.conv import Conv, ConvGradInput, ConvGradWeight, ConvTranspose
from graphkit.ops.xp import numpy_xp

pytestmark = pytest.mark.skipif(not native.has_onednn(), reason="built without oneDNN")

THREADS = (1, 2, 3, 4)
DTYPES = [
    "float32",
    pytest.param("bfloat16", marks=pytest.mark.skipif(not native.has_bfloat16(), reason="no bfloat16 arithmetic")),
]


def draw(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    drawn = np.random.default_rng((seed, *shape)).standard_normal(shape, dtype=np.float32)
    return drawn if dtype == "float32" else drawn.astype(ml_dtypes.bfloat16)


def wide(*arrays: np.ndarray) -> list[np.ndarray]:
    return [a.astype(np.float64) for a in arrays]


def check(
    make: Callable[[int], Any],
    inputs: list[np.ndarray | None],
    expected: np.ndarray,
    terms: int,
    dtype: str = "float32",
) -> None:
    """`make(threads)` gives the same bits for each number of threads; `terms` numbers make an element of the result."""
    results = []
    for threads in THREADS:
        kernel = make(threads)
        operands = list(inputs)
        for i in kernel.packed_inputs:
            operands[i] = aligned_bytes(kernel.packed_bytes(i))
            kernel.pack(i, inputs[i], operands[i])
        y = np.empty(expected.shape, np.float32 if dtype == "float32" else ml_dtypes.bfloat16)
        kernel(operands, [y])
        results.append(y)
    for threads, y in zip(THREADS, results, strict=True):
        assert y.tobytes() == results[0].tobytes(), f"{threads} threads"
    rounding = 2**-8 if results[0].dtype != np.float32 else 0
    atol = 4e-7 * terms * 3 + rounding * np.abs(expected).max()
    np.testing.assert_allclose(results[0].astype(np.float64), expected, rtol=0, atol=atol)


# a [..., M, K], b [..., K, N]: many rows, columns, terms, matrices, and none of them a round number.
PRODUCTS = [
    ((1037, 70), (70, 95)),
    ((17, 300), (300, 1029)),
    ((1, 1029), (1029, 2050)),
    ((40, 5003), (5003, 48)),
    ((130, 1200), (1200, 130)),
    ((7, 3, 65, 40), (7, 3, 40, 70)),
    ((10, 1, 65, 140), (3, 140, 70)),
    ((5, 4), (4, 3)),
]


@in_one_item("values")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shapes", PRODUCTS, ids=str)
def test_products(shapes: tuple[tuple[int, ...], tuple[int, ...]], dtype: str) -> None:
    a, b = (draw(shape, dtype) for shape in shapes)
    expected = np.matmul(*wide(a, b))
    options: dict[str, Any] = dict(dtype=dtype, deterministic=True)
    terms = a.shape[-1]
    for packs in (False, True):
        check(lambda n, p=packs: native.MatMul(*shapes, pack_b=p, threads=n, **options), [a, b], expected, terms, dtype)
    turned = [np.ascontiguousarray(v.swapaxes(-1, -2)) for v in (a, b)]
    swapped = [v.shape for v in turned]
    check(
        lambda n: native.MatMul(*swapped, transpose_a=True, transpose_b=True, threads=n, **options),
        turned,
        expected,
        terms,
        dtype,
    )
    # With a bias and a residual.
    bias, residual = draw(expected.shape[-1:], dtype), draw(expected.shape, dtype, seed=1)
    options |= dict(bias=bias.shape, epilogue=native.Epilogue("relu", residual=True))
    expected = np.maximum(expected + bias.astype(np.float64) + residual.astype(np.float64), 0)
    check(lambda n: native.MatMul(*shapes, threads=n, **options), [a, b, bias, residual], expected, terms, dtype)


def test_a_bias_of_one_column() -> None:
    a, b, bias = draw((300, 90), "float32"), draw((90, 200), "float32"), draw((300, 1), "float32")
    options = dict(bias=bias.shape, alpha=0.5, beta=2.0, deterministic=True)
    check(
        lambda n: native.MatMul(a.shape, b.shape, threads=n, **options),
        [a, b, bias],
        0.5 * np.matmul(*wide(a, b)) + 2 * bias.astype(np.float64),
        90,
    )


# x [N, C, spatial], w: one image, few, an uneven number; filters cut and not; groups; one to three axes.
CONVOLUTIONS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 33, 29, 30), (70, 33, 3, 3), dict(pads=(1, 1, 1, 1))),
    ((1, 3, 61, 40), (32, 3, 7, 7), dict(pads=(3, 3, 3, 3), strides=(2, 2))),
    ((3, 24, 40, 20), (40, 24, 3, 3), dict(pads=(2, 0, 1, 1), dilations=(2, 1))),
    ((10, 20, 14, 14), (200, 20, 3, 3), {}),
    ((16, 64, 9, 9), (130, 64, 1, 1), {}),
    ((1, 128, 40, 40), (64, 128, 1, 1), {}),
    ((19, 64, 8, 8), (64, 64, 1, 1), dict(strides=(2, 2))),
    ((9, 32, 18, 18), (64, 8, 3, 3), dict(group=4, pads=(1, 1, 1, 1))),
    ((2, 48, 700), (64, 48, 5), dict(pads=(2, 2))),
    ((3, 16, 9, 9, 9), (32, 16, 3, 3, 3), dict(pads=(1,) * 6)),
    ((1, 64, 4, 60), (64, 64, 3, 3), dict(pads=(5, 1, 5, 1))),
    ((2, 3, 5, 5), (4, 3, 3, 3), {}),
]


@in_one_item("values")
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_convolutions(case: tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]], dtype: str, last: bool) -> None:
    x_shape, w_shape, attributes = case
    conv = Conv(**attributes)
    g = conv.geometry(x_shape, w_shape)
    window = native.Window(g.strides, g.dilations, g.begin, g.end, g.group)
    x, w = draw(x_shape, dtype), draw(w_shape, dtype)
    y = conv.reference(numpy_xp, *wide(x, w))
    dy = draw(y.shape, dtype)
    options = dict(channels_last=last, dtype=dtype, deterministic=True)

    def place(array: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(np.moveaxis(array, 1, -1)) if last else array

    depth = int(np.prod(w_shape[1:]))
    bias, residual = draw((w_shape[0],), dtype), draw(y.shape, dtype, seed=1)
    fused = np.maximum(y + wide(bias)[0].reshape(-1, *(1,) * (y.ndim - 2)) + wide(residual)[0], 0)
    for packs in (False, True):
        shapes = (x_shape, w_shape, y.shape)
        weights = dict(pack_weights=packs, **options)
        check(
            lambda n, s=shapes, o=weights: native.Convolution(*s, window, threads=n, **o),
            [place(x), w, None],
            place(y),
            depth,
            dtype,
        )
        weights |= dict(bias=True, epilogue=native.Epilogue("relu", residual=True))
        check(
            lambda n, s=shapes, o=weights: native.Convolution(*s, window, threads=n, **o),
            [place(x), w, bias, place(residual)],
            place(fused),
            depth,
            dtype,
        )
    dx = ConvGradInput(**attributes).reference(numpy_xp, *wide(dy, w), x)
    check(
        lambda n: native.ConvolutionBackwardData(y.shape, w_shape, x_shape, window, threads=n, **options),
        [place(dy), w],
        place(dx),
        w_shape[0] * int(np.prod(w_shape[2:])),
        dtype,
    )
    dw = ConvGradWeight(**attributes).reference(numpy_xp, *wide(x, dy), w)
    check(
        lambda n: native.ConvolutionBackwardWeights(x_shape, y.shape, w_shape, window, threads=n, **options),
        [place(x), place(dy)],
        dw,
        y.size // y.shape[1],
    )
    surplus = []
    for n, o, k, s, d, begin, end in zip(x_shape[2:], y.shape[2:], w_shape[2:], *g[:4], strict=True):
        surplus.append(n - ((o - 1) * s + (k - 1) * d + 1 - begin - end))
    transposed = ConvTranspose(**attributes, output_padding=surplus).reference(numpy_xp, *wide(dy, w))
    check(
        lambda n: native.Deconvolution(y.shape, w_shape, x_shape, window, threads=n, **options),
        [place(dy), w],
        place(transposed),
        w_shape[0] * int(np.prod(w_shape[2:])),
        dtype,
    )


def test_the_gradient_of_a_bias() -> None:
    x, dy = draw((10, 16, 20, 20), "float32"), draw((10, 64, 18, 18), "float32")
    window = native.Window([1, 1], [1, 1], [0, 0], [0, 0])
    results = []
    for threads in THREADS:
        kernel = native.ConvolutionBackwardWeights(
            x.shape, dy.shape, (64, 16, 3, 3), window, bias=True, threads=threads, deterministic=True
        )
        dw, bias = np.empty((64, 16, 3, 3), np.float32), np.empty(64, np.float32)
        kernel([x, dy], [dw, bias])
        results.append((dw.tobytes(), bias.tobytes()))
        np.testing.assert_allclose(bias, dy.sum(axis=(0, 2, 3), dtype=np.float64), atol=1e-3)
    assert len(set(results)) == 1


def test_work_is_shared_by_the_team() -> None:
    """More than one piece has working memory for each thread: a kernel on one thread would need it once."""
    window = native.Window([1, 1], [1, 1], [1, 1], [1, 1])
    shape, w = (16, 32, 20, 20), (32, 32, 3, 3)
    needed = [
        native.ConvolutionBackwardWeights(shape, shape, w, window, threads=n, deterministic=True).scratch_bytes
        for n in (1, 2, 4)
    ]
    assert needed[0] < needed[1] < needed[2]


@in_one_item()
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 40])
def test_products_with_constant_and_computed_matrices_are_equal(rows: int, bias: bool) -> None:
    """A rank of several has constant parameters where one process that accumulates has computed ones."""
    operands = [draw(shape, "float32") for shape in ((rows, 700), (700, 520), (520,))[: 3 if bias else 2]]
    options: dict[str, Any] = dict(transpose_a=False, transpose_b=False, alpha=1.0, beta=1.0, epilogue=None, vary=False)
    found = []
    for constant in (False, True):
        factory = native.ProductFactory(
            **options, has_bias=bias, pack_b=constant, dtype="float32", deterministic=True, threads=1
        )
        kernel = factory([v.shape for v in operands], [(rows, 520)])
        given = list(operands)
        for i in kernel.packed_inputs:
            given[i] = aligned_bytes(kernel.packed_bytes(i))
            kernel.pack(i, operands[i], given[i])
        found.append(np.empty((rows, 520), np.float32))
        kernel(given, [found[-1]])
    assert found[0].tobytes() == found[1].tobytes()
