"""Operators on images and arrays: gradients in ONNX Runtime, edges and ties, older targets, identities among them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from cases import each_case
from combinations import in_one_item

from graphkit.autodiff import gradient
from graphkit.checks.samples import Case, dtypes_of, make_case, samples_of
from graphkit.checks.verify import compare
from graphkit.errors import RuntimeFailure, TypeMismatch, UnsupportedError
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import DType, TensorType
from graphkit.onnx_io.compare import OnnxRuntimeModel
from graphkit.onnx_io.exporter import export
from graphkit.onnx_io.importer import import_model
from graphkit.ops import F, registry
from graphkit.ops.evaluate import evaluate

OPERATORS = (
    "AffineGrid", "CenterCropPad", "Col2Im", "DeformConv", "GridSample", "LpNormalization", "MaxRoiPool", "MaxUnpool",
    "RoiAlign", "TensorScatter", "Unique",
)  # fmt: skip


def differentiable(name: str) -> list[Case]:
    cls = registry.get("", name)
    cases = [
        make_case(cls, number, DType.FLOAT32)
        for number, sample in enumerate(samples_of(cls))
        if DType.FLOAT32 in dtypes_of(cls, sample)
    ]
    return [case for case in cases if floats(case) and all(a.size for a in case.feeds()) and in_runtime(case)]


def in_runtime(case: Case) -> bool:
    """ONNX Runtime samples images and volumes, not signals."""
    signal = case.arrays[0]
    return case.op.name not in ("GridSample", "DeformConv") or (signal is not None and signal.ndim > 3)


def floats(case: Case) -> list[Value]:
    return [v for v in case.graph().inputs if v.dtype is DType.FLOAT32]


def gradients_of(case: Case, *, symbolic: bool = False) -> Graph:
    graph = case.graph(symbolic=symbolic)
    wrt = [v for v in graph.inputs if v.dtype is DType.FLOAT32]
    outputs = [v for v in graph.outputs if v.dtype is DType.FLOAT32]
    return Graph(graph.inputs, gradient(outputs, wrt, allow_unused=True))


def same_in_runtime(graph: Graph, feeds: list[Any], opset: int = 21) -> None:
    theirs = OnnxRuntimeModel(export(graph, {}, opset=opset), threads=1).run(
        dict(zip(graph.input_names, feeds, strict=True))
    )
    for ours, expected in zip(evaluate(graph, feeds), theirs.values(), strict=True):
        report = compare("gradient", ours, expected, 1e-4, 1e-5)
        assert report.passed, str(report)


@each_case(
    itertools.product([c for n in OPERATORS for c in differentiable(n)], [False, True]),
    group=lambda pair: pair[0].op.name,
    name=lambda pair: f"{pair[0].name}-{'symbolic' if pair[1] else 'static'}",
    full=lambda pair: pair[0].number > 1 and pair[0].number % 4 != 2 * pair[1],
)
def test_gradients_in_onnx_runtime(pair: tuple[Case, bool]) -> None:
    case, symbolic = pair
    same_in_runtime(gradients_of(case, symbolic=symbolic), case.feeds())


@pytest.mark.parametrize("opset", [13, *(pytest.param(opset, marks=pytest.mark.full) for opset in (16, 18, 20))])
@pytest.mark.parametrize(
    "name", ["AffineGrid", "DeformConv", "GridSample", "LpNormalization", "MaxUnpool", "RoiAlign", "TensorScatter"]
)
def test_older_targets(name: str, opset: int) -> None:
    """Exports to an older opset have the same results in ONNX Runtime, and after reading them again."""
    for case in differentiable(name):
        graph = case.graph()
        # ONNX Runtime counts indices in output_shape, against the test of the standard's own suite.
        if case.sample.onnx and not (name == "MaxUnpool" and case.arrays[2:]):
            same_in_runtime(graph, case.feeds(), opset)
        imported = import_model(export(graph, {}, opset=opset).SerializeToString())
        by_name = dict(zip(graph.input_names, case.feeds(), strict=True)) | imported.params
        feeds = [by_name[imported.graph.name_of(v)] for v in imported.graph.inputs]
        for ours, expected in zip(evaluate(imported.graph, feeds), evaluate(graph, case.feeds()), strict=True):
            report = compare(case.name, ours, expected, 1e-4, 1e-5)
            assert report.passed, str(report)


def value(array: Any, name: str = "x") -> Value:
    array = np.asarray(array)
    return Value(TensorType(str(array.dtype), array.shape), name)


def run(function: Any, *arrays: Any, differentiate: bool = False) -> np.ndarray:
    """The first result of `function` of values, or the gradient of its sum by the first of them."""
    operands = [value(a, f"x{i}") for i, a in enumerate(arrays)]
    result = function(*operands)
    result = result[0] if isinstance(result, tuple) else result
    outputs = gradient([result], operands[:1], allow_unused=True) if differentiate else [result]
    return evaluate(Graph(operands, outputs), [np.asarray(a) for a in arrays])[0]


@in_one_item()
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_grid_far_outside_is_finite(mode: str, padding: str) -> None:
    x = np.arange(12.0).reshape(1, 1, 3, 4)
    grid = np.array([1e30, -1e30, 3e9, -3e9, 1.0, -1.0, 0.5, 0.0]).reshape(1, 1, 4, 2)

    def sampled(points: Value, image: Value) -> Any:
        return F.grid_sample(image, points, mode=mode, padding_mode=padding)

    result = run(sampled, grid, x)
    assert np.isfinite(result).all()
    assert np.abs(result).max() <= 2 * x.max()
    if padding == "zeros":
        np.testing.assert_array_equal(result[..., :2], 0)
    assert np.isfinite(run(sampled, grid, x, differentiate=True)).all()


@in_one_item()
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("expanded", [False, True], ids=["reference", "expansion"])
def test_grid_of_nan_reads_no_other_point(padding: str, expanded: bool) -> None:
    x, grid = np.arange(12.0).reshape(1, 1, 3, 4), np.array([np.nan, np.nan, 0.1, 0.2]).reshape(1, 1, 2, 2)

    def sampled(image: Value, points: Value) -> Any:
        result = F.grid_sample(image, points, padding_mode=padding)
        return result.node.op.expand(image, points) if expanded else result

    found = run(sampled, x, grid)
    assert found[0, 0, 0, 0] == 0 if padding == "zeros" else np.isnan(found[0, 0, 0, 0])
    np.testing.assert_array_equal(found[..., 1], run(sampled, x, grid[:, :, 1:])[..., 0])


@in_one_item()
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_grid_of_one_element_reflects_it(mode: str) -> None:
    grid = np.linspace(-3, 3, 8).reshape(1, 2, 2, 2)

    def sampled(points: Value, image: Value) -> Any:
        return F.grid_sample(image, points, mode=mode, padding_mode="reflection", align_corners=True)

    np.testing.assert_allclose(run(sampled, grid, np.full((1, 1, 1, 1), 7.0)), 7.0)


def test_identity_grid_returns_the_image() -> None:
    x = np.arange(24.0).reshape(2, 1, 3, 4)
    theta = np.array([np.eye(2, 3)] * 2)

    def sampled(image: Value, matrices: Value) -> Any:
        return F.grid_sample(image, F.affine_grid(matrices, F.shape(image)))

    np.testing.assert_allclose(run(sampled, x, theta), x, atol=1e-12)


@pytest.mark.parametrize("p", [1, 2])
def test_norm_of_zeros_has_a_finite_gradient(p: int) -> None:
    x = np.array([[0.0, 0.0], [3.0, -4.0]])
    found = run(lambda v: F.lp_normalization(v, p=p), x, differentiate=True)
    assert np.isfinite(found).all()


def test_max_roi_pool_shares_the_gradient_of_ties() -> None:
    rois = np.array([[0.0, 0.0, 0.0, 1.0, 1.0]])
    found = run(lambda x, r: F.max_roi_pool(x, r, pooled_shape=(1, 1)), np.ones((1, 1, 3, 3)), rois, differentiate=True)
    np.testing.assert_allclose(found[0, 0], [[0.25, 0.25, 0], [0.25, 0.25, 0], [0, 0, 0]])


def test_roi_without_samples_is_zero() -> None:
    rois = np.array([[2.0, 2.0, 1.0, 1.0]])
    for mode in ("avg", "max"):
        for differentiate in (False, True):

            def pooled(x: Value, regions: Value, mode: str = mode) -> Any:
                return F.roi_align(x, regions, np.array([0]), mode=mode, output_height=2, output_width=2)

            np.testing.assert_array_equal(run(pooled, np.ones((1, 1, 4, 4)), rois, differentiate=differentiate), 0)


def test_roi_of_an_image_that_is_not_there() -> None:
    rois = np.array([[0.0, 0.0, 1.0, 1.0]])
    with pytest.raises(TypeMismatch, match="batch_indices must be from 0 to 0"):
        run(lambda x, r: F.roi_align(x, r, np.array([1])), np.ones((1, 1, 4, 4)), rois)


def test_unpooling_undoes_pooling() -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 6, 4))

    def twice(v: Value) -> Any:
        kept, indices = F.max_pool(v, kernel_shape=(2, 2), strides=(2, 2))
        back = F.max_unpool(kept, indices, kernel_shape=(2, 2), strides=(2, 2))
        return F.max_pool(back, kernel_shape=(2, 2), strides=(2, 2))[0]

    pooled = run(lambda v: F.max_pool(v, kernel_shape=(2, 2), strides=(2, 2)), x)
    np.testing.assert_array_equal(run(twice, x), np.maximum(pooled, 0))


def test_index_outside_the_unpooled_tensor() -> None:
    with pytest.raises((RuntimeFailure, TypeMismatch), match="outside"):
        run(lambda x, i: F.max_unpool(x, i, kernel_shape=(2,)), np.ones((1, 1, 2)), np.array([[[0, 3]]]))


def test_convolution_is_a_product_of_columns() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 3, 6, 5)), rng.standard_normal((4, 3, 3, 2))
    attrs: dict[str, Any] = {"pads": (1, 0, 1, 1), "strides": (2, 1), "dilations": (1, 2)}

    def product(v: Value, weights: Value) -> Any:
        return F.mat_mul(F.reshape(weights, np.array([4, -1])), F.im2_col(v, np.array([3, 2]), **attrs))

    expected = run(lambda v, weights: F.conv(v, weights, **attrs), x, w)
    np.testing.assert_allclose(run(product, x, w).reshape(expected.shape), expected, atol=1e-12)


def test_deformed_by_nothing_is_a_convolution() -> None:
    rng = np.random.default_rng(0)
    x, w, bias = rng.standard_normal((2, 4, 6, 5)), rng.standard_normal((6, 2, 3, 2)), rng.standard_normal(6)
    attrs: dict[str, Any] = {"pads": (1, 0, 1, 1), "strides": (2, 1), "group": 2}
    expected = run(lambda v, weights, b: F.conv(v, weights, b, **attrs), x, w, bias)
    offset = np.zeros((2, 2 * 12, *expected.shape[2:]))

    def deformed(*operands: Value) -> Any:
        v, weights, b, offsets = operands
        return F.deform_conv(v, weights, offsets, b, offset_group=2, **attrs)

    np.testing.assert_allclose(run(deformed, x, w, bias, offset), expected, atol=1e-12)


@pytest.mark.parametrize("order", [True, False])
def test_gradient_of_repeated_elements_goes_to_the_first(order: bool) -> None:
    x = np.array([2.0, 1.0, 2.0, 3.0, 1.0])
    found = run(lambda v: F.unique(v, sorted=order), x, differentiate=True)
    np.testing.assert_array_equal(found, [1, 1, 0, 1, 0])


def test_update_beyond_the_cache() -> None:
    cache, update, start = np.zeros((1, 4, 2)), np.ones((1, 2, 2)), np.array([3])
    with pytest.raises(TypeMismatch, match="beyond"):
        run(lambda c, u, s: F.tensor_scatter(c, u, s), cache, update, start)
    wrapped = run(lambda c, u, s: F.tensor_scatter(c, u, s, mode="circular"), cache, update, start)
    np.testing.assert_array_equal(wrapped[0, :, 0], [1, 0, 0, 1])


def test_bits_of_halves_are_kept() -> None:
    halves = np.array([1.5, -0.0, np.inf], np.float16)
    np.testing.assert_array_equal(run(lambda v: F.bit_cast(v, to="uint16"), halves), halves.view(np.uint16))


def test_bits_of_another_size() -> None:
    with pytest.raises(TypeMismatch, match="same size"):
        F.bit_cast(value(np.zeros(2, np.float32)), to="int16")


def test_bit_cast_has_no_older_form() -> None:
    x = value(np.zeros(2, np.float32))
    with pytest.raises(UnsupportedError, match="BitCast"):
        export(Graph([x], [F.bit_cast(x, to="int32")]), {}, opset=21)
