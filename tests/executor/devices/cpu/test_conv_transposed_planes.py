"""Transposed convolution in the standard order of axes, whose vectors hold neighbouring elements, against float64."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item
from conv_examples import check, mark_middle

import graphkit as gk
from graphkit.executor.devices.cpu import native
from graphkit.executor.memory.packing import aligned_bytes
from graphkit.ops.nn.conv import ConvTranspose
from graphkit.ops.xp import numpy_xp
from graphkit.passes.layout.standard_order import scatters_over_planes

if not native.has_onednn():  # whose classes the examples below are made of
    pytest.skip("built without oneDNN", allow_module_level=True)


class Example:
    """One transposed convolution of [N, C, *spatial] with random operands.

    Args:
        x: Shape of the data.
        w: Shape of the weights, [C, M / group, *kernel].
        attributes: Attributes of ConvTranspose.
        seed: Of the operands.
    """

    def __init__(self, x: tuple[int, ...], w: tuple[int, ...], attributes: dict[str, Any], seed: int = 5) -> None:
        rng = np.random.default_rng(seed)
        self.shapes, self.attributes = (x, w), attributes
        self.op = ConvTranspose(**attributes)
        self.x, self.w = (rng.standard_normal(shape, dtype=np.float32) for shape in (x, w))
        self.bias = rng.standard_normal(w[1] * self.op.group, dtype=np.float32)
        g = self.op.geometry(x, w)
        self.window = native.Window(g.strides, g.dilations, g.begin, [max(e, 0) for e in g.end], g.group)

    def __str__(self) -> str:
        return str((*self.shapes, self.attributes))

    def product(self) -> np.ndarray:
        return self.op.reference(numpy_xp, self.x.astype(np.float64), self.w.astype(np.float64))

    def biased(self) -> np.ndarray:
        return self.product() + self.bias.reshape(-1, *[1] * (self.x.ndim - 2))

    def kernel_of(self, y: tuple[int, ...], **options: Any) -> native.TransposedPlanes:
        return native.TransposedPlanes(self.x.shape, self.w.shape, y, self.window, bias=True, **options)

    def run(self, y: tuple[int, ...], **options: Any) -> np.ndarray:
        """Return the result. Checks that no memory beside it is written."""
        kernel, w = self.kernel_of(y, **options), self.w
        if kernel.packed_inputs:
            w = aligned_bytes(kernel.packed_bytes(1))
            kernel.pack(1, self.w, w)
        around = np.full(int(np.prod(y)) + 128, np.float32(7))
        result = around[64:-64].reshape(y)
        result[:] = np.nan
        kernel([self.x, w, self.bias], [result])
        assert (around[:64] == 7).all()
        assert (around[-64:] == 7).all()
        return result


# One to three axes; strides that are joined in registers and not; lines of several vectors; bands of one image; several
# parts of the filters; sums longer than a chain; positions that meet no element; groups.
EXAMPLES = [
    Example((1, 1, 19, 35), (1, 1, 4, 4), dict(strides=(2, 2), pads=(1, 1, 1, 1))),
    Example((2, 7, 9, 50), (7, 5, 3, 3), dict(strides=(2, 2), pads=(1, 1, 1, 1), output_padding=(1, 1))),
    Example((1, 67, 53, 59), (67, 31, 2, 2), dict(strides=(2, 2))),
    Example((1, 300, 3, 40), (300, 9, 2, 3), dict(strides=(1, 3), pads=(0, 2, 1, 0))),
    Example((2, 16, 170), (16, 8, 8), dict(strides=(4,), pads=(2, 2))),
    Example((1, 3, 600), (3, 70, 16), dict(strides=(11,), dilations=(3,), pads=(5, 40))),
    Example((1, 5, 9), (5, 4, 3), dict(strides=(12,), output_padding=(3,))),
    Example((1, 4, 5, 7, 18), (4, 3, 2, 3, 4), dict(strides=(2, 1, 2), pads=(1, 1, 1, 0, 2, 1))),
    Example((2, 6, 8, 20), (6, 4, 3, 5), dict(strides=(1, 2), dilations=(2, 1), pads=(3, 1, 0, 2), group=3)),
    Example((1, 2, 400, 300), (2, 2, 5, 5), dict(strides=(2, 2), pads=(2, 2, 2, 2))),
    Example((1, 3, 1, 1), (3, 2, 1, 1), dict(strides=(3, 2), pads=(2, 0, 0, 0), output_padding=(2, 0))),
    Example((0, 3, 4, 4), (3, 2, 2, 2), dict(strides=(2, 2))),
]


@in_one_item()
@pytest.mark.parametrize("e", EXAMPLES, ids=str)
def test_results_for_any_number_of_threads(every_isa, e):
    expected = e.biased()
    first = e.run(expected.shape, threads=1)
    assert e.kernel_of(expected.shape).implementation == f"scattered:{every_isa}"
    check(first, expected, np.abs(expected).max(initial=1))
    for threads, packs in ((1, True), (2, False), (5, True), (64, False)):
        np.testing.assert_array_equal(e.run(expected.shape, threads=threads, pack_weights=packs), first)


def random_example(seed: int) -> Example | None:
    """Return None for padding that leaves nothing."""
    rng = np.random.default_rng(seed)
    axes = int(rng.integers(1, 4))

    def draw(low: int, high: int) -> tuple[int, ...]:
        return tuple(int(n) for n in rng.integers(low, high, axes))

    size, kernel, strides = draw(1, 9 if axes == 3 else 25), draw(1, 6), draw(1, 4 if seed % 5 else 11)
    dilations, begin, end = draw(1, 3), draw(0, 4), draw(0, 4)
    extra = tuple(int(rng.integers(0, s)) for s in strides)
    whole = [(n - 1) * s + (k - 1) * d + 1 for n, s, k, d in zip(size, strides, kernel, dilations, strict=True)]
    if any(n + e <= b + f for n, e, b, f in zip(whole, extra, begin, end, strict=True)):
        return None
    group, channels = int(rng.choice([1, 1, 2, 3])), int(rng.integers(1, 6))
    attributes = dict(strides=strides, dilations=dilations, pads=(*begin, *end), output_padding=extra, group=group)
    return Example((2, channels * group, *size), (channels * group, int(rng.integers(1, 9)), *kernel), attributes, seed)


def test_every_geometry(isa):
    tried = 0
    for seed in range(120):
        e = random_example(seed)
        if e is None:
            continue
        expected = e.biased()
        got = e.run(expected.shape, threads=1 + seed % 3, pack_weights=seed % 2 == 0)
        check(got, expected, np.abs(expected).max(initial=1))
        tried += 1
    assert tried > 80


@in_one_item()
@pytest.mark.parametrize("array", ["x", "w"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("number", [0, 1, 3, 4, 7, 8])
def test_what_is_not_finite_stays_where_it_goes(isa, number, array, value):
    """An element that is not finite reaches the positions of its taps, and no other."""
    e = Example(*EXAMPLES[number].shapes, EXAMPLES[number].attributes)
    reached = mark_middle(e, array, value)
    np.testing.assert_array_equal(np.isfinite(e.run(reached.shape, threads=2)), ~reached)
    assert reached.any()
    assert not reached.all()


@in_one_item()
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("strides", [(2, 2), (1, 1)])
def test_networks_use_it_where_nothing_else_reads_the_result(constant, strides):
    e = Example((2, 17, 9, 30), (17, 3, 4, 4), dict(strides=strides, pads=(1, 1, 1, 1)))
    x = gk.input("x", e.x.shape)
    w = gk.constant(value=e.w) if constant else gk.input("w", e.w.shape)
    feeds = {"x": e.x} if constant else {"x": e.x, "w": e.w}
    y = gk.conv_transpose(x, w, gk.constant(value=e.bias), **e.attributes)
    for model, name in ((gk.Model({"y": y}), "scattered"), (gk.Model({"y": gk.global_average_pool(y)}), "other")):
        exe = model.compile(threads=2)
        with gk.profile() as profile:
            (got,) = exe.run(feeds).values()
        steps = [s["args"]["implementation"] for s in profile.trace()["traceEvents"] if "Conv" in s["name"]]
        assert [step.partition(":")[0] == "scattered" for step in steps] == [name == "scattered"]
        expected = e.biased() if name == "scattered" else e.biased().mean((2, 3), keepdims=True)
        np.testing.assert_allclose(got, expected, atol=1e-4)


# Beside each limit of the products that are kept: lines too long, or too many of them.
@in_one_item()
@pytest.mark.parametrize(
    ("x", "w", "attributes", "kept"),
    [
        ((1, 4, 2, 9362), (4, 2, 2, 2), dict(strides=(2, 2)), True),
        ((1, 4, 2, 9363), (4, 2, 2, 2), dict(strides=(2, 2)), False),
        ((1, 1, 2, 80, 78), (1, 1, 3, 1, 2), dict(strides=(2, 2, 2)), True),
        ((1, 1, 2, 80, 79), (1, 1, 3, 1, 2), dict(strides=(2, 2, 2)), False),
        ((1, 1, 2, 80, 78), (1, 1, 3, 1, 2), dict(strides=(2, 2, 2), dilations=(2, 1, 1)), False),
        ((1, 1, 120, 1, 79), (1, 1, 2, 1, 2), dict(strides=(2, 1, 2)), False),
        ((1, 1, 118, 1, 79), (1, 1, 2, 1, 2), dict(strides=(2, 1, 2)), True),
        ((1, 4, 8192), (4, 4, 64), dict(strides=(4,)), True),
        ((1, 4, 8193), (4, 4, 64), dict(strides=(4,)), False),
    ],
    ids=str,
)
def test_the_choice_of_the_kernel_agrees_with_its_limits(x, w, attributes, kept):
    op = ConvTranspose(**attributes)
    g = op.geometry(x, w)
    y = (1, w[1], *op.output_sizes(x, w))
    axes = sorted(range(len(g.strides)), key=lambda axis: not x[2 + axis] == w[2 + axis] == y[2 + axis] == 1)
    window = native.Window(*([side[axis] for axis in axes] for side in g[:4]), 1)
    shapes = [(*shape[:2], *(shape[2 + axis] for axis in axes)) for shape in (x, w, y)]
    with contextlib.nullcontext() if kept else pytest.raises(native.Unsupported):
        native.TransposedPlanes(*shapes, window)
    assert scatters_over_planes(x, w, 1, g.strides, g.dilations) == kept


def test_what_is_refused():
    e = EXAMPLES[1]
    y = e.product().shape
    with pytest.raises(native.Error, match="spatial dimension 1 does not fit"):
        e.kernel_of((*y[:3], y[3] + 9))
    with pytest.raises(native.Error, match="batch or channels"):
        e.kernel_of((y[0], y[1] + 1, *y[2:]))
    with pytest.raises(native.Unsupported, match="not by the method scattered"):
        native.TransposedPlanes((1, 1, 70000), (1, 1, 3), (1, 1, 70002), native.Window((1,), (1,), (0,), (0,)))
