"""Random arrays: one program for all bounds, means and deviations, and one rounding."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit import nd
from graphkit.nd import calls


@contextmanager
def nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(*arguments: object) -> None:
        raise AssertionError(f"compiled {arguments}")

    with monkeypatch.context() as patch:
        patch.setattr(calls, "Call", refuse)
        yield


@in_one_item()
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("draw", [nd.random.uniform, nd.random.normal])
def test_new_bounds_compile_nothing(draw, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    draw(0.5, 1.5, (2, 3), dtype).wait_to_read()
    with nothing_is_compiled(monkeypatch):
        for low, high in [(-2.0, 3.0), (1e-3, 7), (5, -5)]:
            draw(low, high, (2, 3), dtype).wait_to_read()


def drawn(draw, *arguments) -> np.ndarray:
    nd.random.seed(3)
    return draw(*arguments).asnumpy()


@in_one_item()
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("draw", [nd.random.uniform, nd.random.normal])
def test_numbers_are_rounded_once(draw, dtype: str) -> None:
    wide = "float64" if dtype == "float64" else "float32"
    standard = drawn(draw, 0, 1, (500,), wide).astype(np.float64)
    found = drawn(draw, -0.7, 2.6, (500,), dtype)
    factor = 2.6 - -0.7 if draw is nd.random.uniform else 2.6
    assert found.dtype == dtype
    # Half a step of the type, and the rounding of float64 itself. Standard normal numbers are rounded, too.
    error = np.abs(found.astype(np.float64) - (-0.7 + factor * standard))
    own = 0 if draw is nd.random.uniform else np.abs(np.spacing(standard.astype(wide))).astype(np.float64) * factor / 2
    assert np.all(error <= np.spacing(np.abs(found)).astype(np.float64) / 2 + own + 4e-15)


@in_one_item()
@pytest.mark.parametrize("count", [1, 501, (1 << 18) - 1, 1 << 18])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("name", ["uniform", "normal"])
def test_numbers_have_the_bits_of_a_graph(name: str, dtype: str, count: int) -> None:
    draw, (first, second) = getattr(nd.random, name), (("low", "high") if name == "uniform" else ("mean", "scale"))
    net = gk.Model({"y": getattr(gk, f"random_{name}")(shape=[count], dtype=dtype, **{first: -0.7, second: 2.6})})
    executor = net.compile(threads=2)
    executor.rng = (3, 0)
    expected = executor.run({})["y"].tobytes()
    assert drawn(draw, -0.7, 2.6, (count,), dtype).tobytes() == expected
    assert drawn(nd.hybridize(lambda: draw(-0.7, 2.6, (count,), dtype))).tobytes() == expected


def test_dtypes_without_random_numbers() -> None:
    with pytest.raises(gk.errors.TypeMismatch, match="dtype must be a float type, not int32"):
        nd.random.normal(shape=(2,), dtype="int32")


def test_bfloat16_is_rounded_once() -> None:
    found = drawn(nd.random.normal, 3.0, 0.25, (500,), "bfloat16").astype(np.float64)
    exact = 3.0 + 0.25 * drawn(nd.random.normal, 0, 1, (500,)).astype(np.float64)
    assert np.abs(found - exact).max() <= 2.0**-7  # half a step between 2 and 4


def test_default_bounds_and_no_elements() -> None:
    assert nd.random.uniform(2, 3, (0, 4)).shape == (0, 4)
    assert nd.random.normal(2, 3, (), "float64").shape == ()
    assert 0 <= nd.random.uniform().asscalar() < 1


@pytest.mark.parametrize("hybrid", [False, True])
def test_a_range_that_overflows_float64(hybrid: bool) -> None:
    def draw():
        return nd.random.uniform(-1.7e308, 1.7e308, (2000,), "float64")

    numbers = (nd.hybridize(draw) if hybrid else draw)().asnumpy() / 1.7e308
    assert abs(numbers.mean()) < 5 / np.sqrt(3 * 2000)
    assert np.abs(numbers).max() <= 1
    assert abs(numbers.std() * np.sqrt(3) - 1) < 0.06
