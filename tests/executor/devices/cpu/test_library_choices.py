"""Every implementation of the library that shapes lead to, with everything that may follow it, against float64.

Which implementation oneDNN takes depends on channels, kernels, strides, groups, sizes and the processor. Random shapes
are prepared, which is cheap, and the first ones that lead to an implementation not seen before are run and compared.
As a script, for one instruction set: ONEDNN_MAX_CPU_ISA=AVX2 python test_library_choices.py DTYPE SEED SHAPES TIMES
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
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

TYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}
# Multiply-adds of a case: more takes the reference too long.
MOST_WORK = 2e7


@dataclass(frozen=True)
class Follows:
    """An epilogue of a product: factor alpha, bias, residual, activation, or the residual last."""

    bias: bool = False
    activation: str = ""
    residual: str = ""  # "before" or "behind" the activation
    alpha: float = 1.0

    def epilogue(self) -> Any:
        slope = {"swish": (1.0, 0.0), "clip": (-0.5, 0.75)}.get(self.activation, (0.0, 0.0))
        return native.Epilogue(
            self.activation, *slope, residual=bool(self.residual), residual_last=self.residual == "behind"
        )

    def apply(self, y: np.ndarray, bias: np.ndarray | None, residual: np.ndarray | None) -> np.ndarray:
        y = self.alpha * y
        if bias is not None:
            y = y + bias
        if self.residual == "before":
            y = y + residual
        if self.activation == "relu":
            y = np.maximum(y, 0)
        elif self.activation == "clip":
            y = np.clip(y, -0.5, 0.75)
        elif self.activation == "swish":
            y = y / (1 + np.exp(-y))
        elif self.activation == "tanh":
            y = np.tanh(y)
        return y + residual if self.residual == "behind" else y


FOLLOWS = [
    Follows(),
    Follows(bias=True),
    Follows(bias=True, activation="relu"),
    Follows(activation="tanh"),
    Follows(bias=True, activation="clip", residual="before"),
    Follows(residual="before"),
    Follows(bias=True, activation="swish", residual="behind"),
]
PRODUCTS = [
    *FOLLOWS,
    Follows(alpha=0.5, activation="relu"),
    Follows(alpha=0.5, residual="before"),
    Follows(bias=True, alpha=0.5),
]


class Sweep:
    """Prepares kernels, compares the first `times` of each implementation with the reference, and counts them."""

    def __init__(self, dtype: str, seed: int, times: int) -> None:
        self.dtype, self.times = dtype, times
        self.rng = np.random.default_rng(seed)
        self.seen: Counter[tuple[Any, ...]] = Counter()
        self.wrong: list[str] = []

    def draw(self, shape: tuple[int, ...], terms: float = 1) -> np.ndarray:
        """Return random numbers. Sums of `terms` of them are near 1, where activations are not linear."""
        drawn = self.rng.standard_normal(shape, dtype=np.float32) / np.float32(np.sqrt(terms))
        return drawn.astype(TYPES[self.dtype])

    def pick(self, *values: int) -> int:
        return int(self.rng.choice(values))

    def check(self, kernel: Any, kind: tuple[Any, ...], case: Any, work: float, compare: Any) -> None:
        key = (*kind, kernel.implementation)
        if "ref" in kernel.implementation or "simple" in kernel.implementation:
            self.wrong.append(f"{key} of {case} is a reference")
        if self.seen[key] < self.times and work < MOST_WORK:
            self.seen[key] += 1
            error = compare()
            if not error < {"float32": 2e-5, "bfloat16": 2e-2}[self.dtype]:
                self.wrong.append(f"{key} of {case}: relative error {error:.2g}")

    def run(self, kernel: Any, inputs: list[np.ndarray | None], expected: np.ndarray, dtype: Any = None) -> float:
        if kernel.packed_inputs:
            packed = aligned_bytes(kernel.packed_bytes(1))
            kernel.pack(1, inputs[1], packed)
            inputs[1] = packed
        y = np.full(expected.shape, np.nan, dtype or TYPES[self.dtype])
        kernel(inputs, [y])
        return float(np.abs(y.astype(np.float64) - expected).max() / max(np.abs(expected).max(), 1.0))

    def convolution(self, x: tuple[int, ...], w: tuple[int, ...], attributes: dict[str, Any]) -> None:
        """The three convolutions and the transposed one, with the channels first and last."""
        g = Conv(**attributes).geometry(x, w)
        window = native.Window(g.strides, g.dilations, g.begin, g.end, g.group)
        spatial = zip(x[2:], w[2:], *g[:4], strict=True)
        y = (x[0], w[0], *((n + b + e - (k - 1) * d - 1) // s + 1 for n, k, s, d, b, e in spatial))
        work = float(np.prod(y)) * float(np.prod(w[1:]))
        case = (x, w, attributes)
        for last, threads in ((False, 1), (True, self.pick(1, 2))):
            options: dict[str, Any] = dict(
                channels_last=last, dtype=self.dtype, threads=threads, deterministic=self.pick(0, 0, 1) == 1
            )
            for follows in FOLLOWS:
                self._forward(case, y, window, follows, options, work)
                if not follows.residual:
                    self._transposed(case, y, window, follows, options, work)
            packs = dict(options, pack_weights=True)
            # Over an odd number of channels, not all windows have an implementation: see the pass for bfloat16.
            is_odd = self.dtype == "bfloat16" and w[0] // g.group % 2 == 1
            with contextlib.suppress(native.Unsupported) if is_odd else contextlib.nullcontext():
                kernel = native.ConvolutionBackwardData(y, w, x, window, **packs)
                self.check(kernel, ("backward data", last), case, work, partial(self._data, kernel, case, y, last))
            kernel = native.ConvolutionBackwardWeights(x, y, w, window, **options)
            self.check(kernel, ("backward weights", last), case, work, partial(self._weights, kernel, case, y, last))

    def _forward(self, case: Any, y: Any, window: Any, follows: Follows, options: Any, work: float) -> None:
        x, w, attributes = case
        last = options["channels_last"]
        kernel = native.Convolution(
            x, w, y, window, bias=follows.bias, epilogue=follows.epilogue(), pack_weights=True, **options
        )

        def compared() -> float:
            a, b = self.draw(x), self.draw(w, np.prod(w[1:]))
            bias = self.draw(w[:1]) if follows.bias else None
            residual = self.draw(y) if follows.residual else None
            product = Conv(**attributes).reference(numpy_xp, *wide(a, b))
            added = None if residual is None else residual.astype(np.float64)
            expected = follows.apply(product, channelwise(bias, len(x)), added)
            inputs = [placed(a, last), b, bias] + ([] if residual is None else [placed(residual, last)])
            return self.run(kernel, inputs, placed(expected, last))

        self.check(kernel, ("forward", last, follows), case, work, compared)

    def _transposed(self, case: Any, y: Any, window: Any, follows: Follows, options: Any, work: float) -> None:
        x, w, attributes = case
        last = options["channels_last"]
        if options["dtype"] == "bfloat16" and y[1] // attributes.get("group", 1) % 2:
            with pytest.raises(native.Unsupported, match="an odd number of channels"):
                native.Deconvolution(y, w, x, window, **options)
            return
        kernel = native.Deconvolution(
            y, w, x, window, bias=follows.bias, epilogue=follows.epilogue(), pack_weights=True, **options
        )

        def compared() -> float:
            a, b = self.draw(y), self.draw(w, np.prod(w) / x[1])
            bias = self.draw(x[1:2]) if follows.bias else None
            product = transposed(case, y, *wide(a, b))
            expected = follows.apply(product, channelwise(bias, len(x)), None)
            return self.run(kernel, [placed(a, last), b] + ([] if bias is None else [bias]), placed(expected, last))

        self.check(kernel, ("transposed", last, follows), case, work, compared)

    def _data(self, kernel: Any, case: Any, y: Any, last: bool) -> float:
        x, w, attributes = case
        dy, b = self.draw(y), self.draw(w, w[0] * np.prod(w[2:]))
        expected = ConvGradInput(**attributes).reference(numpy_xp, *wide(dy, b), np.zeros(x))
        return self.run(kernel, [placed(dy, last), b], placed(expected, last))

    def _weights(self, kernel: Any, case: Any, y: Any, last: bool) -> float:
        x, w, attributes = case
        a, dy = self.draw(x), self.draw(y, np.prod(y) / y[1])
        expected = ConvGradWeight(**attributes).reference(numpy_xp, *wide(a, dy), np.zeros(w))
        return self.run(kernel, [placed(a, last), placed(dy, last)], expected, np.float32)

    def product(self, batch: tuple[int, ...], rows: int, terms: int, columns: int) -> None:
        """A product of matrices, with each operand transposed or not and b packed or not."""
        work = float(np.prod(batch)) * rows * terms * columns
        flags = (False, True)
        for transposes_a, transposes_b, packs, shares in itertools.product(flags, flags, flags, flags):
            if shares and not batch:
                continue
            a = (*batch, *((terms, rows) if transposes_a else (rows, terms)))
            b = (*(() if shares else batch), *((columns, terms) if transposes_b else (terms, columns)))
            for follows in PRODUCTS:
                if self.dtype != "float32" and follows.bias and follows.alpha != 1:
                    continue  # computed by others
                kernel = native.MatMul(
                    a, b,
                    transpose_a=transposes_a, transpose_b=transposes_b,
                    bias=(columns,) if follows.bias else None,
                    alpha=follows.alpha, epilogue=follows.epilogue(),
                    pack_b=packs, dtype=self.dtype, threads=self.pick(1, 2), deterministic=self.pick(0, 0, 1) == 1,
                )  # fmt: skip

                def compared(kernel: Any = kernel, a: Any = a, b: Any = b, follows: Follows = follows,
                             turns: Any = (transposes_a, transposes_b)) -> float:  # fmt: skip
                    left, right = self.draw(a), self.draw(b, terms)
                    sides = [v.swapaxes(-1, -2) if t else v for v, t in zip(wide(left, right), turns, strict=True)]
                    product = np.matmul(*sides)
                    bias = self.draw((columns,)) if follows.bias else None
                    residual = self.draw(product.shape) if follows.residual else None
                    added = None if residual is None else residual.astype(np.float64)
                    expected = follows.apply(product, None if bias is None else bias.astype(np.float64), added)
                    inputs = [left, right] + ([bias] if bias is not None or residual is not None else [])
                    return self.run(kernel, inputs + ([] if residual is None else [residual]), expected)

                kind = ("product", transposes_a, transposes_b, packs, follows)
                self.check(kernel, kind, (a, b, follows), work, compared)

    def random_convolution(self) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]:
        rank = self.pick(1, 2, 2, 2, 3)
        channels = (1, 2, 3, 8, 15, 16, 17, 32, 64, 100, 256, 450, 512, 768)
        group, c, m = 1, self.pick(*channels), self.pick(*channels)
        if self.rng.random() < 0.15:
            group = c = m = self.pick(3, 8, 17, 64)
        elif self.rng.random() < 0.2:
            group = self.pick(2, 4, 8)
            c, m = group * self.pick(1, 2, 4, 16, 17), group * self.pick(1, 2, 4, 16, 17)
        sizes = (1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 15, 31) if rank < 3 else (1, 2, 3, 4)

        def several(*values: int) -> tuple[int, ...]:
            one = self.pick(*values)
            return tuple(one if alike else self.pick(*values) for _ in range(rank))

        alike = bool(self.rng.random() < 0.6)
        kernel, strides, dilations = several(*sizes), several(1, 1, 2, 2, 3, 4), several(1, 1, 1, 2, 3)
        pads = tuple(int(self.rng.integers(0, (k + 1) // 2 + 1)) for k in kernel)
        spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
        room = [max(1, s - 2 * p) for s, p in zip(spans, pads, strict=True)]
        spatial = tuple(max(r, self.pick(4, 7, 8, 14, 16, 33) if rank > 1 else self.pick(16, 50, 300)) for r in room)
        attributes = dict(group=group, strides=strides, dilations=dilations, pads=pads * 2)
        return (self.pick(1, 1, 2, 5), c, *spatial), (m, c // group, *kernel), attributes

    def random_product(self) -> tuple[tuple[int, ...], int, int, int]:
        sizes = (1, 2, 3, 8, 16, 17, 31, 32, 63, 64, 65, 100, 255, 256, 512, 1000)
        return [(), (2,), (3, 2)][self.pick(0, 0, 1, 2)], self.pick(*sizes), self.pick(*sizes), self.pick(*sizes)

    def random(self, shapes: int) -> None:
        for i in range(shapes):
            self.convolution(*self.random_convolution())
            if i % 4 == 0:
                self.product(*self.random_product())


def wide(*arrays: np.ndarray) -> list[np.ndarray]:
    return [a.astype(np.float64) for a in arrays]


def placed(x: np.ndarray, last: bool) -> np.ndarray:
    return np.ascontiguousarray(np.moveaxis(x, 1, -1)) if last else x


def channelwise(bias: np.ndarray | None, rank: int) -> np.ndarray | None:
    return None if bias is None else bias.astype(np.float64).reshape(-1, *(1,) * (rank - 2))


def transposed(case: Any, y: tuple[int, ...], a: np.ndarray, w: np.ndarray) -> np.ndarray:
    """ConvTranspose as the adjoint of the case's convolution, whose result has shape y."""
    x, _, attributes = case
    g = Conv(**attributes).geometry(x, w.shape)
    sides = zip(x[2:], y[2:], w.shape[2:], *g[:4], strict=True)
    surplus = [n - ((o - 1) * s + (k - 1) * d + 1 - b - e) for n, o, k, s, d, b, e in sides]
    return ConvTranspose(**attributes, output_padding=surplus).reference(numpy_xp, a, w)


BFLOAT16 = pytest.param(
    "bfloat16", marks=pytest.mark.skipif("avx512bw" not in native.cpu_features(), reason="no bfloat16 implementations")
)


@pytest.mark.parametrize("dtype", ["float32", BFLOAT16])
def test_random_shapes(dtype):
    sweep = Sweep(dtype, seed=1, times=1)
    sweep.random(5)
    assert not sweep.wrong, "\n".join(sweep.wrong)
    assert len(sweep.seen) > 20


@pytest.mark.full
@pytest.mark.parametrize(
    "stride", [pytest.param(1, marks=pytest.mark.full), 2, pytest.param(3, marks=pytest.mark.full)]
)
def test_channels_that_do_not_fill_a_vector(stride):
    """A call of a kernel raises where it writes beyond the working memory that it asked for."""
    sweep = Sweep("float32", seed=4, times=10**6)
    for c, m, kernel in itertools.product((1, 3, 15), (8, 25), (1, 3)):
        attributes = dict(group=1, strides=(stride,) * 2, dilations=(1, 1), pads=(kernel // 2,) * 4)
        sweep.convolution((1, c, 64, 64), (m, c, kernel, kernel), attributes)
    assert not sweep.wrong, "\n".join(sweep.wrong)


def swept(isa: str, dtype: str, seed: int, shapes: int, times: int) -> None:
    """Run the sweep in a new process, in which the library uses one instruction set."""
    numbers = [str(n) for n in (seed, shapes, times)]
    modules = str(Path(__file__).parents[3])  # that this file imports
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": isa, "PYTHONPATH": modules}
    done = subprocess.run(
        [sys.executable, __file__, dtype, *numbers], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_random_shapes_with_avx2():
    swept("AVX2", "float32", 2, 4, 1)


@pytest.mark.full
@pytest.mark.parametrize(
    ("isa", "dtype"), [("DEFAULT", "float32"), ("AVX512_CORE", "float32"), ("AVX2", "float32"), ("DEFAULT", "bfloat16")]
)
def test_many_shapes(isa, dtype):
    if dtype == "bfloat16" and "avx512bw" not in native.cpu_features():
        pytest.skip("no bfloat16 implementations")
    swept(isa, dtype, 3, 30, 2)


# x [N, C, H, W] of the transposed convolution, w, strides: each has channels and taps in several groups.
WIDE_TRANSPOSED = [
    ((1, 512, 4, 4), (512, 17, 4, 4), 2, 1),
    ((1, 512, 4, 4), (512, 32, 4, 4), 2, 1),
    ((2, 512, 4, 4), (512, 512, 4, 4), 2, 1),
    ((1, 768, 16, 16), (768, 64, 4, 4), 2, 1),
    ((1, 512, 5, 4), (512, 24, 6, 6), 2, 2),
    ((1, 512, 4, 5), (512, 16, 8, 8), 4, 2),
]


@in_one_item("values")
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize(("x", "w", "stride", "pad"), WIDE_TRANSPOSED, ids=str)
def test_a_wide_transposed_convolution_adds_its_bias_once(x, w, stride, pad, last):
    window = native.Window([stride] * 2, [1, 1], [pad] * 2, [pad] * 2)
    spatial = [(n - 1) * stride + k - 2 * pad for n, k in zip(x[2:], w[2:], strict=True)]
    y = (x[0], w[1], *spatial)
    inputs = [np.ones(x, np.float32), np.zeros(w, np.float32), np.full(w[1], -1, np.float32)]
    inputs[0] = placed(inputs[0], last)
    for epilogue, expected in ((native.Epilogue(), -1), (native.Epilogue("linear", 2, 0.5), -1.5)):
        for deterministic in (False, True):
            options = dict(epilogue=epilogue, channels_last=last, deterministic=deterministic)
            kernel = native.Deconvolution(x, w, y, window, bias=True, **options)
            result = np.full(placed(np.empty(y), last).shape, np.nan, np.float32)
            kernel(inputs, [result])
            np.testing.assert_array_equal(result, np.float32(expected))


@in_one_item()
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("width", [13, 15, 17, 31, 39])
def test_wide_kernels_have_no_reference_implementation(width, last):
    for x, filters in (((1, 8, 32, 64), 8), ((2, 1, 32, 64), 16), ((1, 32, 8, 40), 4)):
        w = (filters, x[1], 3, width)
        y = (x[0], filters, *x[2:])
        window = native.Window([1, 1], [1, 1], [1, width // 2], [1, width // 2])
        for kernel in (
            native.Convolution(x, w, y, window, channels_last=last),
            native.Deconvolution(y, w, x, window, channels_last=last),
            native.ConvolutionBackwardData(y, w, x, window, channels_last=last),
            native.ConvolutionBackwardWeights(x, y, w, window, channels_last=last),
        ):
            assert "ref" not in kernel.implementation, kernel
            # Linear: a few copies of the operands, not one for each element of the kernel.
            assert kernel.scratch_bytes <= 16 * 4 * (np.prod(x) + np.prod(y) + np.prod(w)), kernel


# x, w and what says how windows lie, in all the ways that code of our own for them distinguishes.
WINDOWS = [
    ((2, 3, 9, 40), (5, 3, 3, 31), dict(pads=(1, 15, 1, 15))),
    ((1, 16, 9, 300), (4, 16, 1, 17), dict(pads=(0, 3, 0, 20))),
    ((3, 8, 700), (20, 8, 15), dict(pads=(7, 7), strides=(2,))),
    ((1, 6, 5, 9, 20), (4, 3, 3, 2, 15), dict(pads=(1, 0, 7, 1, 1, 7), group=2, strides=(2, 1, 1))),
    ((2, 12, 9, 33), (18, 4, 2, 16), dict(pads=(0, 15, 1, 15), group=3, dilations=(2, 2))),
    ((2, 4, 20, 20), (6, 4, 15, 15), dict(pads=(15,) * 4, strides=(3, 2))),
]


@in_one_item()
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.full)])
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("case", WINDOWS, ids=str)
def test_gradients_of_wide_windows(case, last, dtype, isa):
    x, w, attributes = case
    rng = np.random.default_rng(5)
    g = Conv(**attributes).geometry(x, w)
    window = native.Window(g.strides, g.dilations, g.begin, g.end, g.group)
    a = rng.standard_normal(x, dtype=np.float32).astype(TYPES[dtype])
    dy = Conv(**attributes).reference(numpy_xp, np.zeros(x), np.zeros(w))
    dy = rng.standard_normal(dy.shape, dtype=np.float32).astype(TYPES[dtype])
    expected = ConvGradWeight(**attributes).reference(numpy_xp, *wide(a, dy), np.zeros(w))
    total = dy.astype(np.float64).sum(axis=(0, *range(2, dy.ndim)))
    bits = []
    for threads in (1, 2, 3):
        try:
            kernel = native.ConvolutionBackwardWeights(
                x, dy.shape, w, window, bias=True, channels_last=last, dtype=dtype, threads=threads
            )
        except native.Unsupported:
            pytest.skip(f"no {dtype} here")
        if not kernel.implementation.startswith("windows"):
            pytest.skip(f"computed by {kernel.implementation}")
        assert kernel.implementation == f"windows:{isa}"
        dw, dbias = np.full(w, np.nan, np.float32), np.full(w[0], np.nan, np.float32)
        kernel([placed(a, last), placed(dy, last)], [dw, dbias])
        np.testing.assert_allclose(dw, expected, rtol=0, atol=1e-6 * np.abs(expected).max() * 3)
        np.testing.assert_allclose(dbias, total, rtol=1e-5, atol=1e-4)
        bits.append(dw.tobytes())
    assert len(set(bits)) == 1


@pytest.mark.skipif(not native.has_bfloat16(), reason="no bfloat16 on this processor")
@pytest.mark.parametrize("positions", [30, 59, 60])
@pytest.mark.parametrize("backward", [False, True])
def test_bfloat16_over_an_odd_number_of_channels(positions: int, backward: bool) -> None:
    """One of the library's implementations for windows of one element is wrong for these numbers of positions."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 1, positions, 9)).astype(ml_dtypes.bfloat16)
    w = rng.standard_normal((9, 10, 1, 1) if backward else (10, 9, 1, 1)).astype(ml_dtypes.bfloat16)
    window = native.Window((1, 1), (1, 1), (0, 0), (0, 0), 1)
    shapes, y = [(2, 9, 1, positions), w.shape, (2, 10, 1, positions)], np.zeros((2, 1, positions, 10), x.dtype)
    if backward:
        kernel = native.ConvolutionBackwardData(*shapes, window, channels_last=True, dtype="bfloat16", threads=1)
        kernel([x, w], [y])
    else:
        kernel = native.Convolution(*shapes, window, channels_last=True, dtype="bfloat16", threads=1)
        kernel([x, w, None], [y])
    matrix = w[:, :, 0, 0].astype(np.float64)
    expected = x.astype(np.float64) @ (matrix if backward else matrix.T)
    np.testing.assert_allclose(y.astype(np.float64), expected, rtol=2**-7, atol=0.05)


def main() -> int:
    dtype, seed, shapes, times = sys.argv[1], *map(int, sys.argv[2:])
    sweep = Sweep(dtype, seed, times)
    sweep.random(shapes)
    lines = [f"{count} {key}" for key, count in sorted(sweep.seen.items(), key=str)]
    sys.stdout.write("\n".join([*lines, *sweep.wrong, ""]))
    return 1 if sweep.wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
