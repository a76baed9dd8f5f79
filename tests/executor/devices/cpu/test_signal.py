"""Fourier transforms of any length against numpy's, which computes them in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from combinations import in_one_item
from kernel_runs import run_native

import graphkit as gk
from graphkit.errors import RuntimeFailure
from graphkit.executor.devices.cpu import native
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F

# Products of small primes, primes that have a butterfly, and lengths that are computed as convolutions.
LENGTHS = [*range(1, 33), 49, 60, 64, 97, 128, 131, 210, 256, 400, 625, 961, 1000, 1009, 2048, 3001]
TOLERANCE = {"float32": 5e-7, "float64": 2e-15}


def node_of(x: np.ndarray, length: int | None = None, axis: int | None = None, **attributes: Any) -> Node:
    given = (None if v is None else np.int64(v) for v in (length, axis))
    made = F.dft(Value(TensorType(x.dtype, x.shape), "x"), *given, **attributes)
    assert isinstance(made.node, Node)
    return made.node


def transformed(x: np.ndarray, length: int | None = None, axis: int | None = None, **attributes: Any) -> np.ndarray:
    operands = [None if v is None else np.array(v) for v in (length, axis)]
    node = node_of(x, length, axis, **attributes)
    y, *_ = results = [run_native(node, [x, *operands], threads)[0] for threads in (1, 3)]
    assert results[0].tobytes() == results[1].tobytes()
    return y


def wide(x: np.ndarray) -> np.ndarray:
    """As complex numbers."""
    pairs = x.astype(np.float64)
    return pairs[..., 0] + 1j * (pairs[..., 1] if x.shape[-1] == 2 else 0)


def near(got: np.ndarray, wanted: np.ndarray, dtype: str) -> None:
    assert got.shape == wanted.shape
    scale = np.abs(wanted).max(initial=1e-30)
    np.testing.assert_allclose(got / scale, wanted / scale, rtol=0, atol=TOLERANCE[dtype])


@in_one_item("values")
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("parts", [1, 2])
def test_transforms_of_all_lengths(dtype: str, parts: int, isa: str) -> None:
    rng = np.random.default_rng(parts)
    for n in LENGTHS:
        x = rng.standard_normal((3, n, 7, parts)).astype(dtype)
        near(wide(transformed(x, axis=1)), np.fft.fft(wide(x), axis=1), dtype)
        near(wide(transformed(x, axis=1, onesided=True)), np.fft.fft(wide(x), axis=1)[:, : n // 2 + 1], dtype)
        near(wide(transformed(x, axis=1, inverse=True)), np.fft.ifft(wide(x), axis=1), dtype)
        real = transformed(x, n, axis=1, inverse=True, onesided=True)
        near(real[..., 0].astype(np.float64), np.fft.irfft(wide(x), n=n, axis=1), dtype)


@in_one_item()
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_lengths_other_than_the_signals(dtype: str) -> None:
    """It is cut, or filled with zeros."""
    rng = np.random.default_rng(2)
    x = rng.standard_normal((2, 5, 6, 2)).astype(dtype)
    for axis in (0, 1, 2, -2, -3):
        place = axis if axis >= 0 else axis + 4
        for length in (1, 3, 6, 11, 64, 101):
            near(wide(transformed(x, length, axis)), np.fft.fft(wide(x), n=length, axis=place), dtype)
            near(wide(transformed(x, length, axis, inverse=True)), np.fft.ifft(wide(x), n=length, axis=place), dtype)
            real = transformed(x, length, axis, inverse=True, onesided=True)[..., 0]
            near(real.astype(np.float64), np.fft.irfft(wide(x), n=length, axis=place), dtype)


def test_many_and_few_columns() -> None:
    """More columns than are transformed together, with a remainder; one column; and none."""
    rng = np.random.default_rng(3)
    for shape in ((33, 12, 1), (1, 12, 1), (0, 12, 1), (4, 12, 0, 2), (16, 12, 2)):
        x = rng.standard_normal(shape).astype(np.float32)
        near(wide(transformed(x, axis=1)), np.fft.fft(wide(x), axis=1), "float32")
    for length in (1 << 18, 3**11, 100003):
        x = rng.standard_normal((2, length, 2)).astype(np.float32)
        y = wide(transformed(x))
        wanted = np.fft.fft(wide(x), axis=1)
        assert np.linalg.norm(y - wanted) < 1e-6 * np.linalg.norm(wanted)


def test_what_is_not_finite_stays_in_its_signal() -> None:
    """It reaches every element of that one's transform, and no other signal."""
    for n in (1, 8, 15, 37, 64):
        clean = np.random.default_rng(n).standard_normal((5, n, 2)).astype(np.float32)
        for value in (np.nan, np.inf):
            x = clean.copy()
            x[2, n // 2, 0] = value
            y, expected = transformed(x), transformed(clean)
            assert not np.isfinite(y[2]).all(axis=-1).any()
            np.testing.assert_array_equal(np.delete(y, 2, axis=0), np.delete(expected, 2, axis=0))


def test_transforms_of_no_points() -> None:
    factory = native.DescribedOperator("", "DFT", {"inverse": 0, "onesided": 0}).factory(
        [("x", "float32", None)],
        [("y", "float32")],
        used=[True],
        constants=[],
        threads=1,
        sizes_vary=False,
        deterministic=False,
    )
    with pytest.raises(native.Error, match="the length of a transform must be at least 1, not 0"):
        factory([[2, 0, 1]], [[2, 0, 2]])
    net = gk.Model({"y": F.dft(gk.input("x", [2, "n", 1]))})
    with pytest.raises(RuntimeFailure, match="the length of a transform must be at least 1, not 0"):
        net.compile().run({"x": np.zeros((2, 0, 1), np.float32)})


@pytest.mark.usefixtures("strict")
def test_spectrograms_run_natively() -> None:
    """As the first layers of speech models: windowed frames, magnitudes; with a length that is fed."""
    signal, window = gk.input("signal", ["B", "L", 1]), np.hanning(400).astype(np.float32)
    spectrum = F.stft(signal, np.int64(160), window)
    power = F.reduce_sum_square(spectrum, np.array([-1]), keepdims=False)
    length = gk.input("length", [], dtype="int64")
    executor = gk.Model({"power": power, "padded": F.dft(signal, length)}).compile()
    rng = np.random.default_rng(4)
    for batch, size in ((2, 1600), (1, 4001), (2, 1600)):
        x = rng.standard_normal((batch, size, 1)).astype(np.float32)
        got = executor.run({"signal": x, "length": np.array(size + 48)})
        frames = np.lib.stride_tricks.sliding_window_view(x[..., 0], 400, axis=1)[:, ::160] * window.astype(np.float64)
        wanted = np.abs(np.fft.rfft(frames)) ** 2
        np.testing.assert_allclose(got["power"], wanted, rtol=1e-4, atol=1e-4)
        near(wide(got["padded"]), np.fft.fft(x[..., 0].astype(np.float64), n=size + 48), "float32")
