"""Native softmax and its logarithm against float64, on rows and columns of every length."""

from __future__ import annotations

import ctypes
import platform

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.executor.devices.cpu import native

FLOATS = {"float32": 1e-5, "float64": 1e-12, "float16": 2e-3, "bfloat16": 1e-2}


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


@in_one_item("pairs")
@pytest.mark.parametrize(("shape", "axis"), SOFTMAX_SHAPES, ids=str)
@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("name", FLOATS)
def test_softmax(shape, axis, log, name, isa):
    x = (np.random.default_rng(1).standard_normal(shape) * 5).astype(np.dtype(name))
    got = softmax(x, axis, log)
    relative = {"float32": 2e-6, "float64": 1e-14}.get(name, FLOATS[name])
    absolute = relative * 20 if log else 1e-7
    np.testing.assert_allclose(got.astype(np.float64), plain_softmax(x, axis, log), rtol=relative, atol=absolute)
    assert got.tobytes() == softmax(x, axis, log, threads=3).tobytes() == softmax(x, axis, log, inplace=True).tobytes()


@in_one_item()
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


@pytest.mark.skipif(platform.machine() != "x86_64", reason="reads a flag of this processor")
@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(("shape", "axis"), [((6, 37), 1), ((6, 5), 1), ((6, 300), 1), ((3, 40, 61), 1)], ids=str)
def test_hidden_scores_and_ends_of_rows_do_not_underflow(shape, axis, log, isa):
    """Underflow takes processors more than a hundred cycles for each vector."""
    underflow, c_library = 0x10, ctypes.CDLL(None)
    x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    x[1, 2:] = -np.inf
    x[2, 3:] = -1e9
    x[:, 0] = 0
    kernel = native.Softmax(shape, axis, "float32", log, 1)
    y = np.empty_like(x)
    c_library.feclearexcept(underflow)
    kernel([x], [y])
    assert not c_library.fetestexcept(underflow)
    np.testing.assert_allclose(y, plain_softmax(x, axis, log), rtol=2e-6, atol=2e-6)
