"""Convolution by our own code, by Winograd's algorithm and by the definition, against float64 and ONNX Runtime."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from combinations import in_one_item, seeds
from conv_examples import ACTIVATIONS, Example, check, last, run
from instruction_sets import BEST_ISA
from onnx import helper, numpy_helper

import graphkit as gk
from graphkit.executor.devices.cpu import native
from graphkit.executor.memory.packing import aligned_bytes
from graphkit.ops.nn.conv import ConvGradInput
from graphkit.ops.xp import numpy_xp

if not native.has_onednn():  # whose classes the examples below are made of
    pytest.skip("built without oneDNN", allow_module_level=True)


def make(e: Example, y: tuple[int, ...], method: str, **options: Any) -> Any:
    chosen = getattr(native.TiledMethod, method)
    return native.TiledConvolution(e.x.shape, e.w.shape, y, e.window, chosen, **options)


def pads(*sizes: int) -> dict[str, Any]:
    return {"pads": sizes}


WINOGRAD = [
    Example((1, 16, 8, 8), 16, pads(1, 1, 1, 1)),
    Example((2, 20, 13, 17), 37, pads(1, 1, 1, 1)),
    Example((1, 100, 20, 9), 33, pads(0, 2, 1, 0)),
    Example((3, 17, 9, 11), 16, pads(2, 2, 2, 2)),
    Example((1, 130, 3, 3), 70),
    Example((1, 5, 4, 40), 3, pads(5, 4, 3, 2)),
    Example((2, 24, 15, 16), 40, dict(dilations=(2, 3), pads=(2, 3, 2, 3))),
    Example((1, 16, 9, 9), 16, dict(dilations=(6, 6), pads=(6, 6, 6, 6))),
]
DIRECT = [
    *WINOGRAD[1:4],
    Example((2, 20, 13, 17), 37, dict(strides=(2, 2), pads=(1, 1, 1, 1))),
    Example((1, 70, 9, 10), 33, dict(strides=(2, 1), dilations=(1, 2), pads=(0, 1, 2, 3))),
    Example((1, 3, 12, 12), 8, dict(strides=(3, 2), pads=(2, 2, 2, 2)), kernel=(5, 4)),
    Example((2, 33, 6, 5), 20, kernel=(1, 1)),
    # Windows whose lines lie in the padding, partly and whole; one axis; half a block of filters.
    Example((1, 3, 20, 21), 48, dict(strides=(2, 2), pads=(3, 3, 3, 3)), kernel=(7, 7)),
    Example((1, 5, 2, 3), 16, pads(4, 5, 4, 5), kernel=(5, 5)),
    Example((2, 16, 40), 32, pads(2, 2), kernel=(5,)),
    Example((1, 20, 33), 45, dict(strides=(3,), dilations=(2,), pads=(4, 1)), kernel=(7,)),
    # Windows inside of the image, which are read line by line, and windows beyond its sides, top and bottom.
    Example((1, 3, 33, 40), 48, dict(strides=(2, 2), pads=(1, 1, 1, 1))),
    # Two blocks of filters at once: windows in lines, with one block left over, and single elements in several chains.
    Example((2, 32, 9, 61), 104, dict(strides=(2, 2), pads=(1, 1, 1, 1))),
    Example((1, 300, 7, 9), 130, kernel=(1, 1)),
    # A line that is longer than a part.
    Example((1, 3, 3, 500), 32, dict(strides=(2, 2), pads=(1, 1, 1, 1))),
    Example((2, 4, 9, 60), 20, dict(strides=(1, 3), dilations=(3, 1), pads=(7, 4, 9, 2)), kernel=(4, 5)),
    Example((1, 2, 3, 30), 16, pads(9, 20, 9, 20), kernel=(5, 3)),
    Example((1, 1, 2, 90), 33, dict(strides=(2, 4)), kernel=(2, 8)),
]
ALL = [("winograd", e) for e in WINOGRAD] + [("direct", e) for e in DIRECT]


@in_one_item()
@pytest.mark.parametrize(("method", "e"), ALL, ids=str)
def test_results(every_isa, method, e):
    product = e.product()
    scale = np.abs(product).max()
    plain = last(product + e.bias.reshape(-1, *[1] * len(e.kernel)))
    for threads, packs in itertools.product((1, 2, 5), (False, True)):
        kernel = make(e, product.shape, method, bias=True, pack_weights=packs, threads=threads)
        assert kernel.implementation == f"{method}:{every_isa}"
        check(run(kernel, plain.shape, e.x, e.w, e.bias), plain, scale)


@in_one_item()
@pytest.mark.parametrize("e", DIRECT, ids=str)
def test_bits_do_not_depend_on_threads(isa, e):
    product = e.product()
    found = [
        run(make(e, product.shape, "direct", bias=True, threads=n), last(product).shape, e.x, e.w, e.bias)
        for n in (1, 2, 3, 7)
    ]
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)


@in_one_item()
@pytest.mark.parametrize("residual_last", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(
    ("method", "e"), [("winograd", WINOGRAD[1]), ("direct", DIRECT[3]), ("direct", DIRECT[11])], ids=str
)
def test_what_follows(isa, method, e, activation, residual_last):
    product = last(e.product())
    (alpha, beta), function = ACTIVATIONS[activation]
    residual = np.random.default_rng(1).standard_normal(product.shape, dtype=np.float32)
    epilogue = native.Epilogue(activation, alpha, beta, residual=True, residual_last=residual_last)
    y = np.moveaxis(product, -1, 1).shape
    kernel = make(e, y, method, bias=True, epilogue=epilogue, pack_weights=True, threads=2)
    expected = function(product + e.bias) + residual if residual_last else function(product + e.bias + residual)
    got = run(kernel, product.shape, e.x, e.w, e.bias, residual)
    check(got, expected, np.abs(product).max())
    assert kernel.inplace == [(3, 0)]
    packed = aligned_bytes(kernel.packed_bytes(1))
    kernel.pack(1, e.w, packed)
    kernel([last(e.x), packed, e.bias, residual], [residual])
    np.testing.assert_array_equal(residual, got)


def test_a_slope_below_zero(isa):
    e = WINOGRAD[2]
    product = e.product()
    kernel = make(e, product.shape, "winograd", epilogue=native.Epilogue("relu", 0.25))
    expected = last(np.where(product < 0, 0.25 * product, product))
    check(run(kernel, expected.shape, e.x, e.w, None), expected, np.abs(product).max())


@in_one_item()
@pytest.mark.parametrize("e", [e for e in WINOGRAD if min(e.attributes.get("pads", (0,))) <= 2], ids=str)
def test_gradient_in_x(isa, e):
    y = e.product().shape
    dy = np.random.default_rng(2).standard_normal(y, dtype=np.float32)
    expected = last(
        ConvGradInput(**e.attributes).reference(
            numpy_xp, dy.astype(np.float64), e.w.astype(np.float64), e.x.astype(np.float64)
        )
    )
    for packs in (False, True):
        kernel = native.TiledConvolution(
            y, e.w.shape, e.x.shape, e.window, native.TiledMethod.winograd, transposed=True, pack_weights=packs
        )
        check(run(kernel, expected.shape, dy, e.w), expected, np.abs(expected).max())


@in_one_item()
@pytest.mark.parametrize("method", ["winograd", "direct"])
def test_threads_do_not_change_bits(isa, method):
    e = Example((2, 40, 18, 22), 100, pads(1, 1, 1, 1))
    y = (2, 100, 18, 22)
    kernels = [make(e, y, method, threads=threads) for threads in (1, 2, 3, 7, 64)]
    results = [run(kernel, (2, 18, 22, 100), e.x, e.w, None) for kernel in kernels]
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


# --- numbers that are not finite, or far apart --------------------------------------------------------


def spoiled(seed: int, stride: int) -> Example:
    """An example with up to three numbers, in x or w, that are not finite or large."""
    rng = np.random.default_rng(seed)
    sizes = (1, int(rng.integers(16, 80)), 9, 11)
    attributes = dict(pads=tuple(int(p) for p in rng.integers(0, 3, 4)), strides=(stride, stride))
    e = Example(sizes, int(rng.integers(16, 50)), attributes, seed=seed)
    for _ in range(int(rng.integers(1, 4))):
        array = e.x if rng.random() < 0.6 else e.w
        place = tuple(int(rng.integers(0, size)) for size in array.shape)
        array[place] = rng.choice([np.nan, np.inf, -np.inf, 1e30, -1e30, 1e9, -9999.0, 1e-42])
    return e


@in_one_item("values")
@pytest.mark.parametrize("seed", seeds(40, default=8))
@pytest.mark.parametrize(("method", "stride"), [("winograd", 1), ("direct", 2)])
def test_not_finite_and_huge(isa, method, stride, seed):
    e = spoiled(seed, stride)
    expected = e.inside_sum()
    kernel = make(e, np.moveaxis(expected, -1, 1).shape, method, pack_weights=seed % 2 == 0, threads=2)
    got = run(kernel, expected.shape, e.x, e.w, None)
    for kind in (np.isnan, np.isposinf, np.isneginf):
        np.testing.assert_array_equal(kind(got), kind(expected))
    # The largest element that a result's window has, times the largest of its filter.
    finite_x = np.where(np.isfinite(e.x), np.abs(e.x), 0).max(axis=1)
    ones = Example((1, 1, 9, 11), 1, e.attributes)
    ones.x[0] = finite_x
    largest = np.zeros(expected.shape[:3])
    for i, j in itertools.product(range(3), range(3)):
        ones.w[:] = 0
        ones.w[0, 0, i, j] = 1
        largest = np.maximum(largest, last(ones.product())[..., 0])
    filters = np.where(np.isfinite(e.w), np.abs(e.w), 0).max(axis=(1, 2, 3))
    bound = 256 * 2e-6 * largest[..., None] * filters
    sound = np.isfinite(expected)
    assert (np.abs(got[sound] - expected[sound]) <= bound[sound]).all()


@in_one_item()
@pytest.mark.parametrize("huge", [np.nan, np.inf, -3.4e38, -9999.0])
def test_neighbours_of_an_element_do_not_see_it(isa, huge):
    e = Example((1, 32, 12, 12), 32, pads(1, 1, 1, 1))
    e.x[0, :, 5, 6] = huge
    got = run(make(e, (1, 32, 12, 12), "winograd"), (1, 12, 12, 32), e.x, e.w, None)
    e.x[0, :, 5, 6] = 0
    near = np.zeros((12, 12), bool)
    near[4:7, 5:8] = True
    np.testing.assert_allclose(got[0][~near], last(e.product())[0][~near], rtol=0, atol=2e-4)
    assert not (np.abs(got[0][near]) < 100).all()


@in_one_item()
@pytest.mark.parametrize("taps", [[(1, 1)], [(0, 1), (1, 0), (2, 1)], [(1, 1), (1, 2), (2, 0), (2, 1)]], ids=str)
def test_zero_taps_stay_zero(isa, taps):
    """Pruned filters: zero times infinity is NaN."""
    e = Example((1, 32, 12, 12), 32, pads(1, 1, 1, 1))
    for i, j in taps:
        e.w[:, :, i, j] = 0
    e.x[0, 3, 5, 6] = np.inf
    got = run(make(e, (1, 32, 12, 12), "winograd"), (1, 12, 12, 32), e.x, e.w, None)
    expected = e.inside_sum()
    for kind in (np.isnan, np.isposinf, np.isneginf):
        np.testing.assert_array_equal(kind(got), kind(expected))
    finite = np.isfinite(expected)
    check(got[finite], expected[finite], np.abs(expected[finite]).max())


def test_tiny_taps_meet_infinity(isa):
    e = Example((1, 32, 12, 12), 32, pads(1, 1, 1, 1))
    e.w[:, :, 1, 1] = 1e-9
    e.x[0, 3, 5, 6] = np.inf
    got = run(make(e, (1, 32, 12, 12), "winograd"), (1, 12, 12, 32), e.x, e.w, None)
    assert (got[0, 5, 6] == np.inf).all()


def test_sums_by_the_definition_are_short_too(isa):
    """Beside a sentinel; one chain of all products has an error of 1e-6."""
    e = Example((1, 512, 6, 6), 16, pads(1, 1, 1, 1))
    e.x[0, :, 2, 2] = -9999
    got = run(make(e, (1, 16, 6, 6), "winograd"), (1, 6, 6, 16), e.x, e.w, None)
    far = np.ones((6, 6), bool)
    far[1:4, 1:4] = False
    error = (got - last(e.product()))[0][far]
    assert np.sqrt((error**2).mean()) <= 4e-7 * np.sqrt((last(e.product())[0][far] ** 2).mean())


def test_packed_weights_belong_to_the_instruction_set_of_the_kernel(isa):
    e = WINOGRAD[0]
    kernel = make(e, (1, 16, 8, 8), "winograd", pack_weights=True)
    layout = kernel.packed_layout(1)
    native.use_isa("baseline")
    assert kernel.packed_layout(1) == layout
    assert isa in layout


@in_one_item()
@pytest.mark.parametrize("place", [(5, 6), (4, 4), (0, 0), (11, 3)])
def test_nan_among_zeros(isa, place):
    e = Example((1, 32, 12, 12), 32, pads(1, 1, 1, 1))
    e.x[:] = 0
    e.x[0, 7][place] = np.nan
    got = run(make(e, (1, 32, 12, 12), "winograd"), (1, 12, 12, 32), e.x, e.w, None)
    rows, columns = (np.abs(np.arange(12) - at) <= 1 for at in place)
    reached = rows[:, None] & columns
    assert np.isnan(got[0][reached]).all()
    assert (got[0][~reached] == 0).all()


def test_windows_of_zeros_give_zero(isa):
    e = Example((1, 32, 12, 12), 32, pads(1, 1, 1, 1))
    e.x[0, :, :, :6] = 0
    got = run(make(e, (1, 32, 12, 12), "winograd"), (1, 12, 12, 32), e.x, e.w, None)
    assert (got[0, :, :5] == 0).all()
    np.testing.assert_allclose(got, last(e.product()), rtol=0, atol=1e-4)


# --- errors of sums, and which method -----------------------------------------------------------------


def onnx_runtime(e: Example) -> np.ndarray:
    node = helper.make_node("Conv", ["x", "w"], ["y"], **e.attributes)
    graph = helper.make_graph(
        [node],
        "conv",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, e.x.shape)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [numpy_helper.from_array(e.w, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": e.x})[0])


@in_one_item("values")
@pytest.mark.parametrize(
    "e",
    [
        Example((1, 64, 28, 28), 64, pads(1, 1, 1, 1)),
        Example((1, 256, 14, 14), 256, pads(1, 1, 1, 1)),
        Example((1, 512, 7, 7), 512, pads(1, 1, 1, 1)),
        Example((1, 64, 28, 28), 128, dict(strides=(2, 2), pads=(1, 1, 1, 1))),
        Example((1, 256, 14, 14), 512, dict(strides=(2, 2), pads=(1, 1, 1, 1))),
        Example((1, 128, 17, 17), 128, dict(dilations=(4, 4), pads=(4, 4, 4, 4))),
    ],
    ids=str,
)
@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.skipif(BEST_ISA == "baseline", reason="without fused multiply-add, each product is rounded once more")
def test_errors_of_sums_are_like_those_of_onnx_runtime(e, positive):
    """Root mean squares, relative to the results: 0.9 to 1.2 times; one chain of all products has 2 to 5 times."""
    e = replace(e)
    if positive:
        e.x = np.maximum(e.x, 0)
    truth = e.product()
    method = native.TiledConvolution.method(e.x.shape, e.w.shape, truth.shape, e.window, constant=True)
    assert method is not None
    got = run(make(e, truth.shape, method.name, pack_weights=True), last(truth).shape, e.x, e.w, None)

    def error(y: np.ndarray) -> float:
        return float(np.sqrt(((y - truth) ** 2).mean() / (truth**2).mean()))

    assert error(np.moveaxis(got, -1, 1)) <= 1.2 * error(onnx_runtime(e))


def chosen(x: tuple[int, ...], filters: int, constant: bool = True, kernel: int = 3, **attributes: Any) -> str | None:
    e = Example(x, filters, {"pads": (kernel // 2,) * 4, **attributes}, kernel=(kernel, kernel))
    method = native.TiledConvolution.method(e.x.shape, e.w.shape, e.product().shape, e.window, constant=constant)
    return None if method is None else method.name


def test_which_method():
    assert chosen((1, 64, 28, 28), 64) == "winograd"
    assert chosen((1, 64, 28, 28), 64, dilations=(2, 2), pads=(2, 2, 2, 2)) == "winograd"
    assert chosen((1, 64, 28, 28), 64, strides=(2, 2)) == "direct"
    assert chosen((8, 64, 14, 14), 64, constant=False) == "winograd"
    # Transformations that weigh too much: of few channels, of a few results, of weights for a few.
    assert chosen((1, 3, 28, 28), 64) is None
    assert chosen((1, 16, 28, 28), 16) is None
    assert chosen((1, 64, 2, 2), 64) is None
    assert chosen((1, 64, 7, 7), 64, constant=False) is None
    # Weights that do not fit into a near cache, for a few results.
    assert chosen((1, 2000, 3, 3), 61) == "direct"
    assert chosen((1, 2000, 3, 3), 61, constant=False) is None
    assert chosen((1, 256, 3, 3), 128) is None
    assert chosen((1, 20000, 3, 3), 3) is None
    # Short sums, and other windows.
    assert chosen((1, 32, 28, 28), 64, strides=(2, 2)) is None
    assert chosen((1, 64, 12, 12), 64, kernel=5) is None


@pytest.mark.skipif(BEST_ISA == "baseline", reason="the choice depends on the number of lanes")
def test_sizes_that_vary_are_for_our_own_code():
    """The library would need a new kernel for each size."""

    def method(x: tuple[int, ...], filters: int, constant: bool = True, **attributes: Any) -> str | None:
        e = Example(x, filters, attributes, kernel=(3,) * (len(x) - 2))
        args = (e.x.shape, e.w.shape, e.product().shape, e.window)
        assert native.TiledConvolution.method(*args, constant=constant) is None
        found = native.TiledConvolution.method(*args, constant=constant, vary=True)
        return None if found is None else found.name

    assert method((1, 3, 28, 28), 64) == "direct"
    assert method((1, 24, 10, 10), 16, strides=(2, 2)) == "direct"
    assert method((1, 16, 50), 32) == "direct"
    assert method((1, 16, 50), 32, constant=False) == "direct"
    # Filters that would leave half of the lanes empty; weights that take long to be ordered, for a few results.
    assert method((1, 3, 28, 28), 9) is None
    assert method((1, 256, 3, 3), 512, constant=False) is None


def implementations(run: Any) -> set[tuple[str, str]]:
    """Return (operator, implementation without instruction set) of the convolutions of a run and their gradients."""
    with gk.profile() as profile:
        run()
    steps = [e for e in profile.trace()["traceEvents"] if "Conv" in e["name"] and "args" in e]
    return {(e["name"].rpartition(".")[2], e["args"]["implementation"].partition(":")[0]) for e in steps}


def test_networks_use_it():
    """In inference, and in training for layers and their gradients."""
    x = gk.input("x", [4, 64, 16, 16])
    hidden = x
    for layer in "ab":
        hidden = gk.relu(gk.nn.conv2d(hidden, 64, 3, pad=1, name=layer))
    net = gk.Model({"y": gk.nn.conv2d(hidden, 64, 3, pad=1, stride=2, name="strided")})
    feeds = {"x": np.ones((4, 64, 16, 16), np.float32)}
    exe = net.compile(threads=1)
    found = implementations(lambda: exe.run(feeds))
    assert found == {("ChannelsLastConv", "winograd"), ("ChannelsLastConv", "direct")}
    trainer = gk.Trainer(net, "mse", gk.optim.SGD(0.1), threads=1)
    found = implementations(lambda: trainer.step(feeds, np.zeros((4, 64, 8, 8), np.float32)))
    assert {("ChannelsLastConv", "winograd"), ("ChannelsLastConvGradInput", "winograd")} <= found


def test_what_is_refused():
    e = WINOGRAD[0]
    y = (1, 16, 8, 8)
    with pytest.raises(native.Unsupported, match="not by the method winograd"):
        native.TiledConvolution(
            y, e.w.shape, (1, 16, 4, 4), native.Window((2, 2), (1, 1), (1, 1), (1, 1)), native.TiledMethod.winograd
        )
    with pytest.raises(native.Error, match="spatial dimension 1 does not fit"):
        make(e, (1, 16, 8, 9), "direct")
    with pytest.raises(native.Error, match="batch or channels"):
        make(e, (1, 17, 8, 8), "winograd")
    for window in (native.Window((1,), (1,), (0,), (0,)), native.Window((1, 1), (0, 1), (1, 1), (1, 1))):
        with pytest.raises(native.Unsupported):
            native.TiledConvolution(y, e.w.shape, y, window, native.TiledMethod.winograd)
    with pytest.raises(native.Unsupported):
        native.TiledConvolution(
            y, e.w.shape, y, e.window, native.TiledMethod.winograd, transposed=True, epilogue=native.Epilogue("relu")
        )
