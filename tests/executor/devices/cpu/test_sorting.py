"""Positions of extreme elements, the k largest ones, and the different ones, with ties, NaN and infinities."""

from __future__ import annotations

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.executor.devices.cpu import native
from graphkit.ops import registry
from graphkit.ops.xp import numpy_xp

FLOATS = ("float32", "float64", "float16", "bfloat16")
NUMERIC = (*FLOATS, "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def with_ties(rng, shape, name):
    x = rng.integers(0 if name.startswith("u") else -6, 7, shape).astype(np.dtype(name))
    if name in FLOATS:
        x[rng.random(shape) < 0.1] = -0.0
        if rng.random() < 0.5:
            x[rng.random(shape) < 0.02] = np.nan
            x[rng.random(shape) < 0.02] = -np.nan
            x[rng.random(shape) < 0.05] = np.inf
            x[rng.random(shape) < 0.05] = -np.inf
    return x


SHAPES = [((9, 1), 1), ((5, 7), 1), ((4, 600), 1), ((2, 5000), 1), ((7, 5), 0), ((3, 9, 700), 1), ((1500, 2), 0)]
SHORT_ROWS = [((70, size), 1) for size in (2, 3, 4, 8)]


@in_one_item("pairs")
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


@in_one_item()
@pytest.mark.parametrize(("shape", "axis"), [*SHAPES, ((3, 0, 2), 1), ((0, 4), 1)], ids=str)
@pytest.mark.parametrize("name", FLOATS)
def test_hardmax(shape, axis, name, isa):
    rng = np.random.default_rng([*name.encode(), *shape])
    op = registry.get("", "Hardmax")(axis=axis)
    for _ in range(4):
        x = with_ties(rng, shape, name)
        wanted = op.reference(numpy_xp, x.astype(np.float32)).astype(x.dtype)
        for threads in (1, 3):
            y = np.full(shape, 77, x.dtype)
            native.Hardmax(shape, axis, name, threads)([x], [y])
            np.testing.assert_array_equal(y, wanted)


@in_one_item("pairs")
@pytest.mark.parametrize(("shape", "axis"), [*SHAPES, *SHORT_ROWS], ids=str)
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


@in_one_item()
@pytest.mark.parametrize("k", [1, 2, 10, 32, 33])
@pytest.mark.parametrize("shape", [(3, 2000), (2000, 3)])
@pytest.mark.parametrize("order", ["ascending", "descending", "random", "ascending with ties"])
@pytest.mark.parametrize("name", ["float32", "int64", "uint8"])
def test_few_of_rows_in_order(k, shape, order, name, isa):
    """Rows in which each element is better than all before it, and rows in the reverse order."""
    axis = int(np.argmax(shape))
    x = np.random.default_rng(0).integers(0, 256, shape)
    if order != "random":
        x = np.sort(x // 9 if order.endswith("ties") else x, axis=axis)
    x = (x if order != "descending" else -x).astype(name)
    values, indices = registry.get("", "TopK")(axis=axis).reference(numpy_xp, x, np.array([k]))
    got, where = np.zeros(values.shape, x.dtype), np.full(values.shape, 77, np.int64)
    native.TopK(shape, axis, k, name, True, 2)([x], [got, where])
    np.testing.assert_array_equal(where, indices)
    np.testing.assert_array_equal(got, values)


def test_positions_that_do_not_exist():
    with pytest.raises(native.Error, match="k is out of range"):
        native.TopK([2, 3], 1, 4, "float32")
    with pytest.raises(native.Error, match="does not have one position for each row"):
        native.ArgExtreme([2, 0], 1, [2, 1], "float32")
    with pytest.raises(native.Error, match="out of range"):
        native.TopK([2, 3], 2, 1, "float32")


UNIQUE = [
    ((), None), ((0,), None), ((1,), 0), ((7,), None), ((300,), 0), ((40, 90), None), ((3, 0), 0), ((0, 3), 0),
    ((0, 3), 1), ((40, 2), 0), ((2, 40), 1), ((2, 30, 2), -2), ((300, 1), 0), ((2, 3, 0), -1), ((60000,), None),
]  # fmt: skip


@in_one_item("values")
@pytest.mark.parametrize(("shape", "axis"), UNIQUE, ids=str)
@pytest.mark.parametrize("name", [*NUMERIC, "bool"])
def test_unique(shape, axis, name):
    """numpy's: one NaN for all of them, but slices with NaN differ from each other; zeros are equal."""
    rng = np.random.default_rng([*name.encode(), *shape])
    for _ in range(3):
        x = np.asarray(with_ties(rng, shape, name)) if shape else np.array(3).astype(name)
        wide = x.astype(np.float32) if name in ("float16", "bfloat16") else x
        found = np.unique(wide, return_index=True, return_inverse=True, return_counts=True, axis=axis)
        first, inverse, counts = (v.reshape(-1).astype(np.int64) for v in found[1:])
        for in_order in (True, False):
            order = np.arange(len(first)) if in_order else np.argsort(first)
            wanted = [
                np.take(x, first[order], axis=axis), first[order], np.argsort(order)[inverse], counts[order],
            ]  # fmt: skip
            kernel = native.Unique(name, axis, in_order)
            got = kernel([x])
            for a, b in zip(got, wanted, strict=True):
                assert (a.dtype, a.shape) == (b.dtype, b.shape)
                assert a.tobytes() == np.ascontiguousarray(b).tobytes()
            for alone in range(4):
                results = kernel([x], [i == alone for i in range(4)])
                assert [r is not None for r in results] == [i == alone for i in range(4)]
                assert results[alone].tobytes() == got[alone].tobytes()


def test_unique_of_wide_keys():
    """Elements that differ in any one of their bits, more than are sorted by comparisons."""
    for name in ("int64", "uint64", "float64", "int32", "float32"):
        rng = np.random.default_rng(5)
        bits = np.uint64 if np.dtype(name).itemsize == 8 else np.uint32
        x = (bits(1) << rng.integers(0, np.dtype(name).itemsize * 8, 5000).astype(bits)).view(name)
        y, first, inverse, counts = native.Unique(name, None, True)([x])
        wanted = np.unique(x, return_index=True, return_inverse=True, return_counts=True)
        for a, b in zip((y, first, inverse, counts), wanted, strict=True):
            np.testing.assert_array_equal(a, b)


def test_unique_along_an_axis_that_does_not_exist():
    with pytest.raises(native.Error, match="axis 2 of 2"):
        native.Unique("float32", 2, True)([np.zeros((2, 3), np.float32)])
