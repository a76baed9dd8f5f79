"""Native reductions, softmax and positions of extremes on random shapes, large arrays, NaN and infinities."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

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
    """By the operator's reference, in float64 for floats."""
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
    with pytest.raises(native.Error, match="is no reduction"):
        native.Reduce("Median", [2, 3], [1], [2], "float32")
    with pytest.raises(native.Unsupported, match="no native kernel"):
        native.Reduce("LogSumExp", [2, 3], [1], [2], "int32")


# --- softmax --------------------------------------------------------------------------------------


def softmax(x, axis, log=False, threads=1, inplace=False):
    y = x.copy() if inplace else np.full_like(x, 77)
    native.Softmax(x.shape, axis, x.dtype.name, log, threads)([y if inplace else x], [y])
    return y


def plain_softmax(x, axis, log):
    x = x.astype(np.float64)
    with np.errstate(all="ignore"):
        shifted = x - x.max(axis=axis, keepdims=True)
        log_prob = shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))
        return log_prob if log else np.exp(log_prob)


SOFTMAX_SHAPES = [((7, n), 1) for n in (1, 3, 15, 16, 17, 33, 64, 100, 128, 129, 1000, 9000)]
SOFTMAX_SHAPES += [
    ((2, 5, 3), 1),
    ((3, 40, 700), 1),
    ((2, 20000, 3), 1),
    ((9, 2), 0),
    ((2, 3, 4, 5), -3),
    ((50, 1100), 0),
]


@pytest.mark.parametrize(("shape", "axis"), SOFTMAX_SHAPES, ids=str)
@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("name", FLOATS)
def test_softmax(shape, axis, log, name, isa):
    x = (np.random.default_rng(1).standard_normal(shape) * 5).astype(dtype_of(name))
    got = softmax(x, axis, log)
    relative = {"float32": 2e-6, "float64": 1e-14}.get(name, FLOATS[name])
    absolute = relative * 20 if log else 1e-7
    np.testing.assert_allclose(got.astype(np.float64), plain_softmax(x, axis, log), rtol=relative, atol=absolute)
    assert got.tobytes() == softmax(x, axis, log, threads=3).tobytes() == softmax(x, axis, log, inplace=True).tobytes()


@pytest.mark.parametrize("size", [5, 128, 2000])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("log", [False, True])
def test_softmax_of_infinities_and_nan(size, axis, log, isa):
    x = np.zeros((6, size), np.float32)
    x[0, 1] = np.nan
    x[1, 2] = np.inf
    x[2, :] = -np.inf
    x[3, 1:] = -np.inf
    x[4, -1] = -np.inf
    x[5] = np.linspace(-1e30, 1e30, size)
    x = np.ascontiguousarray(x.T) if axis == 0 else x
    np.testing.assert_allclose(softmax(x, axis, log), plain_softmax(x, axis, log), rtol=2e-6)


# --- positions ------------------------------------------------------------------------------------

NUMERIC = (*FLOATS, "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def with_ties(rng, shape, name):
    x = rng.integers(0 if name.startswith("u") else -6, 7, shape).astype(dtype_of(name))
    if name in FLOATS:
        x[rng.random(shape) < 0.1] = -0.0
        if rng.random() < 0.5:
            x[rng.random(shape) < 0.02] = np.nan
            x[rng.random(shape) < 0.02] = -np.nan
            x[rng.random(shape) < 0.05] = np.inf
            x[rng.random(shape) < 0.05] = -np.inf
    return x


SHAPES = [((9, 1), 1), ((5, 7), 1), ((4, 600), 1), ((2, 5000), 1), ((7, 5), 0), ((3, 9, 700), 1), ((1500, 2), 0)]


@pytest.mark.parametrize(("shape", "axis"), SHAPES, ids=str)
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("name", NUMERIC)
def test_extreme_positions(shape, axis, largest, last, name, isa):
    rng = np.random.default_rng([*name.encode(), *shape])
    op = registry.get("", "ArgMax" if largest else "ArgMin")(axis=axis, select_last_index=last)
    for _ in range(4):
        x = with_ties(rng, shape, name)
        wanted = op.reference(numpy_xp, x.astype(np.float32) if name in ("float16", "bfloat16") else x)
        for threads in (1, 3):
            y = np.full(wanted.shape, 77, np.int64)
            native.ArgExtreme(shape, axis, wanted.shape, name, largest, last, threads)([x], [y])
            np.testing.assert_array_equal(y, wanted)


@pytest.mark.parametrize(("shape", "axis"), SHAPES, ids=str)
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("name", NUMERIC)
def test_top_k(shape, axis, largest, name, isa):
    rng = np.random.default_rng([*name.encode(), *shape])
    op = registry.get("", "TopK")(axis=axis, largest=largest)
    for k in {0, 1, min(3, shape[axis]), shape[axis] // 2, shape[axis]}:
        x = with_ties(rng, shape, name)
        wide = x.astype(np.float32) if name in ("float16", "bfloat16") else x
        values, indices = op.reference(numpy_xp, wide, np.array([k]))
        for threads in (1, 3):
            got, where = np.zeros(values.shape, x.dtype), np.full(values.shape, 77, np.int64)
            native.TopK(shape, axis, k, name, largest, threads)([x], [got, where])
            np.testing.assert_array_equal(where, indices)
            np.testing.assert_array_equal(got.astype(values.dtype), values)


def test_positions_that_do_not_exist():
    with pytest.raises(native.Error, match="k is out of range"):
        native.TopK([2, 3], 1, 4, "float32")
    with pytest.raises(native.Error, match="no such positions"):
        native.ArgExtreme([2, 0], 1, [2, 1], "float32")
    with pytest.raises(native.Error, match="out of range"):
        native.TopK([2, 3], 2, 1, "float32")
