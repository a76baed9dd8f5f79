"""Weighted sums along axes: rows of any length and of very different numbers of weights, against the reference."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from combinations import in_one_item
from kernel_runs import FLOATS, INTEGERS, run_native, value_of

from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.registry import make_kernel
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import TensorType, dtype_of
from graphkit.ops import F, as_value
from graphkit.ops.evaluate import run_node

TOLERANCE = {"float32": 1e-5, "float64": 1e-12, "float16": 1e-2, "bfloat16": 8e-2}
DTYPES = pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
# Behind the axis: single elements, short rows, long rows.
INNER = pytest.mark.parametrize("inner", [(), (3,), (40,)], ids=str)


def compared(node: Node, *arrays: Any, threads: int = 1) -> np.ndarray:
    """The native result, when it is the reference's."""
    kernel = make_kernel("cpu", node, KernelContext(threads=threads, used_outputs=(True,)))
    assert kernel is not None
    got = np.ones(node.output.tensor.static_shape, node.output.dtype.numpy)
    kernel(list(arrays), [got])
    (expected,) = run_node(node, list(arrays))
    tolerance = TOLERANCE[node.output.dtype.value]
    np.testing.assert_allclose(
        got.astype(np.float64), np.asarray(expected).astype(np.float64), rtol=tolerance, atol=tolerance
    )
    return got


def resized_gradient(
    x: tuple[int, ...], axis: int, length: int, dtype: str, dy: np.ndarray | None = None, **attrs: Any
) -> tuple[Node, list[Any]]:
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    shape = (*x[:axis], length, *x[axis + 1 :])
    if dy is None:
        dy = np.random.default_rng(0).standard_normal(shape)
    arrays = [dy.astype(kind), np.zeros(x, kind)]
    roi = attrs.pop("roi", None)
    settings = [None if roi is None else np.array(roi, np.float32), None, np.array([length], np.int64)]
    operands = [Value(TensorType(dtype_of(a.dtype), a.shape)) for a in arrays]
    made = F.resize_grad(*operands, *(None if s is None else as_value(s) for s in settings), axes=(axis,), **attrs)
    return made.node, [*arrays, *settings]


@DTYPES
@INNER
@in_one_item()
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_gradients_of_resizing(mode: str, inner: tuple[int, ...], dtype: str) -> None:
    for size, length in ((7, 300), (300, 7), (50, 61), (1, 200), (200, 1)):
        for antialias in {mode != "nearest", False}:
            node, arrays = resized_gradient((2, size, *inner), 1, length, dtype, mode=mode, antialias=antialias)
            compared(node, *arrays)


@in_one_item()
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@INNER
def test_all_of_the_result_from_one_place(inner: tuple[int, ...], dtype: str, isa: str) -> None:
    """All elements of the result read the same element."""
    crop = {"coordinate_transformation_mode": "tf_crop_and_resize", "mode": "linear"}
    for place in (0.0, 0.5, 1.0):
        node, arrays = resized_gradient((2, 41, *inner), 1, 300, dtype, roi=[place, place], **crop)
        compared(node, *arrays)


@DTYPES
@INNER
@in_one_item("values")
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("mode", ["edge", "reflect", "wrap"])
def test_gradients_of_padding(mode: str, threads: int, inner: tuple[int, ...], dtype: str) -> None:
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    for size, before, after in ((30, 0, 500), (30, 7, 3), (30, -5, 40), (30, 200, -8), (1, 90, 0), (100, -30, -60)):
        x = np.zeros((2, size, *inner), kind)
        pads = np.array([before, after], np.int64)
        shape = (2, size + before + after, *inner)
        dy = np.random.default_rng(size).standard_normal(shape).astype(kind)
        operands = [Value(TensorType(dtype_of(a.dtype), a.shape)) for a in (dy, x)]
        made = F.pad_grad(*operands, as_value(pads), as_value(np.array([1], np.int64)), mode=mode)
        compared(made.node, dy, x, pads, np.array([1], np.int64), threads=threads)


@INNER
def test_what_has_no_weight_stays_out(inner: tuple[int, ...], isa: str) -> None:
    """An element that nothing was copied from has the gradient 0, whatever the others have."""
    dy = np.full((1, 10, *inner), np.nan)
    node, arrays = resized_gradient((1, 40, *inner), 1, 10, "float32", dy, mode="nearest")
    got = compared(node, *arrays)
    assert np.isnan(got).sum() == dy.size
    assert (got[~np.isnan(got)] == 0).all()


def test_a_nan_reaches_only_what_is_interpolated_from_it() -> None:
    x = np.zeros((1, 8), np.float32)
    x[0, 2] = np.nan
    node = F.resize(Value(TensorType("float32", x.shape)), None, None, as_value(np.array([1, 16])), mode="linear").node
    (y,) = run_node(node, [x, None, None, np.array([1, 16])])
    assert np.flatnonzero(np.isnan(y[0])).tolist() == [3, 4, 5, 6]


def resized(x, sizes, threads, **attrs):
    node = F.resize(value_of(x), None, None, as_value(np.array(sizes)), **attrs).node
    return run_native(node, [x], threads)[0], run_node(node, [x, None, None, np.array(sizes)])[0]


@in_one_item("pairs")
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"])
@pytest.mark.parametrize(
    ("shape", "sizes"),
    [
        ((2, 3, 33, 47), (2, 3, 70, 95)),
        ((1, 40, 50, 3), (1, 71, 23, 3)),
        ((5, 7), (3, 90)),
        ((1, 2, 9, 9, 9), (1, 2, 20, 5, 9)),
    ],
)
def test_resizing(mode, coordinates, shape, sizes, every_isa):
    x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    for threads in (1, 3):
        got, expected = resized(x, sizes, threads, mode=mode, coordinate_transformation_mode=coordinates)
        if mode == "nearest":
            np.testing.assert_array_equal(got, expected)
        else:
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@in_one_item()
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_resizing_every_number_type(mode, dtype):
    x = np.random.default_rng(3).integers(0, 100, (2, 3, 17, 19)).astype(dtype)
    got, expected = resized(x, (2, 3, 31, 9), 3, mode=mode)
    assert got.dtype == dtype
    if dtype.kind in "iu":  # a sum on the border of two integers may fall to either side
        assert np.abs(got.astype(np.float64) - expected.astype(np.float64)).max() <= 1
        assert (got != expected).mean() < 0.02
    else:
        tolerance = {2: 1e-2, 4: 1e-5, 8: 1e-13}[dtype.itemsize]
        np.testing.assert_allclose(got.astype(np.float64), expected.astype(np.float64), rtol=tolerance, atol=tolerance)


@in_one_item()
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_cubic_resizing_keeps_constant_integers(dtype):
    """The weights of a position may sum to slightly less than 1."""
    x = np.full((1, 2, 7, 13), 101, dtype)
    for coordinates in ("half_pixel", "asymmetric", "align_corners"):
        got, expected = resized(x, (1, 2, 31, 29), 1, mode="cubic", coordinate_transformation_mode=coordinates)
        assert (got == 101).all()
        assert (expected == 101).all()
