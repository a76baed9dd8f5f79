"""Tests for `//` of graph values and NDArrays against numpy."""

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.ir.dims import substitute

_SPECIAL = (0.0, -0.0, 1, -1, 0.1, -0.1, 0.3, 7, -7, 2.5, np.inf, -np.inf, np.nan)


def _operands(dtype):
    """Return arrays with all pairs of int8 or uint8, or of values at the ends of the range of another dtype."""
    if dtype.kind == "f":
        info = np.finfo(dtype)
        ends = (info.max, -info.max, info.tiny, info.smallest_subnormal, 1 / info.eps, 3 / info.eps)
        values = divisors = np.array([*_SPECIAL, *ends], dtype)
    else:
        info = np.iinfo(dtype)
        near = range(256) if dtype.itemsize == 1 else (0, 1, 2, 3, 7, -1, -2, -3, -7)
        values = np.unique(np.array([info.min, info.max], dtype)[:, None] + np.array(near).astype(dtype))
        values = np.unique([*values, *np.array(near).astype(dtype)])
        divisors = values[values != 0]
    return [np.ascontiguousarray(v) for v in np.meshgrid(values, divisors)]


def _bits(x):
    """Return the bits of the elements; NaN as one number, because its sign is not defined."""
    x = np.where(np.isnan(x), x.dtype.type(np.nan), x) if x.dtype.kind == "f" else x
    return x.view(f"u{x.dtype.itemsize}")


@in_one_item()
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "float16", "float32", "float64"])
def test_floor_division_is_that_of_numpy(dtype):
    a, b = _operands(np.dtype(dtype))
    with np.errstate(all="ignore"):
        expected = _bits(a // b)
    net = gk.Model({"y": gk.input("a", a.shape, dtype) // gk.input("b", b.shape, dtype)})
    assert {node.op.domain for node in net.graph.nodes} == {""}
    assert (_bits(net.run({"a": a, "b": b})["y"]) == expected).all()
    assert (_bits((gk.nd.array(a) // gk.nd.array(b)).asnumpy()) == expected).all()


def test_floor_division_of_sizes_is_known():
    assert (gk.shape(gk.input("x", [7, 9])) // np.array([2, -2])).tensor.value == (3, -5)
    (half,) = (gk.shape(gk.input("x", ["N"])) // 2).tensor.value
    assert substitute(half, {"N": 7}) == 3


def test_gradient_of_floor_division_is_zero():
    x = gk.nd.array([7.0, -7.0, 0.5])
    x.attach_grad()
    with gk.nd.record():
        y = x // 2.0 + x
    y.backward()
    assert x.grad.asnumpy().tolist() == [1.0, 1.0, 1.0]
