"""Running totals and linear recurrences against the operators' references."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from combinations import in_one_item
from kernel_runs import run_native, value_of

import graphkit as gk
from graphkit.executor.devices.cpu import native
from graphkit.ops import F
from graphkit.ops.evaluate import run_node
from graphkit.ops.math.cumulative import CumProd, CumSum, LinearRecurrence
from graphkit.ops.xp import numpy_xp

pytestmark = pytest.mark.usefixtures("isa")


@in_one_item()
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "uint64"])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("shape", "axis"), [((7,), 0), ((9, 5), 1), ((3, 4, 130), 1), ((2, 6, 3), 0), ((4, 0), 1)])
def test_running_totals(shape, axis, reverse, exclusive, dtype):
    x = np.random.default_rng(1).integers(1, 3, shape).astype(dtype)
    for op, product in ((CumSum, False), (CumProd, True)):
        y = np.full(shape, 77, dtype)
        native.Cumulative(shape, axis, product, exclusive, reverse, dtype, 2)([x], [y])
        expected = op(exclusive=exclusive, reverse=reverse).reference(numpy_xp, x, np.array(axis))
        np.testing.assert_array_equal(y, expected)


@in_one_item()
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "uint16"])
def test_types_without_running_totals(dtype):
    with pytest.raises(
        native.Unsupported, match=r"CumSum.*: this element type has no native cumulative sum or product"
    ):
        native.Cumulative((3,), 0, False, False, False, dtype, 1)


@in_one_item()
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("shape", "axis"), [((7,), 0), ((9, 5), 1), ((3, 4, 130), 1), ((2, 6, 3), 0), ((4, 0), 1)])
def test_linear_recurrence(shape, axis, reverse, dtype):
    a, b = np.random.default_rng(2).uniform(-1, 1, (2, *shape)).astype(dtype)
    expected = LinearRecurrence(axis=axis, reverse=reverse).reference(numpy_xp, a, b)
    kernel = native.LinearRecurrence(shape, axis, reverse, dtype, 2)
    for target in (np.empty_like(b), b, a):  # apart, and in place of either operand
        given = [a.copy() if target is b else a, b.copy() if target is a else b]
        given = [target if v is target else v for v in given]
        kernel(given, [target])
        np.testing.assert_allclose(target, expected, rtol=1e-5, atol=1e-6)
        a, b = np.random.default_rng(2).uniform(-1, 1, (2, *shape)).astype(dtype)


@in_one_item()
@pytest.mark.parametrize("attrs", [{}, {"exclusive": True}, {"reverse": True}, {"exclusive": True, "reverse": True}])
@pytest.mark.parametrize(
    ("shape", "axis"), [((3000,), 0), ((9, 501), 1), ((9, 501), 0), ((3, 4999), 0), ((3, 40, 130), 1), ((4, 0), 1)]
)
def test_running_sums(shape, axis, attrs):
    for dtype in (np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int32, np.int64, np.uint32, np.uint64):
        x = np.random.default_rng(1).integers(-9, 9, shape).astype(np.dtype(dtype))
        node = F.cum_sum(value_of(x), np.int64(axis), **attrs).node
        (expected,) = run_node(node, [x, np.int64(axis)])
        for threads in (1, 3):
            assert run_native(node, [x], threads)[0].tobytes() == expected.tobytes()


@in_one_item("pairs")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("columns", [2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 1023, 1025, 1301])
@pytest.mark.parametrize("reverse", [False, True])
def test_columns_have_the_bits_of_numpy(columns: int, dtype: str, reverse: bool) -> None:
    rng = np.random.default_rng(columns)
    x = rng.standard_normal((2, 9, columns)).astype(dtype)
    x[0, 3, 0], x[1, 4, columns - 1] = np.nan, np.inf
    given = x[:, ::-1] if reverse else x
    kinds = {F.cum_sum: np.cumsum, F.cum_prod: np.cumprod}
    for ours, theirs in kinds.items():
        expected = theirs(given, axis=1, dtype=dtype)
        y = ours(gk.input("x", list(x.shape), dtype=dtype), np.array(1), reverse=reverse)
        for threads in (1, 2, 3):
            found = gk.Model({"y": y}).compile(threads=threads).run({"x": x})["y"]
            np.testing.assert_array_equal(found, expected[:, ::-1] if reverse else expected)
