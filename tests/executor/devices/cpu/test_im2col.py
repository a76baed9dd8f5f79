"""Im2Col and Col2Im against the operators' references."""

from __future__ import annotations

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.executor.devices.cpu import native
from graphkit.ops.nn.im2col import Col2Im, Im2Col
from graphkit.ops.xp import numpy_xp

SEEDS = range(12)


pytestmark = pytest.mark.usefixtures("isa")


@in_one_item()
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64])
@pytest.mark.parametrize("seed", SEEDS)
def test_columns(seed, dtype):
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 4))
    block, strides, dilations = (tuple(int(v) for v in rng.integers(1, high, rank)) for high in (4, 4, 3))
    pads = tuple(int(v) for v in rng.integers(0, 3, 2 * rank))
    span = [(k - 1) * d + 1 for k, d in zip(block, dilations, strict=True)]
    image = tuple(s + int(rng.integers(0, 6)) for s in span)
    attrs = {"strides": strides, "dilations": dilations, "pads": pads}
    x = rng.integers(-9, 9, (2, 3, *image)).astype(dtype)
    expected = Im2Col(**attrs).reference(numpy_xp, x, np.array(block))
    window, positions = Im2Col(**attrs).window(image, block)
    common = dict(
        batch=2, channels=3, image=image, block=block, positions=positions, strides=window.strides,
        dilations=window.dilations, begin=window.begin, dtype=np.dtype(dtype).name, threads=2,
    )  # fmt: skip
    columns = np.full(expected.shape, 99, dtype)
    native.Im2Col(add=False, **common)([x], [columns])
    np.testing.assert_array_equal(columns, expected)
    y = np.full(x.shape, 99, dtype)
    native.Im2Col(add=True, **common)([columns], [y])
    np.testing.assert_array_equal(y, Col2Im(**attrs).reference(numpy_xp, columns, np.array(image), np.array(block)))


@in_one_item()
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("width", [1, 7, 15, 16, 17, 23, 31, 32, 33, 47, 63])
def test_wide_rows_equal_torch(width: int, dtype: str) -> None:
    """Rows of an image follow each other, so that sums of one row end where those of the next row begin."""
    torch = pytest.importorskip("torch")
    columns = np.random.default_rng(width).standard_normal((2, 3 * 9, 5 * width)).astype(dtype)
    expected = torch.nn.functional.fold(torch.tensor(columns), (5, width), 3, padding=1).numpy()
    for threads in (1, 2, 3):
        y = np.full(expected.shape, np.nan, dtype)
        kernel = native.Im2Col(
            add=True, batch=2, channels=3, image=(5, width), block=(3, 3), positions=(5, width), strides=(1, 1),
            dilations=(1, 1), begin=(1, 1), dtype=dtype, threads=threads,
        )  # fmt: skip
        kernel([columns], [y])
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
