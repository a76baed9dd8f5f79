"""Transposed convolution by products that are added up, against float64."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item
from conv_examples import check, last, mark_middle, run

import graphkit as gk
from graphkit.executor.devices.cpu import native
from graphkit.ops.nn.conv import ConvTranspose
from graphkit.ops.xp import numpy_xp

if not native.has_onednn():  # whose classes the examples below are made of
    pytest.skip("built without oneDNN", allow_module_level=True)


@dataclass
class Example:
    """One transposed convolution of [N, C, *spatial] with random operands."""

    x_shape: tuple[int, ...]
    filters: int
    kernel: tuple[int, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    seed: int = 5

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        self.op = ConvTranspose(**self.attributes)
        self.x = rng.standard_normal(self.x_shape, dtype=np.float32)
        self.w = rng.standard_normal((self.x_shape[1], self.filters, *self.kernel), dtype=np.float32)
        self.bias = rng.standard_normal(self.filters, dtype=np.float32)
        g = self.op.geometry(self.x.shape, self.w.shape)
        self.window = native.Window(g.strides, g.dilations, g.begin, [max(e, 0) for e in g.end])

    def __str__(self) -> str:
        return str((self.x_shape, self.filters, self.kernel, self.attributes))

    def product(self) -> np.ndarray:
        """The result in float64, [N, M, *spatial]."""
        return self.op.reference(numpy_xp, self.x.astype(np.float64), self.w.astype(np.float64))

    def kernel_of(self, **options: Any) -> native.TransposedConvolution:
        y = self.product().shape
        return native.TransposedConvolution(self.x.shape, self.w.shape, y, self.window, **options)


# One and two axes; filters that are folded, fill blocks, halves of them, and several; taps that are fewer than the
# stride, no multiple of it, and far apart; results beyond all taps; sums longer than a chain.
EXAMPLES = [
    Example((1, 16, 170), 8, (8,), dict(strides=(4,), pads=(2, 2))),
    Example((2, 3, 41), 1, (7,), dict(strides=(3,), pads=(2, 0))),
    Example((1, 5, 9), 4, (3,), dict(strides=(5,), output_padding=(3,))),
    Example((1, 140, 33), 70, (5,), dict(strides=(2,), pads=(1, 2), output_padding=(1,))),
    Example((3, 7, 20), 33, (4,), dict(strides=(2,), dilations=(3,), pads=(4, 1))),
    Example((1, 6, 800), 40, (16,), dict(strides=(8,), pads=(4, 4))),
    Example((1, 8, 12, 13), 1, (4, 4), dict(strides=(2, 2), pads=(1, 1, 1, 1))),
    Example((2, 9, 7, 6), 3, (4, 4), dict(strides=(2, 2), pads=(1, 0, 2, 1))),
    Example((1, 33, 8, 9), 16, (3, 3), dict(strides=(2, 2), pads=(1, 1, 1, 1), output_padding=(1, 1))),
    Example((2, 12, 5, 4), 64, (2, 2), dict(strides=(2, 2))),
    # One term for each position, in whole vectors and parts of them; lines longer than a tile.
    Example((2, 131, 3, 29), 50, (2, 2), dict(strides=(2, 2))),
    Example((1, 5, 4, 61), 25, (3, 2), dict(strides=(3, 2))),
    Example((1, 6, 2, 3), 24, (1, 2), dict(strides=(1, 2))),
    Example((3, 2, 2, 5), 13, (2, 3), dict(strides=(2, 3))),
    Example((1, 4, 6, 5), 20, (3, 2), dict(strides=(1, 3), dilations=(2, 1), pads=(0, 1, 1, 0))),
    Example((1, 5, 6, 7), 5, (5, 3), dict(strides=(3, 2), dilations=(1, 2), pads=(3, 2, 2, 1))),
    Example((1, 2, 3, 3), 2, (1, 1), dict(strides=(2, 3), output_padding=(1, 2))),
    Example((1, 21, 5, 4), 21, (16, 16), dict(strides=(8, 8), pads=(4, 4, 4, 4))),
    Example((1, 6, 1, 30), 4, (1, 5), dict(strides=(1, 2), pads=(0, 2, 0, 2))),
    Example((1, 6, 30, 1), 4, (5, 1), dict(strides=(2, 1), pads=(2, 0, 2, 0))),
    Example((1, 3, 2, 2), 2, (3, 3), dict(strides=(2, 2), pads=(2, 2, 2, 2))),
    Example((1, 64, 1, 1), 40, (4, 4), {}),
    Example((0, 3, 4, 4), 2, (2, 2), dict(strides=(2, 2))),
    # One position that meets no element.
    Example((1, 3, 1), 2, (1,), dict(strides=(2,), pads=(1, 0), output_padding=(1,))),
    Example((1, 3, 1, 5), 2, (1, 3), dict(strides=(2, 1), pads=(1, 0, 0, 0), output_padding=(1, 0))),
    Example((1, 3, 5, 1), 2, (3, 1), dict(strides=(1, 2), pads=(0, 1, 0, 0), output_padding=(0, 1))),
    Example((1, 3, 1, 1), 2, (1, 1), dict(strides=(3, 2), pads=(2, 0, 0, 0), output_padding=(2, 0))),
]


@in_one_item()
@pytest.mark.parametrize("e", EXAMPLES, ids=str)
def test_results(isa, e):
    product = e.product()
    plain = last(product + e.bias.reshape(-1, *[1] * len(e.kernel)))
    for threads, packs, bias in itertools.product((1, 2, 5), (False, True), (False, True)):
        kernel = e.kernel_of(bias=bias, pack_weights=packs, threads=threads)
        assert kernel.implementation == f"transposed:{isa}"
        expected = plain if bias else last(product)
        check(run(kernel, plain.shape, e.x, e.w, e.bias if bias else None), expected, np.abs(product).max(initial=1))


def random_example(rng: np.random.Generator, seed: int) -> Example | None:
    """None for padding that leaves nothing."""
    axes = int(rng.integers(1, 3))

    def draw(low: int, high: int) -> tuple[int, ...]:
        return tuple(int(n) for n in rng.integers(low, high, axes))

    high = 2 if seed % 5 == 0 else 12  # single elements among them
    size, kernel, strides, dilations = draw(1, high), draw(1, min(high, 7)), draw(1, 5), draw(1, 3)
    begin, end = draw(0, 5), draw(0, 5)
    extra = tuple(int(rng.integers(0, s)) for s in strides)
    whole = [(n - 1) * s + (k - 1) * d + 1 for n, s, k, d in zip(size, strides, kernel, dilations, strict=True)]
    if any(n + e <= b + f for n, e, b, f in zip(whole, extra, begin, end, strict=True)):
        return None
    attributes = dict(strides=strides, dilations=dilations, pads=(*begin, *end), output_padding=extra)
    x = (int(rng.integers(1, 3)), int(rng.integers(1, 9)), *size)
    return Example(x, int(rng.choice([1, 2, 3, 7, 8, 16, 17, 32, 35])), kernel, attributes, seed)


def test_every_geometry(isa):
    rng = np.random.default_rng(0)
    tried = 0
    for seed in range(300):
        e = random_example(rng, seed)
        if e is None:
            continue
        expected = last(e.product())
        got = run(e.kernel_of(threads=1 + seed % 3, pack_weights=seed % 2 == 0), expected.shape, e.x, e.w, None)
        check(got, expected, np.abs(expected).max(initial=1))
        tried += 1
    assert tried > 150


@in_one_item()
@pytest.mark.parametrize(
    "e",
    [
        Example((2, 19, 60, 50), 3, (5, 5), dict(strides=(2, 2), pads=(2, 2, 2, 2))),
        Example((1, 40, 900), 40, (8,), dict(strides=(4,), pads=(2, 2))),
        Example((2, 40, 31, 29), 19, (2, 2), dict(strides=(2, 2))),
    ],
    ids=str,
)
def test_threads_do_not_change_bits(isa, e):
    shape = last(e.product()).shape
    results = [run(e.kernel_of(threads=threads), shape, e.x, e.w, None) for threads in (1, 2, 3, 64)]
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


def test_single_terms_need_no_memory_for_products():
    attributes = dict(strides=(2, 2))
    assert Example((1, 3, 4, 5), 8, (2, 2), attributes).kernel_of(pack_weights=True, threads=2).scratch_bytes == 0
    assert Example((1, 3, 4, 5), 8, (3, 2), attributes).kernel_of(pack_weights=True, threads=2).scratch_bytes > 0


def test_few_filters_share_vectors_with_all_taps(isa):
    """Products of one line of taps would leave most lanes empty: the general method multiplies less."""
    e = Example((2, 7, 5, 9), 1, (2, 2), dict(strides=(2, 2)))
    assert e.kernel_of(pack_weights=True, threads=2).scratch_bytes > 0
    y = np.full(last(e.product()).shape, np.nan, np.float32)
    e.kernel_of(threads=2)([last(e.x), e.w, None], [y])
    check(y, last(e.product()), np.abs(e.product()).max())


def test_packed_taps_of_single_terms_have_their_own_layout():
    padding = [dict(), dict(output_padding=(1, 1))]
    examples = [Example((1, 3, 4, 5), 8, (2, 2), dict(strides=(2, 2)) | more) for more in padding]
    single, added_up = [e.kernel_of(pack_weights=True).packed_layout(1) for e in examples]
    assert single != added_up


def test_sizes_with_single_terms_and_without():
    """With one column, the axes are exchanged, and then the taps are packed in another order."""
    e = Example((1, 5, 4, 3), 40, (2, 1), dict(strides=(2, 1)))
    net = gk.Model({"y": gk.conv_transpose(gk.input("x", ["N", 5, "H", "W"]), e.w, strides=[2, 1])}).compile()
    for width in (3, 1, 3, 7, 1):
        again = Example((2, 5, 4, width), 40, (2, 1), dict(strides=(2, 1)), seed=width)
        again.w = e.w
        np.testing.assert_allclose(net.run({"x": again.x})["y"], again.product(), rtol=1e-5, atol=1e-5)


def test_nothing_beside_a_result_of_single_terms_is_written(isa):
    e = Example((1, 3, 3, 5), 25, (2, 2), dict(strides=(2, 2)))
    expected = last(e.product())
    around = np.full(expected.size + 128, 7, np.float32)
    y = around[64:-64].reshape(expected.shape)
    e.kernel_of(threads=1)([last(e.x), e.w, None], [y])
    check(y, expected, np.abs(expected).max())
    assert (around[:64] == 7).all()
    assert (around[-64:] == 7).all()


@in_one_item()
@pytest.mark.parametrize("array", ["x", "w"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("e", [EXAMPLES[0], EXAMPLES[1], EXAMPLES[7], EXAMPLES[9], EXAMPLES[10], EXAMPLES[14]], ids=str)
def test_what_is_not_finite_stays_where_it_goes(isa, e, array, value):
    """An element that is not finite reaches the positions of its taps, and no other."""
    e = Example(e.x_shape, e.filters, e.kernel, e.attributes)
    reached = last(mark_middle(e, array, value))
    with np.errstate(invalid="ignore"):
        # Zero times what is not finite would be NaN: only the elements that meet it are looked at.
        got = run(e.kernel_of(threads=2), reached.shape, e.x, e.w, None)
    np.testing.assert_array_equal(np.isfinite(got), ~reached)
    assert reached.any()
    assert not reached.all()


def test_networks_use_it_for_all_sizes():
    """A length is a size that changes; weights that are fed are arranged in each run."""
    rng = np.random.default_rng(0)
    x, w, b = gk.input("x", ["N", 16, "L"]), gk.input("w", [16, 4, 8]), gk.input("b", [4])
    y = gk.conv_transpose(x, w, b, strides=(4,), pads=(2, 2))
    exe = gk.Model({"y": gk.relu(y)}).compile(threads=2)
    for batch, length in ((1, 30), (2, 31), (5, 1), (1, 500), (0, 7)):
        shapes = {"x": (batch, 16, length), "w": (16, 4, 8), "b": (4,)}
        feeds = {name: rng.standard_normal(s, np.float32) for name, s in shapes.items()}
        with gk.profile() as profile:
            (got,) = exe.run(feeds).values()
        e = Example(shapes["x"], 4, (8,), dict(strides=(4,), pads=(2, 2)))
        e.x, e.w = feeds["x"], feeds["w"]
        np.testing.assert_allclose(got, np.maximum(e.product() + feeds["b"][:, None], 0), atol=1e-4)
        steps = [s["args"] for s in profile.trace()["traceEvents"] if "ConvTranspose" in s["name"]]
        assert all(s["implementation"].startswith("transposed:") for s in steps)
        assert steps or batch == 0


@in_one_item()
@pytest.mark.parametrize("batch", [1, 3])
def test_without_strides_where_most_results_lie_at_the_border(batch):
    e = Example((batch, 20, 8, 8), 10, (5, 5))
    x = gk.input("x", ("N", *e.x_shape[1:]))
    executor = gk.Model({"y": gk.relu(gk.conv_transpose(x, e.w, e.bias))}).compile(threads=1)
    with gk.profile() as profile:
        (got,) = executor.run({"x": e.x}).values()
    expected = np.maximum(e.product() + e.bias[:, None, None], 0)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
    steps = [s["args"] for s in profile.trace()["traceEvents"] if "ConvTranspose" in s["name"]]
    assert [s["implementation"].partition(":")[0] for s in steps] == ["transposed"]


def test_without_channels_the_bias_remains():
    bias = np.arange(10, dtype=np.float32)
    y = gk.conv_transpose(gk.input("x", ("N", 0, 8, 8)), np.zeros((0, 10, 5, 5), np.float32), bias)
    (got,) = gk.Model({"y": y}).run({"x": np.zeros((2, 0, 8, 8), np.float32)}).values()
    np.testing.assert_array_equal(got, np.broadcast_to(bias[:, None, None], (2, 10, 12, 12)))


def test_what_is_refused():
    e = EXAMPLES[8]
    y = e.product().shape
    made = native.TransposedConvolution
    with pytest.raises(native.Error, match="spatial dimension 1 does not fit"):
        made(e.x.shape, e.w.shape, (*y[:3], y[3] + 2), e.window)
    with pytest.raises(native.Error, match="batch or channels"):
        made(e.x.shape, e.w.shape, (y[0], y[1] + 1, *y[2:]), e.window)
    two_groups = native.Window((2, 2), (1, 1), (1, 1), (1, 1), 2)
    assert not made.covers(e.x.shape, e.w.shape, y, two_groups)
    wide = Example((1, 32, 2, 4096), 32, (16, 16), dict(strides=(8, 8), pads=(4, 4, 4, 4)))
    assert not made.covers(wide.x.shape, wide.w.shape, (1, 32, 16, 32768), wide.window)  # lines that fill the memory
    with pytest.raises(native.Unsupported, match="not by the method transposed"):
        made(e.x.shape, e.w.shape, y, two_groups)


@pytest.mark.full
@in_one_item()
@pytest.mark.parametrize(
    ("shape", "kernel", "strides", "pads", "has_kernel"),
    [
        ((1, 3, 1, 20000), (1, 4), (1, 2), (0, 1, 0, 1), True),
        ((1, 3, 20000), (4,), (2,), (1, 1), True),
        ((1, 2, 1, 1, 20000), (1, 1, 3), (1, 1, 2), (0,) * 6, True),
        ((1, 2, 20000, 2), (3, 2), (3, 2), (0, 0, 0, 0), True),
        ((1, 2, 3), (100000,), (2,), (0, 1), True),
        ((1, 2, 1, 3), (1, 100000), (1, 2), (0, 0, 0, 0), True),
        # Of several rows: the library would take seconds, or hours for a file that asks for it, before it begins.
        ((1, 2, 2, 20000), (2, 2), (2, 2), (0, 0, 0, 0), False),
        ((1, 2, 2, 3), (2, 20000), (2, 2), (0, 0, 0, 0), False),
    ],
)
def test_very_wide_data_are_not_for_the_library(shape, kernel, strides, pads, has_kernel):
    w = np.random.default_rng(0).standard_normal((shape[1], 5, *kernel)).astype(np.float32)
    net = gk.Model({"y": gk.conv_transpose(gk.input("x", shape), w, strides=strides, pads=pads)})
    gk.verify(net).raise_if_failed()
    executor = net.compile(threads=1)
    executor.run({"x": np.zeros(shape, np.float32)})
    assert (not executor.plan.fallbacks) is has_kernel
