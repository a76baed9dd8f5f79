"""Positions of extreme elements, and the k largest or smallest ones, with ties, NaN and infinities."""

from __future__ import annotations

import numpy as np
import pytest

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
