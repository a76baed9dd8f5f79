"""Native reductions on random shapes, large arrays, NaN and infinities."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from combinations import in_one_item

from graphkit.executor.devices.cpu import native
from graphkit.ops import registry
from graphkit.ops.xp import numpy_xp

FLOATS = {"float32": 1e-5, "float64": 1e-12, "float16": 2e-3, "bfloat16": 1e-2}
NUMPY = {"bfloat16": np.dtype(ml_dtypes.bfloat16)}


def dtype_of(name: str) -> np.dtype:
    return NUMPY.get(name) or np.dtype(name)


def draw(rng, shape, name):
    if name in FLOATS:
        return np.asarray(rng.uniform(0.5, 1.5, shape) * rng.choice([-1, 1], shape)).astype(dtype_of(name))
    if name == "bool":
        return np.asarray(rng.random(shape) < 0.5)
    low, high = (0, 9) if name.startswith("u") else (-9, 9)
    return np.asarray(rng.integers(low, high, shape)).astype(name)


def reduced(function, x, axes, threads=1, keepdims=False):
    shape = [1 if i in axes else n for i, n in enumerate(x.shape) if keepdims or i not in axes]
    y = np.full(shape, 77).astype(x.dtype)
    native.Reduce(function, x.shape, axes, shape, x.dtype.name, threads)([x], [y])
    return y


def expected(function, x, axes):
    """Return the result of the operator's reference, in float64 for floats."""
    wide = x.astype(np.float64) if x.dtype.name in FLOATS else x
    op = registry.get("", f"Reduce{function}")(keepdims=False, noop_with_empty_axes=True)
    with np.errstate(all="ignore"):
        return np.asarray(op.reference(numpy_xp, wide, np.array(axes, np.int64)))


def check(got, wanted, name):
    if name in FLOATS:
        got, scale = got.astype(np.float64), FLOATS[name]
        np.testing.assert_allclose(got, wanted, rtol=scale, atol=scale * max(1.0, float(np.abs(wanted).max(initial=0))))
    else:
        np.testing.assert_array_equal(got, wanted.astype(got.dtype))


ALL = ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare")
INTEGERS = ("int32", "int64", "uint32", "uint64")
COVERED = [(f, t) for f in (*ALL, "LogSum", "LogSumExp") for t in FLOATS]
COVERED += [(f, t) for f in ALL for t in INTEGERS]
COVERED += [(f, t) for f in ("Max", "Min") for t in ("int8", "uint8", "bool")]


@in_one_item()
@pytest.mark.parametrize(("function", "name"), COVERED)
def test_random_shapes_and_axes(function, name, isa):
    rng = np.random.default_rng([*function.encode(), *name.encode()])
    for _ in range(12):
        rank = int(rng.integers(0, 6))
        shape = tuple(int(n) for n in rng.choice([1, 2, 3, 5, 17, 40], rank))
        while np.prod(shape) > 40000:
            shape = shape[1:]
        axes = tuple(i for i in range(len(shape)) if rng.random() < 0.5)
        if name in FLOATS and function == "Prod" and np.prod([shape[i] for i in axes]) > 100:
            continue  # over- or underflows
        x = draw(rng, shape, name)
        x = np.asarray(np.abs(x)) if function == "LogSum" else x
        got = reduced(function, x, axes)
        check(got, expected(function, x, axes), name)
        assert got.tobytes() == reduced(function, x, axes, threads=3).tobytes()


LARGE = [((300000,), (0,)), ((3, 100000), (1,)), ((100000, 3), (0,)), ((4000, 100), (0,)), ((50, 20, 700), (0, 2))]


@in_one_item("pairs")
@pytest.mark.parametrize(("shape", "axes"), [*LARGE, ((40, 3, 50, 60), (0, 2, 3)), ((7, 2000, 30), (1,))], ids=str)
@pytest.mark.parametrize("function", ["Sum", "Mean", "Max", "L2", "LogSumExp"])
@pytest.mark.parametrize("name", ["float32", "bfloat16", "int32"])
def test_large_arrays_are_accurate_and_do_not_depend_on_threads(shape, axes, function, name, isa):
    if name == "int32" and function == "LogSumExp":
        pytest.skip("floats only")
    x = draw(np.random.default_rng(0), shape, name)
    got = reduced(function, x, axes)
    check(got, expected(function, x, axes), name)
    for threads in (2, 3, 4):
        assert got.tobytes() == reduced(function, x, axes, threads).tobytes()


def test_sums_are_pairwise(isa):
    # Added one after the other these lose a percent.
    x = np.full(1 << 24, 0.1, np.float32)
    np.testing.assert_allclose(reduced("Sum", x, (0,)), np.float32(0.1) * 2.0**24, rtol=1e-6)
    columns = np.full((1 << 20, 4), 0.1, np.float32)
    np.testing.assert_allclose(reduced("Sum", columns, (0,)), [np.float32(0.1) * 2.0**20] * 4, rtol=1e-6)


@in_one_item()
@pytest.mark.parametrize(("shape", "axis"), [((5, 37), 1), ((37, 5), 0), ((3, 1000), 1), ((1000, 33), 0)])
@pytest.mark.parametrize("name", ["float32", "float64", "float16", "bfloat16"])
def test_nan_and_infinity_spread(shape, axis, name, isa):
    x = np.ones(shape, dtype_of(name))
    lines = x if axis == 1 else x.T
    lines[0, -1], lines[1, 0], lines[2, 2], lines[2, 1] = np.nan, np.inf, np.inf, -np.inf
    for function in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSumExp"):
        got, wanted = reduced(function, x, (axis,)), expected(function, x, (axis,))
        np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted), err_msg=function)
        np.testing.assert_array_equal(got[:3].astype(float), wanted[:3], err_msg=function)


@in_one_item()
@pytest.mark.parametrize("name", ["float32", "bfloat16", "int32", "bool"])
def test_over_no_elements(name, isa):
    for function in ("Max", "Min") if name == "bool" else ("Sum", "Mean", "Max", "Min", "Prod", "L2"):
        for shape, axes in (((0, 3), (0,)), ((2, 0, 3), (1,)), ((0, 3), (1,)), ((0,), (0,))):
            x = np.zeros(shape, dtype_of(name))
            got, wanted = reduced(function, x, axes), expected(function, x, axes)
            np.testing.assert_array_equal(got.astype(np.float64), wanted.astype(x.dtype).astype(np.float64))


def test_reductions_that_do_not_fit():
    with pytest.raises(native.Error, match="out of range"):
        native.Reduce("Sum", [2, 3], [2], [2], "float32")
    with pytest.raises(native.Error, match="cannot have the shape"):
        native.Reduce("Sum", [2, 3], [1], [3], "float32")
    with pytest.raises(native.Error, match="is not a known reduction"):
        native.Reduce("Median", [2, 3], [1], [2], "float32")
    with pytest.raises(native.Unsupported, match="no native kernel"):
        native.Reduce("LogSumExp", [2, 3], [1], [2], "int32")


@pytest.mark.parametrize("name", ["int8", "uint8", "int32", "uint64"])
def test_extremes_of_integers(name, every_isa):
    """Rows shorter and longer than vectors, columns, and slabs; with the smallest and largest integer."""
    rng, info = np.random.default_rng(5), np.iinfo(name)
    cases = [((37, size), [1]) for size in (1, 2, 7, 9, 15, 16, 17, 63, 64, 65, 300)]
    cases += [((rows, 70), [0]) for rows in (1, 2, 5, 40)]
    for shape, axes in [*cases, ((5, 11, 33), [0, 2]), ((3, 4, 5, 6), [0, 2])]:
        x = rng.integers(info.min, info.max, shape, name, endpoint=True)
        for function, wanted in (("Max", x.max(tuple(axes))), ("Min", x.min(tuple(axes)))):
            np.testing.assert_array_equal(reduced(function, x, axes), wanted, err_msg=f"{shape}")


@pytest.mark.parametrize("name", ["float32", "float64"])
@pytest.mark.parametrize("function", ["Sum", "Max", "L2"])
def test_short_rows_have_the_same_bits_in_any_batch(function, name, every_isa):
    for size in (9, 16, 31, 49, 100, 130):
        x = -1 - np.abs(np.random.default_rng(6).standard_normal((53, size))).astype(name)
        x[7, size // 2], x[40, 0] = np.nan, np.inf
        alone = np.concatenate([reduced(function, row[None], [1]) for row in x])
        np.testing.assert_array_equal(reduced(function, x, [1]), alone, err_msg=str(size))
        if function == "Max":
            np.testing.assert_array_equal(reduced("Min", -x, [1]), -alone, err_msg=str(size))
        np.testing.assert_allclose(alone, expected(function, x, [1]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("shape", "axes"), [((5, 9, 20), (0, 2)), ((40, 3, 301), (0, 2)), ((2100, 2, 9), (0, 2))])
def test_sums_over_slabs_do_not_depend_on_threads(shape, axes):
    x = draw(np.random.default_rng(7), shape, "float32")
    total = reduced("Sum", x, axes)
    np.testing.assert_allclose(total, x.astype(np.float64).sum(axes), rtol=1e-5, atol=1e-3)
    for threads in (2, 3):
        np.testing.assert_array_equal(reduced("Sum", x, axes, threads), total)


@pytest.mark.parametrize("name", ["int32", "int64", "uint64"])
def test_means_of_integers_are_exact(name):
    """Small and large totals, rounded towards 0, for divisors whose reciprocal is not exact."""
    info = np.iinfo(name)
    for size in (1, 2, 3, 7, 10, 49):
        top = min(info.max, 2**62) // size
        low = -top if info.min < 0 else 0
        rows = [0, 1, size - 1, size, 3 * size - 1, 2**31 - 1, top - 1, top, low, low + 1, -1 if low else 5]
        x = np.zeros((len(rows), size), name)
        x[:, 0] = rows
        wanted = [abs(row) // size * (1 if row >= 0 else -1) for row in x[:, 0].tolist()]
        np.testing.assert_array_equal(reduced("Mean", x, [1]), np.array(wanted, name))
