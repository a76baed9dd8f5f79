"""Convolution with few filters, whose lanes hold elements of windows, against float64."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from combinations import in_one_item, seeds
from conv_examples import ACTIVATIONS, Example, check, last, run

import graphkit as gk
from graphkit.executor.devices.cpu import native
from graphkit.executor.memory.packing import aligned_bytes

if not native.has_onednn():  # whose classes the examples below are made of
    pytest.skip("built without oneDNN", allow_module_level=True)

# Every number of filters, of windows that are left over, and of elements behind whole vectors; with and without copies.
EXAMPLES = [
    Example((1, 10, 24, 24), 1, dict(pads=(4, 4, 4, 4)), kernel=(5, 5)),
    Example((2, 20, 8, 9), 2, dict(pads=(4, 0, 3, 1)), kernel=(5, 5)),
    Example((1, 33, 7, 70), 3, kernel=(1, 1)),
    Example((1, 16, 9, 131), 4, dict(pads=(1, 1, 1, 1))),
    Example((2, 7, 11, 12), 5, dict(strides=(2, 3), pads=(0, 1, 2, 2)), kernel=(4, 3)),
    Example((1, 24, 15, 16), 7, dict(dilations=(2, 3), pads=(2, 3, 2, 3))),
    Example((1, 9, 10, 13), 8, dict(dilations=(1, 2), strides=(1, 2)), kernel=(2, 3)),
    Example((3, 40, 50), 3, dict(pads=(3, 3)), kernel=(7,)),
    Example((1, 64, 40, 40), 6, dict(pads=(1, 1, 1, 1))),
    Example((1, 16, 2, 3), 1, dict(pads=(6, 5, 7, 6)), kernel=(7, 7)),
    Example((0, 16, 5, 5), 2),
]


def make(e: Example, y: tuple[int, ...], **options: object) -> native.NarrowConvolution:
    return native.NarrowConvolution(e.x.shape, e.w.shape, y, e.window, **options)


@in_one_item()
@pytest.mark.parametrize("e", EXAMPLES, ids=str)
def test_results(every_isa, e):
    product = e.product()
    plain = last(product + e.bias.reshape(-1, *[1] * len(e.kernel)))
    for threads, packs in itertools.product((1, 2, 5), (False, True)):
        kernel = make(e, product.shape, bias=True, pack_weights=packs, threads=threads)
        assert kernel.implementation == f"narrow:{every_isa}"
        check(run(kernel, plain.shape, e.x, e.w, e.bias), plain, np.abs(product).max(initial=1))


@in_one_item()
@pytest.mark.parametrize("residual_last", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("e", [EXAMPLES[1], EXAMPLES[4]], ids=str)
def test_what_follows(isa, e, activation, residual_last):
    product = last(e.product())
    (alpha, beta), function = ACTIVATIONS[activation]
    residual = np.random.default_rng(1).standard_normal(product.shape, dtype=np.float32)
    epilogue = native.Epilogue(activation, alpha, beta, residual=True, residual_last=residual_last)
    y = np.moveaxis(product, -1, 1).shape
    kernel = make(e, y, bias=True, epilogue=epilogue, pack_weights=True, threads=2)
    expected = function(product + e.bias) + residual if residual_last else function(product + e.bias + residual)
    got = run(kernel, product.shape, e.x, e.w, e.bias, residual)
    check(got, expected, np.abs(product).max())
    assert kernel.inplace == [(3, 0)]
    packed = aligned_bytes(kernel.packed_bytes(1))
    kernel.pack(1, e.w, packed)
    kernel([last(e.x), packed, e.bias, residual], [residual])
    np.testing.assert_array_equal(residual, got)


def test_a_slope_below_zero(isa):
    e = EXAMPLES[3]
    product = e.product()
    expected = last(np.where(product < 0, 0.25 * product, product))
    kernel = make(e, product.shape, epilogue=native.Epilogue("relu", 0.25))
    check(run(kernel, expected.shape, e.x, e.w, None), expected, np.abs(product).max())


def test_threads_do_not_change_bits(isa):
    e = Example((2, 19, 90, 150), 3, dict(pads=(2, 2, 2, 2)), kernel=(5, 5))
    y = e.product().shape
    results = [run(make(e, y, threads=threads), last(np.empty(y)).shape, e.x, e.w, None) for threads in (1, 2, 3, 64)]
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


@in_one_item()
@pytest.mark.parametrize("seed", seeds(24, default=6))
@pytest.mark.parametrize("dilation", [1, 2])
def test_not_finite_and_huge(isa, dilation, seed):
    """Padding times infinity is not added, and NaN appears where the definition has it."""
    rng = np.random.default_rng(seed)
    pads = tuple(int(p) for p in rng.integers(0, 3, 4))
    attributes = dict(pads=pads, dilations=(1, dilation), strides=(1 + seed % 2, 1))
    e = Example((1, int(rng.integers(5, 40)), 9, 11), int(rng.integers(1, 9)), attributes, seed=seed)
    for _ in range(int(rng.integers(1, 4))):
        array = e.x if rng.random() < 0.4 else e.w
        place = tuple(int(rng.integers(0, size)) for size in array.shape)
        array[place] = rng.choice([np.nan, np.inf, -np.inf, 1e30 if array is e.x else 0.0, -9999.0, 1e-42])
    expected = e.inside_sum()
    y = np.moveaxis(expected, -1, 1).shape
    kernel = make(e, y, bias=True, pack_weights=seed % 2 == 0, threads=2)
    got = run(kernel, expected.shape, e.x, e.w, np.zeros(e.filters, np.float32))
    for kind in (np.isnan, np.isposinf, np.isneginf):
        np.testing.assert_array_equal(kind(got), kind(expected))
    finite_x = Example(e.x_shape, e.filters, attributes, seed=seed)
    finite_x.x[:], finite_x.w[:] = (np.where(np.isfinite(a), np.abs(a), 0) for a in (e.x, e.w))
    sound = np.isfinite(expected)
    assert (np.abs(got[sound] - expected[sound]) <= 2e-6 * finite_x.inside_sum()[sound] + 1e-30).all()


def test_which(isa):
    def suits(x: tuple[int, ...], filters: int, kernel: int = 3, vary: bool = False, **attributes: object) -> bool:
        e = Example(x, filters, {"pads": (kernel // 2,) * 4, **attributes}, kernel=(kernel, kernel))
        return native.NarrowConvolution.suits(e.x.shape, e.w.shape, e.product().shape, e.window, vary)

    assert suits((1, 64, 12, 12), 1)
    assert suits((1, 64, 12, 12), 8)
    # Adding the lanes of short windows takes longer than leaving lanes without a filter.
    assert suits((1, 3, 12, 12), 1)
    for example in (((1, 3, 12, 12), 2), ((1, 3, 12, 12), 8), ((1, 16, 12, 12), 6), ((1, 16, 12, 12), 4, 1)):
        assert suits(*example) == (isa != "avx512")
        assert suits(*example, vary=True)
    # Filters that fill a vector, and windows that leave most of one without work.
    assert not suits((1, 64, 12, 12), 9)
    assert not suits((1, 1, 12, 12), 2)
    assert not suits((1, 3, 12, 12), 2, dilations=(2, 2))
    # Taps that are far apart: what lies between them would be copied.
    assert suits((1, 64, 65, 65), 4, dilations=(2, 2), pads=(2, 2, 2, 2))
    assert not suits((1, 64, 65, 65), 4, dilations=(18, 18), pads=(18, 18, 18, 18))


def test_networks_use_it_and_their_axes_of_one_element_come_first():
    """A convolution down a column is one along a line; weights that are fed are arranged in each run."""
    rng = np.random.default_rng(0)
    x, w = gk.input("x", ["N", 16, 40, 1]), gk.input("w", [3, 16, 5, 1])
    exe = gk.Model({"y": gk.sigmoid(gk.conv(x, w, pads=(2, 0, 2, 0)))}).compile(threads=2)
    for batch in (1, 2, 5, 0):
        feeds = {
            name: rng.standard_normal(s, np.float32) for name, s in (("x", (batch, 16, 40, 1)), ("w", (3, 16, 5, 1)))
        }
        with gk.profile() as profile:
            (got,) = exe.run(feeds).values()
        e = Example((batch, 16, 40), 3, dict(pads=(2, 2)), kernel=(5,))
        e.x, e.w = feeds["x"][..., 0], feeds["w"][..., 0]
        np.testing.assert_allclose(got[..., 0], 1 / (1 + np.exp(-e.product())), atol=1e-5)
        used = [s["args"]["implementation"] for s in profile.trace()["traceEvents"] if "ChannelsLastConv" in s["name"]]
        assert all(name.startswith("narrow:") for name in used)
        assert used or batch == 0


def test_gradients_down_a_column_are_those_along_a_line(near_float64):
    """With strides and padding of the axis of one element, which stay with it."""
    rng = np.random.default_rng(0)
    x, dy = rng.standard_normal((2, 6, 17, 1), np.float32), rng.standard_normal((2, 8, 9, 1), np.float32)
    w, attributes = rng.standard_normal((8, 6, 5, 1), np.float32), dict(strides=(2, 3), pads=(2, 0, 2, 1))
    near_float64("conv", (x, w), 1e-5, **attributes)
    near_float64("conv_grad_input", (dy, w, x), 1e-5, **attributes)
    near_float64("conv_grad_weight", (x, dy, w), 1e-5, **attributes)


def test_what_is_refused():
    e = EXAMPLES[3]
    y = e.product().shape
    with pytest.raises(native.Error, match="spatial dimension 1 does not fit"):
        make(e, (*y[:3], y[3] + 1))
    with pytest.raises(native.Error, match="batch or channels"):
        make(e, (y[0], y[1] + 1, *y[2:]))
    two_groups = native.Window((1, 1), (1, 1), (1, 1), (1, 1), 2)
    with pytest.raises(native.Unsupported, match="not by the method narrow"):
        native.NarrowConvolution(e.x.shape, e.w.shape, y, two_groups)
