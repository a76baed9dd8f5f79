"""Convolution of images with few channels, whose vectors hold windows side by side, against float64."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from combinations import in_one_item, seeds
from conv_examples import ACTIVATIONS, Example, check

import graphkit as gk
from graphkit.executor.devices.cpu import native
from graphkit.executor.memory.packing import aligned_bytes

if not native.has_onednn():  # whose classes the examples below are made of
    pytest.skip("built without oneDNN", allow_module_level=True)

# Lines in one part and several, joined and not; every way to separate strides; windows of one chain and of several,
# and such that lie in the padding; groups of filters that are full and not; filters so
# few that four vectors of windows are computed together.
EXAMPLES = [
    Example((1, 1, 4000), 30, dict(strides=(5,)), kernel=(10,)),
    Example((2, 1, 3000), 64, dict(strides=(4,), pads=(40, 39)), kernel=(80,)),
    Example((1, 2, 2500), 5, dict(strides=(160,), pads=(0, 300)), kernel=(300,)),
    Example((1, 3, 1100), 17, dict(pads=(1, 1)), kernel=(3,)),
    Example((1, 4, 700), 3, dict(strides=(9,), dilations=(4,), pads=(3, 20)), kernel=(6,)),
    Example((1, 1, 90), 1, dict(strides=(7,)), kernel=(2,)),
    Example((2, 3, 30, 70), 16, dict(pads=(1, 1, 1, 1), strides=(2, 2))),
    Example((3, 1, 28, 28), 32, kernel=(5, 5)),
    Example((1, 4, 21, 19), 40, dict(pads=(1, 1, 1, 1))),
    Example((1, 3, 64, 60), 50, dict(strides=(4, 4)), kernel=(4, 4)),
    Example((1, 1, 12, 90), 20, dict(strides=(2, 2), pads=(20, 5, 20, 5)), kernel=(31, 11)),
    Example((1, 1, 3, 40), 9, dict(pads=(9, 2, 7, 3), strides=(1, 3), dilations=(2, 1)), kernel=(2, 5)),
    Example((1, 2, 50, 33), 15, dict(dilations=(3, 2), strides=(3, 6), pads=(2, 7, 1, 0)), kernel=(3, 4)),
    Example((1, 3, 40, 600), 14, dict(pads=(0, 2, 0, 2)), kernel=(2, 5)),
    Example((2, 13, 11, 37), 5, dict(pads=(0, 2, 1, 0))),
    Example((1, 7, 9, 131), 6, dict(pads=(1, 3, 1, 3)), kernel=(1, 7)),
    Example((1, 61, 5, 50), 2, dict(strides=(1, 2)), kernel=(2, 2)),
    *(Example((1, 5, 4, 150 + n), 7, dict(strides=(2, n), pads=(1, n, 0, 3))) for n in range(2, 10)),
    Example((2, 10, 11, 37), 15, dict(group=5, pads=(1, 1, 1, 1))),
    Example((1, 13, 29, 17), 26, dict(group=13, strides=(2, 2), pads=(1, 1, 1, 1))),
    Example((1, 21, 200), 84, dict(group=21, pads=(2, 2)), kernel=(5,)),
    Example((0, 3, 16, 16), 8),
    Example((1, 3, 0, 16), 8, dict(pads=(1, 1, 1, 1)), kernel=(2, 3)),
]


def make(e: Example, y: tuple[int, ...], **options: object) -> native.ShallowConvolution:
    return native.ShallowConvolution(e.x.shape, e.w.shape, y, e.window, **options)


def run(
    kernel: native.ShallowConvolution, e: Example, shape: tuple[int, ...], *others: np.ndarray | None
) -> np.ndarray:
    """Return the result, in the standard order, for plain weights."""
    w = e.w
    if kernel.packed_inputs:
        w = aligned_bytes(kernel.packed_bytes(1))
        kernel.pack(1, e.w, w)
    y = np.full(shape, np.nan, np.float32)
    kernel([e.x, w, *others], [y])
    return y


def biased(e: Example, product: np.ndarray) -> np.ndarray:
    return product + e.bias.reshape(-1, *[1] * len(e.kernel))


@in_one_item()
@pytest.mark.parametrize("e", EXAMPLES, ids=str)
def test_results(every_isa, e):
    product = e.product()
    for threads, packs in itertools.product((1, 2, 5), (False, True)):
        kernel = make(e, product.shape, bias=True, pack_weights=packs, threads=threads)
        assert kernel.implementation == f"shallow:{every_isa}"
        check(run(kernel, e, product.shape, e.bias), biased(e, product), np.abs(product).max(initial=1))


@in_one_item()
@pytest.mark.parametrize("residual_last", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("e", [EXAMPLES[1], EXAMPLES[2], EXAMPLES[7]], ids=str)
def test_what_follows(isa, e, activation, residual_last):
    product = e.product()
    (alpha, beta), function = ACTIVATIONS[activation]
    residual = np.random.default_rng(1).standard_normal(product.shape, dtype=np.float32)
    epilogue = native.Epilogue(activation, alpha, beta, residual=True, residual_last=residual_last)
    kernel = make(e, product.shape, bias=True, epilogue=epilogue, pack_weights=True, threads=2)
    plain = biased(e, product)
    expected = function(plain) + residual if residual_last else function(plain + residual)
    check(run(kernel, e, product.shape, e.bias, residual), expected, np.abs(product).max())


@in_one_item()
@pytest.mark.parametrize("e", [EXAMPLES[0], EXAMPLES[8]], ids=str)
@pytest.mark.parametrize("residual", [False, True])
def test_a_slope_below_zero(isa, e, residual):
    product = e.product()
    other = np.random.default_rng(1).standard_normal(product.shape, dtype=np.float32)
    plain = product + other if residual else product
    kernel = make(e, product.shape, epilogue=native.Epilogue("relu", 0.25, residual=residual))
    others = [None, other] if residual else [None]
    check(run(kernel, e, product.shape, *others), np.where(plain < 0, 0.25 * plain, plain), np.abs(product).max())


@in_one_item()
@pytest.mark.parametrize("e", [EXAMPLES[4], EXAMPLES[9], EXAMPLES[13]], ids=str)
def test_threads_do_not_change_bits(isa, e):
    shape = e.product().shape
    results = [run(make(e, shape, threads=threads), e, shape, None) for threads in (1, 2, 3, 64)]
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
    e = Example((1, int(rng.integers(1, 5)), 9, 21), int(rng.integers(1, 20)), attributes, seed=seed)
    for _ in range(int(rng.integers(1, 4))):
        array = e.x if rng.random() < 0.4 else e.w
        place = tuple(int(rng.integers(0, size)) for size in array.shape)
        array[place] = rng.choice([np.nan, np.inf, -np.inf, 1e30 if array is e.x else 0.0, -9999.0, 1e-42])
    expected = np.moveaxis(e.inside_sum(), -1, 1)
    kernel = make(e, expected.shape, bias=True, pack_weights=seed % 2 == 0, threads=2)
    got = run(kernel, e, expected.shape, np.zeros(e.filters, np.float32))
    for kind in (np.isnan, np.isposinf, np.isneginf):
        np.testing.assert_array_equal(kind(got), kind(expected))
    finite = Example(e.x_shape, e.filters, attributes, seed=seed)
    finite.x[:], finite.w[:] = (np.where(np.isfinite(a), np.abs(a), 0) for a in (e.x, e.w))
    sound = np.isfinite(expected)
    bound = 2e-6 * np.moveaxis(finite.inside_sum(), -1, 1)[sound] + 1e-30
    assert (np.abs(got[sound] - expected[sound]) <= bound).all()


@in_one_item()
@pytest.mark.parametrize("packs", [False, True])
@pytest.mark.parametrize("odd", [None, np.inf, np.nan], ids=str)
def test_groups_equal_separate_convolutions(isa, odd, packs):
    e = Example((2, 6, 9, 40), 12, dict(group=3, pads=(1, 0, 0, 1), strides=(1, 2)))
    shape = e.product().shape
    if odd is not None:
        e.w[5, 1, 0, 2] = odd
    residual = np.random.default_rng(1).standard_normal(shape, dtype=np.float32)
    options = dict(bias=True, epilogue=native.Epilogue("relu", residual=True), pack_weights=packs, threads=3)
    got = run(make(e, shape, **options), e, shape, e.bias, residual)
    for g in range(3):
        one = Example((2, 2, 9, 40), 4, {**e.attributes, "group": 1})
        one.x, one.w = np.ascontiguousarray(e.x[:, 2 * g : 2 * g + 2]), e.w[4 * g : 4 * g + 4]
        part = slice(4 * g, 4 * g + 4)
        some = (2, 4, *shape[2:])
        other = np.ascontiguousarray(residual[:, part])
        expected = run(make(one, some, **options), one, some, e.bias[part].copy(), other)
        if odd is None:
            np.testing.assert_array_equal(got[:, part], expected)
        else:  # if any weight is not finite, all results are summed without padding
            np.testing.assert_allclose(got[:, part], expected, rtol=0, atol=1e-5)


def implementations(model: gk.Model, feeds: dict[str, np.ndarray]) -> tuple[list[str], np.ndarray]:
    exe = model.compile(threads=2)
    with gk.profile() as profile:
        (got,) = exe.run(feeds).values()
    events = profile.trace()["traceEvents"]
    return [s["args"]["implementation"] for s in events if "Conv" in s["name"]], got


@in_one_item()
@pytest.mark.parametrize("constant", [False, True])
def test_networks_use_it_where_nothing_else_reads_the_result(constant):
    """Weights that are fed are arranged in each run. If another convolution follows, the channels are last."""
    e = Example((2, 3, 40, 41), 20, dict(strides=(2, 2), pads=(1, 1, 1, 1)))
    x = gk.input("x", e.x.shape)
    w = gk.constant(value=e.w) if constant else gk.input("w", e.w.shape)
    feeds = {"x": e.x} if constant else {"x": e.x, "w": e.w}
    stem = gk.relu(gk.conv(x, w, gk.constant(value=e.bias), **e.attributes))
    used, got = implementations(gk.Model({"y": stem}), feeds)
    assert [name.split(":")[0] for name in used] == ["shallow"]
    expected = np.maximum(biased(e, e.product()), 0)
    np.testing.assert_allclose(got, expected, atol=1e-4)
    second = Example(expected.shape, 24)
    second.x = expected
    last = gk.conv(stem, gk.constant(value=second.w))
    used, got = implementations(gk.Model({"y": last}), feeds)
    assert len(used) == 2
    assert not any(name.startswith("shallow") for name in used)
    np.testing.assert_allclose(got, second.product(), atol=1e-3)


def test_what_is_refused():
    e = EXAMPLES[8]
    y = e.product().shape
    with pytest.raises(native.Error, match="spatial dimension 1 does not fit"):
        make(e, (*y[:3], y[3] + 1))
    with pytest.raises(native.Error, match="batch or channels"):
        make(e, (y[0], y[1] + 1, *y[2:]))
    for groups in (2, 3):
        window = native.Window((1, 1), (1, 1), (1, 1), (1, 1), groups)
        with pytest.raises(native.Error, match="batch or channels"):
            native.ShallowConvolution(e.x.shape, e.w.shape, y, window)
    with pytest.raises(native.Unsupported, match="not by the method shallow"):
        native.ShallowConvolution(e.x.shape, e.w.shape, y, native.Window((1, 1), (1, 1), (1, 1), (1, 1), 0))
