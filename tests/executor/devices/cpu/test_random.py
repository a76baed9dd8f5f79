"""Random kernels draw the numbers of the references, for any number of threads and instruction set."""

import math

import ml_dtypes
import numpy as np
import pytest
from combinations import in_one_item

from graphkit.executor.devices.cpu import native
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.registry import make_kernel
from graphkit.ir.graph import Value
from graphkit.ir.types import TensorType, dtype_of
from graphkit.ops import F
from graphkit.ops.evaluate import run_node

STATE = np.array([0x123456789ABCDEF0, 2**40 + 7], np.uint64)
SIZES = [1, 2, 7, 511, 512, 513, 5000, 100_003]
# Elements behind each output, which stay.
GUARD = 64
FLOATS = ["float32", "float64", "float16", "bfloat16"]


def rng_value():
    return Value(TensorType("uint64", (2,)), "rng")


def drawn(node, arrays, threads):
    kernel = make_kernel("cpu", node, KernelContext(threads=threads, used_outputs=(True,) * len(node.outputs)))
    outputs = []
    for value in node.outputs:
        size = math.prod(value.tensor.static_shape)
        with_guard = np.ones(size + GUARD, value.dtype.numpy)
        outputs.append(with_guard[:size].reshape(value.tensor.static_shape))
    kernel(arrays, outputs)
    for output in outputs:
        assert (output.base[output.size :] == 1).all(), "elements behind the output are written"
    return outputs


@in_one_item()
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-2.7, 3.1)])
def test_uniform_numbers_are_the_same_bits(dtype, bounds, every_isa):
    low, high = bounds
    for size in SIZES:
        node = F.random_uniform(rng_value(), shape=(size,), low=low, high=high, dtype=dtype, stream=9).node
        (expected,) = run_node(node, [STATE])
        for threads in (1, 3):
            assert drawn(node, [STATE], threads)[0].tobytes() == expected.tobytes()


@in_one_item()
@pytest.mark.parametrize(("dtype", "ulps"), [("float32", 2), ("float64", 4), ("float16", 1), ("bfloat16", 1)])
def test_normal_numbers(dtype, ulps, isa):
    for size in SIZES:
        node = F.random_normal(rng_value(), shape=(size,), dtype=dtype, stream=9).node
        (expected,) = run_node(node, [STATE])
        first = drawn(node, [STATE], 1)[0]
        assert drawn(node, [STATE], 3)[0].tobytes() == first.tobytes()
        bits = {2: np.int16, 4: np.int32, 8: np.int64}[expected.dtype.itemsize]
        assert np.abs(first.view(bits).astype(np.int64) - expected.view(bits).astype(np.int64)).max() <= ulps


def test_normal_numbers_are_normal():
    size = 400_000
    node = F.random_normal(rng_value(), shape=(size,), mean=3.0, scale=2.0).node
    z = (drawn(node, [STATE], 3)[0].astype(np.float64) - 3) / 2
    assert abs(z.mean()) < 4 / size**0.5
    assert abs(z.var() - 1) < 4 * (2 / size) ** 0.5
    assert abs((z**4).mean() - 3) < 4 * (96 / size) ** 0.5
    assert 4 < np.abs(z).max() < 7


@in_one_item("values")
@pytest.mark.parametrize("ratio", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("dtype", FLOATS)
def test_dropout(dtype, ratio, isa):
    kind = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    for size in SIZES:
        x = np.random.default_rng(0).standard_normal(size).astype(kind)
        operands = [x, np.array(ratio, np.float32), np.array(True), STATE]
        values = [Value(TensorType(dtype_of(a.dtype), a.shape)) for a in operands]
        node = F.dropout(*values, stream=4)[0].node
        expected = run_node(node, operands)
        for threads in (1, 3):
            got = drawn(node, operands, threads)
            assert [a.tobytes() for a in got] == [a.tobytes() for a in expected]
        in_place = x.copy()
        kernel = make_kernel("cpu", node, KernelContext(threads=1))
        kernel([in_place, *operands[1:]], [in_place, None])
        assert in_place.tobytes() == expected[0].tobytes()


def test_a_ratio_outside_its_range():
    x = np.zeros(3, np.float32)
    source = native.PhiloxSource(1, 2, 3, False)
    kernel = native.Dropout([3], "float32", ([], "float32"), ([], "bool"), source)
    for ratio in (1.5, -0.1, np.nan):
        with pytest.raises(native.Error, match="is outside"):
            kernel([x, np.array(ratio, np.float32), np.array(True), None], [x, None])


@in_one_item()
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "bool", "int8", "uint64"])
@pytest.mark.parametrize("given", FLOATS)
def test_bernoulli(given, dtype):
    kind = np.dtype(getattr(ml_dtypes, given, None) or given)
    x = np.random.default_rng(0).uniform(0, 1, 3001).astype(kind)
    node = F.bernoulli(Value(TensorType(given, x.shape)), rng_value(), dtype=dtype, stream=2).node
    (expected,) = run_node(node, [x, STATE])
    assert drawn(node, [x, STATE], 3)[0].tobytes() == expected.tobytes()


def test_folding_in():
    for index in (0, 1, 77, 2**32 - 1):
        node = F.rng_fold_in(rng_value(), Value(TensorType("int64", ()))).node
        operands = [STATE, np.array(index)]
        assert drawn(node, operands, 1)[0].tolist() == run_node(node, operands)[0].tolist()
