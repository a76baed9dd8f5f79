"""Depthwise convolutions in the standard order, plane by plane, against float64."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from combinations import in_one_item
from conv_examples import ACTIVATIONS, check

import graphkit as gk
from graphkit.executor.devices.cpu import native
from graphkit.executor.memory.packing import aligned_bytes
from graphkit.ops import F
from graphkit.ops.nn.conv import Conv
from graphkit.ops.xp import numpy_xp

if not native.has_onednn():  # its bindings contain the windows
    pytest.skip("built without oneDNN", allow_module_level=True)

# Shape of x, size of the kernel, pads. Lines of one vector and of several, that are full and not; 1 to 4 lines in the
# last tile; several bands of a plane; padding at no, some and all sides, and lines that contain only padding.
EXAMPLES = [
    ((1, 3, 9, 16), 3, (1, 1, 1, 1)),
    ((2, 2, 5, 33), 3, (0, 0, 0, 0)),
    ((1, 2, 6, 47), 3, (2, 0, 0, 1)),
    ((1, 1, 90, 130), 3, (1, 1, 1, 1)),
    ((2, 3, 7, 14), 5, (2, 2, 2, 2)),
    ((1, 2, 31, 29), 5, (0, 4, 3, 0)),
    ((1, 2, 3, 1), 5, (9, 7, 6, 8)),
    ((1, 2, 10, 28), 7, (3, 3, 3, 3)),
    ((1, 1, 8, 700), 7, (3, 6, 3, 0)),
    ((1, 2, 0, 6), 3, (2, 1, 3, 1)),
    ((0, 2, 6, 6), 3, (1, 1, 1, 1)),
]


def operands(x: tuple[int, ...], kernel: int, seed: int = 0) -> list[np.ndarray]:
    """Return images, filters and bias."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape, np.float32) for shape in (x, (x[1], 1, kernel, kernel), (x[1],))]


def product(x: np.ndarray, w: np.ndarray, pads: tuple[int, ...]) -> np.ndarray:
    """Return the result without bias, in float64."""
    return Conv(group=w.shape[0], pads=pads).reference(numpy_xp, x.astype(np.float64), w.astype(np.float64))


def make(x: np.ndarray, w: np.ndarray, y: tuple[int, ...], pads: tuple[int, ...], **options: object) -> object:
    window = native.Window((1, 1), (1, 1), pads[:2], pads[2:], w.shape[0])
    return native.DepthwisePlanes(x.shape, w.shape, y, window, **options)


def run(kernel: object, shape: tuple[int, ...], x: np.ndarray, w: np.ndarray, *others: np.ndarray | None) -> np.ndarray:
    if kernel.packed_inputs:
        packed = aligned_bytes(kernel.packed_bytes(1))
        kernel.pack(1, w, packed)
        w = packed
    y = np.full(shape, np.nan, np.float32)
    kernel([x, w, *others], [y])
    return y


@in_one_item()
@pytest.mark.parametrize(("shape", "kernel", "pads"), EXAMPLES, ids=str)
def test_results(every_isa, shape, kernel, pads):
    x, w, bias = operands(shape, kernel)
    expected = product(x, w, pads) + bias.reshape(-1, 1, 1)
    found = set()
    for threads, packs in itertools.product((1, 2, 5), (False, True)):
        made = make(x, w, expected.shape, pads, bias=True, pack_weights=packs, threads=threads)
        assert made.implementation == f"planes:{every_isa}"
        y = run(made, expected.shape, x, w, bias)
        check(y, expected, np.abs(expected).max(initial=1))
        found.add(y.tobytes())
    assert len(found) == 1


@in_one_item()
@pytest.mark.parametrize("residual_last", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("wrong", [False, True])
def test_what_follows(isa, activation, residual_last, wrong):
    """wrong: One filter is not finite, so that results are computed one by one."""
    pads = (1, 1, 1, 1)
    x, w, bias = operands((2, 3, 7, 21), 3)
    expected = product(x, w, pads) + bias.reshape(-1, 1, 1)
    residual = np.random.default_rng(1).standard_normal(expected.shape, np.float32)
    (alpha, beta), function = ACTIVATIONS[activation]
    epilogue = native.Epilogue(activation, alpha, beta, residual=True, residual_last=residual_last)
    expected = function(expected) + residual if residual_last else function(expected + residual)
    if wrong:
        w[1, 0, 0, 0] = np.inf
    y = run(make(x, w, x.shape, pads, bias=True, epilogue=epilogue, threads=2), x.shape, x, w, bias, residual)
    check(y[:, ::2], expected[:, ::2], np.abs(expected).max())


@in_one_item()
@pytest.mark.parametrize("where", ["x", "w"])
@pytest.mark.parametrize("kernel", [3, 5, 7])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_not_finite(isa, where, kernel, value):
    """Padding times infinity is not added. Only windows that contain the element are affected."""
    pads = (kernel // 2,) * 4
    x, w, _ = operands((1, 3, 9, 18), kernel)
    place = (0, 1, 2, 3) if where == "x" else (1, 0, 0, kernel - 1)
    (x if where == "x" else w)[place] = value
    y = run(make(x, w, x.shape, pads, pack_weights=True), x.shape, x, w, None)
    reach = kernel // 2
    expected = np.zeros(x.shape, bool)
    if where == "x":
        expected[0, 1, max(2 - reach, 0) : 3 + reach, max(3 - reach, 0) : 4 + reach] = True
    else:  # the filter's upper right element meets no padding in these windows
        expected[0, 1, reach:, : 18 - reach] = True
    np.testing.assert_array_equal(~np.isfinite(y), expected)


def planned(shape: tuple[int, ...], kernel: int, read: bool = False, **attributes: object) -> str:
    x = gk.input("x", list(shape))
    w = gk.constant(np.ones((shape[1], 1, kernel, kernel), np.float32))
    y = F.conv(x, w, pads=(kernel // 2,) * 4, group=shape[1], **attributes)
    model = gk.Model({"y": F.conv(y, gk.constant(np.ones((4, shape[1], 1, 1), np.float32))) if read else y})
    return str(model.compile(threads=1).plan)


def test_networks_use_it_where_nothing_else_reads_the_result():
    """Lines that do not fill vectors, strides, and convolutions behind are computed with the channels last."""
    shape = (1, 8, 20, 30)
    assert "ChannelsLast" not in planned(shape, 3)
    assert "ChannelsLast" in planned((1, 8, 20, 20), 3)
    assert "ChannelsLast" in planned(shape, 3, strides=(2, 2))
    assert "ChannelsLast" in planned(shape, 9)
    assert "ChannelsLast" in planned(shape, 3, read=True)


def test_fused_activation_of_given_filters():
    pads, feeds = (1, 1, 1, 1), dict(zip("xwb", operands((2, 8, 9, 30), 3), strict=True))
    x, w, b = (gk.input(name, list(a.shape)) for name, a in feeds.items())
    executor = gk.Model({"y": F.relu(F.conv(x, w, b, pads=pads, group=8))}).compile(threads=2)
    with gk.profile() as profile:
        y = executor.run(feeds)["y"]
    used = [e["args"]["implementation"] for e in profile.trace()["traceEvents"] if "Conv" in e["name"]]
    assert [name.split(":")[0] for name in used] == ["planes"]
    expected = np.maximum(product(feeds["x"], feeds["w"], pads) + feeds["b"].reshape(-1, 1, 1), 0)
    np.testing.assert_allclose(y, expected, atol=1e-5)


def test_what_is_refused():
    x, w, _ = operands((1, 3, 9, 16), 3)
    pads = (1, 1, 1, 1)
    with pytest.raises(native.Error, match="spatial dimension 1 does not fit"):
        make(x, w, (1, 3, 9, 17), pads)
    with pytest.raises(native.Error, match="one filter for each channel"):
        make(x, w[:2], x.shape, pads)
    for (stride, dilation), y in {(2, 1): (1, 3, 5, 8), (1, 2): (1, 3, 7, 14)}.items():
        window = native.Window((stride,) * 2, (dilation,) * 2, (1, 1), (1, 1), 3)
        with pytest.raises(native.Unsupported, match="not by the method planes"):
            native.DepthwisePlanes(x.shape, w.shape, y, window)
