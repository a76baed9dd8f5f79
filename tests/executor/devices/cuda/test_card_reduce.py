"""Reductions of the card beyond the operators' samples: rows and columns, warps and blocks, slices, any axes."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item
from emulator import Emulator
from together import together

from graphkit.executor.devices.cuda.launches import CardKernel
from graphkit.executor.devices.cuda.rows.reduce import FUNCTIONS, reduction
from graphkit.ir.types import DType, dtype_of

SHAPES: list[tuple[tuple[int, ...], tuple[int, ...], int]] = [  # shape, axes, launches
    ((5, 40), (1,), 1),
    ((3, 1000), (1,), 1),
    ((1, 40000), (1,), 2),  # a row in slices
    ((70000,), (0,), 2),
    ((300, 7), (0,), 1),
    ((40000, 3), (0,), 2),  # columns in slices
    ((31, 7), (0,), 1),
    ((6, 300, 5), (1,), 1),
    ((2, 3, 50, 4), (0, 2), 1),
    ((2, 3, 5, 9), (0, 2, 3), 1),
    ((4, 3, 5, 9), (1, 3), 1),
    ((1, 1, 1), (1,), 1),
    ((2, 1, 700, 1), (2, 3), 1),
]


def run(emulator: Emulator, kernel: CardKernel, x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    results = []
    for order in (0, 1):
        around = np.full(int(np.prod(shape)) + 32, 77, x.dtype)
        y = around[16:-16].reshape(shape)
        assert not emulator.run(kernel, [np.ascontiguousarray(x)], [y], order=order)
        assert (around[:16] == 77).all()
        assert (around[-16:] == 77).all()
        results.append(y)
    assert results[0].tobytes() == results[1].tobytes(), "what comes out depends on which thread comes first"
    return results[0]


def wanted(name: str, x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    wide = x.astype(np.float64)
    found: Any = {
        "Sum": wide.sum, "Mean": wide.mean, "Max": wide.max, "Min": wide.min, "Prod": wide.prod,
        "L1": np.abs(wide).sum, "SumSquare": (wide * wide).sum,
        "L2": lambda axis: np.sqrt((wide * wide).sum(axis=axis)),
        "LogSum": lambda axis: np.log(wide.sum(axis=axis)),
    }[name](axis=axes)  # fmt: skip
    return np.asarray(found)


@together()
@pytest.mark.parametrize("case", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["Sum", "Mean", "Max", "L2"])
def test_shapes(case: Any, name: str, emulator: Emulator) -> None:
    shape, axes, launches = case
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    kernel = reduction(name, shape, axes, DType.FLOAT32)
    assert kernel is not None
    assert len(kernel.launches) == launches
    expected = wanted(name, x, axes)
    np.testing.assert_allclose(run(emulator, kernel, x, expected.shape), expected, rtol=1e-5, atol=1e-5)


@together(full=lambda dtype, name: dtype is not (np.float16 if name in ("Mean", "L2", "Prod", "Max") else np.int64))
@pytest.mark.parametrize(
    "dtype", [np.float16, np.float64, np.int32, np.int64, np.uint8], ids=lambda d: np.dtype(d).name
)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_types(name: str, dtype: Any, emulator: Emulator) -> None:
    x = np.random.default_rng(2).integers(1, 3, (3, 13, 40)).astype(dtype)
    for axes in ((1,), (2,), (0, 2)):
        kernel = reduction(name, x.shape, axes, dtype_of(x.dtype))
        if kernel is None:
            assert FUNCTIONS[name].floats
            assert x.dtype.kind != "f"
            continue
        expected = wanted(name, x, axes)
        if x.dtype.kind != "f":  # wraps around
            expected = getattr(np, {"Prod": "prod", "Max": "max", "Min": "min"}.get(name, "sum"))(
                x * x if name == "SumSquare" else x, axis=axes, dtype=None if name in ("Max", "Min") else x.dtype
            ) if name not in ("Max", "Min") else getattr(np, name.lower())(x, axis=axes)  # fmt: skip
        elif name == "Prod":
            expected = np.where(expected > np.finfo(dtype).max, np.inf, expected)
        found = run(emulator, kernel, x, expected.shape)
        np.testing.assert_allclose(found.astype(np.float64), expected.astype(np.float64), rtol=2e-3)


@together(full=lambda seed: seed > 7)
@pytest.mark.parametrize("seed", range(30))
def test_random_axes(seed: int, emulator: Emulator) -> None:
    draw = random.Random(seed)
    shape = tuple(draw.choice((1, 2, 3, 5, 8, 33)) for _ in range(draw.randrange(1, 6)))
    axes = tuple(draw.sample(range(len(shape)), draw.randrange(0, len(shape) + 1)))
    x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    kernel = reduction("Sum", shape, axes, DType.FLOAT32)
    assert kernel is not None
    expected = wanted("Sum", x, axes)
    np.testing.assert_allclose(run(emulator, kernel, x, expected.shape), expected, rtol=1e-4, atol=1e-4)


@in_one_item("values")
@pytest.mark.parametrize("name", ["Max", "Min", "Sum"])
@pytest.mark.parametrize(("axis", "place"), [(0, 290), (1, 7)])
def test_nan_wins(emulator: Emulator, name: str, axis: int, place: int) -> None:
    x = np.random.default_rng(0).standard_normal((40, 300)).astype(np.float32)
    x[7, 290] = np.nan
    kernel = reduction(name, x.shape, (axis,), DType.FLOAT32)
    assert kernel is not None
    found = run(emulator, kernel, x, (x.shape[1 - axis],))
    assert np.flatnonzero(np.isnan(found)).tolist() == [place]


def test_large_operands_count_in_64_bits() -> None:
    kernel = reduction("Sum", (1 << 16, 1 << 16), (1,), DType.FLOAT32)
    assert kernel is not None
    assert all("gk_u64" in launch.source.parameters for launch in kernel.launches)


def test_an_empty_operand_has_no_kernel() -> None:
    assert reduction("Sum", (0, 3), (0,), DType.FLOAT32) is None
