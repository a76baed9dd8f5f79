"""Kernels that read indices at run time: random shapes and element types against the references, and bad indices."""

import ml_dtypes
import numpy as np
import pytest

from graphkit.errors import RuntimeFailure
from graphkit.executor.devices.cpu import native
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.registry import make_kernel
from graphkit.executor.run.params import ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType, dtype_of
from graphkit.ops import F
from graphkit.ops.evaluate import run_node

FLOATS = [np.dtype(t) for t in (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)]
INTEGERS = [np.dtype(t) for t in (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)]
DTYPES = [*FLOATS, *INTEGERS, np.dtype(bool)]


def data(shape, dtype, seed=0):
    high = 2 if dtype.kind == "b" else 3 if dtype.itemsize == 2 and dtype in FLOATS else 100
    values = np.random.default_rng(seed).integers(0, high, shape)
    return values.astype(dtype)


def values_of(*arrays):
    return [Value(TensorType(dtype_of(a.dtype), a.shape), f"x{i}") for i, a in enumerate(arrays)]


def check(make, arrays, threads=(1, 3)):
    """The kernel of `make(*values)` and the reference give the same bits."""
    arrays = [np.asarray(a, order="C") for a in arrays]
    node = make(*values_of(*arrays)).node
    (expected,) = run_node(node, arrays)
    for number in threads:
        kernel = make_kernel("cpu", node, KernelContext(threads=number))
        assert kernel is not None
        y = np.full(expected.shape, 1, expected.dtype)
        kernel(arrays, [y])
        assert y.tobytes() == np.ascontiguousarray(expected).tobytes()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gather(dtype):
    rng = np.random.default_rng(dtype.num)
    for seed in range(20):
        rank = int(rng.integers(1, 4))
        shape = tuple(int(n) for n in rng.choice([1, 3, 16, 70], rank))
        axis = int(rng.integers(-rank, rank))
        size = shape[axis]
        index_type = rng.choice([np.int32, np.int64])
        indices = rng.integers(-size, size, tuple(rng.integers(0, 40, int(rng.integers(0, 3))))).astype(index_type)
        check(lambda x, i, axis=axis: F.gather(x, i, axis=axis), [data(shape, dtype, seed), indices])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_gather_gradient_adds_repeated_slices(dtype):
    rng = np.random.default_rng(dtype.num)
    shapes = [
        ((50, 64), 0, (200,)),
        ((7, 300), 0, (9, 4)),
        ((3, 20, 5), 1, (33,)),
        ((8, 5, 40), -2, (6,)),
        ((90,), 0, (500,)),
    ]
    for shape, axis, picked in shapes:
        x = np.zeros(shape, dtype)
        indices = rng.integers(-shape[axis], shape[axis], picked)
        dy = data(np.take(x, indices, axis=axis).shape, dtype)
        check(lambda dy, x, i, axis=axis: F.gather_grad(dy, x, i, axis=axis), [dy, x, indices])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gather_elements(dtype):
    rng = np.random.default_rng(dtype.num)
    for seed in range(20):
        rank = int(rng.integers(1, 4))
        shape = tuple(int(n) for n in rng.choice([1, 3, 16, 40], rank))
        axis = int(rng.integers(-rank, rank))
        picked = [int(rng.integers(0, n + 1)) for n in shape]
        picked[axis] = int(rng.integers(0, 50))
        indices = rng.integers(-shape[axis], shape[axis], picked).astype(rng.choice([np.int32, np.int64]))
        check(lambda x, i, axis=axis: F.gather_elements(x, i, axis=axis), [data(shape, dtype, seed), indices])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gather_nd(dtype):
    rng = np.random.default_rng(dtype.num)
    cases = [
        ((20, 30), (5, 2), 0),
        ((20, 30), (7, 1), 0),
        ((4, 6, 5), (4, 9, 1), 1),
        ((4, 6, 5), (4, 9, 2), 1),
    ]
    for shape, indices_shape, batch in cases:
        sizes = shape[batch : batch + indices_shape[-1]]
        columns = [rng.integers(-n, n, indices_shape[:-1]) for n in sizes]
        indices = np.stack(columns, axis=-1) if columns else np.zeros(indices_shape, np.int64)
        check(lambda x, i, batch=batch: F.gather_nd(x, i, batch_dims=batch), [data(shape, dtype), indices])


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_scatters(dtype, reduction):
    rng = np.random.default_rng(dtype.num)
    for shape, axis in [((40, 33), 0), ((40, 33), 1), ((5, 6, 70), 1), ((5, 6, 70), -1), ((5, 6, 70), 0), ((300,), 0)]:
        picked = [max(n // 2, 1) for n in shape]
        if reduction != "none":
            picked[axis] = 2 * shape[axis]
        indices = rng.integers(-shape[axis], shape[axis], picked)
        if reduction == "none":  # each element once
            indices = np.argsort(rng.random(shape), axis=axis)[tuple(slice(0, n) for n in picked)]
        operands = [data(shape, dtype, 1), indices, data(picked, dtype, 2)]
        check(lambda x, i, u, axis=axis: F.scatter_elements(x, i, u, axis=axis, reduction=reduction), operands)
    for shape, depth, count in [((50, 8), 1, 30), ((50, 200), 1, 30), ((9, 9), 2, 40), ((6, 5, 4), 2, 20)]:
        flat = rng.integers(0, int(np.prod(shape[:depth])), count)
        if reduction == "none":
            flat = rng.permutation(int(np.prod(shape[:depth])))[:count]
        indices = np.stack(np.unravel_index(flat, shape[:depth]), axis=-1)
        indices = indices - rng.integers(0, 2, indices.shape) * np.array(shape[:depth])
        operands = [data(shape, dtype, 3), indices, data((len(flat), *shape[depth:]), dtype, 4)]
        check(lambda x, i, u: F.scatter_nd(x, i, u, reduction=reduction), operands)


def test_extremes_keep_nan():
    x = np.array([np.nan, 1, 2, 3], np.float32)
    indices, updates = np.array([0, 1, 2, 3]), np.array([5, np.nan, 7, 1], np.float32)
    for reduction in ("max", "min"):
        check(lambda x, i, u, r=reduction: F.scatter_elements(x, i, u, reduction=r), [x, indices, updates])


def test_scatters_in_place():
    x = np.zeros((40, 8), np.float32)
    kernel = native.ScatterND([40, 8], [3, 1], "add", "float32")
    assert kernel.inplace == [(0, 0)]
    kernel([x, np.array([[1], [1], [-1]]), np.ones((3, 8), np.float32)], [x])
    assert x.sum(axis=1).tolist() == [0, 16, *[0] * 37, 8]


BAD = [
    (
        native.Gather([4, 5], [3], 1, "float32"),
        [(4, 5), [0, 5, 9]],
        (4, 3),
        r"index 5 .element 1 .* axis 1, which has 5",
    ),
    (native.Gather([4, 5], [3], 0, "float32", "int32"), [(4, 5), np.array([0, -5, 1], np.int32)], (3, 5), "index -5"),
    (native.GatherElements([2, 3], [1, 2], 1, "float32"), [(2, 3), [[0, 3]]], (1, 2), "index 3 .element 1 .* axis 1"),
    (native.GatherND([2, 3], [2, 2], 0, "float32"), [(2, 3), [[0, 0], [1, -4]]], (2,), "index -4 .element 3 .* axis 1"),
    (native.ScatterND([2, 3], [1, 1], "add", "float32"), [(2, 3), [[2]], (1, 3)], (2, 3), "index 2 .* axis 0"),
    (
        native.ScatterElements([2, 3], [1, 3], 0, "none", "float32"),
        [(2, 3), [[0, 1, 2]], (1, 3)],
        (2, 3),
        "index 2 .* axis 0",
    ),
    (native.GatherGrad([2, 3], "float32", [1], 0, "float32"), [(1, 3), None, [7]], (2, 3), "index 7 .* axis 0"),
    (native.ReverseSequence([4, 2], False, "float32"), [(4, 2), [5, 0]], (4, 2), "length 5 of batch 0"),
]


@pytest.mark.parametrize(("kernel", "operands", "shape", "message"), BAD, ids=[type(b[0]).__name__ for b in BAD])
def test_indices_outside_their_axis(kernel, operands, shape, message):
    arrays = [np.zeros(a, np.float32) if isinstance(a, tuple) else a if a is None else np.asarray(a) for a in operands]
    y = np.full(shape, 5, np.float32)
    with pytest.raises(native.Error, match=message):
        kernel(arrays, [y])
    assert (y == 5).all()


@pytest.mark.parametrize("index", [2**63 - 1, -(2**63), 2**40])
def test_indices_far_outside(index):
    x, y = np.zeros((3, 2), np.float32), np.zeros((1, 2), np.float32)
    for kernel, indices in [
        (native.Gather([3, 2], [1], 0, "float32"), np.array([index])),
        (native.GatherND([3, 2], [1, 1], 0, "float32"), np.array([[index]])),
    ]:
        with pytest.raises(native.Error, match=f"index {index} "):
            kernel([x, indices], [y])


def test_a_program_reports_a_bad_index():
    x, i = Value(TensorType("float32", (4, 2)), "x"), Value(TensorType("int64", (2,)), "i")
    executor = Executor(Graph([x, i], [F.gather(x, i)]), ParamStore({}, {}))
    with pytest.raises(RuntimeFailure, match=r"index 4 .* axis 0"):
        executor(np.zeros((4, 2), np.float32), np.array([0, 4]))


def test_a_program_of_movement_needs_no_reference(monkeypatch):
    monkeypatch.setenv("GRAPHKIT_STRICT", "1")
    x, i = Value(TensorType("float32", (4, 6)), "x"), Value(TensorType("int64", (3,)), "i")
    y = F.transpose(F.concat(F.gather(x, i), F.slice(x, np.array([1]), np.array([3])), axis=0))
    padded = F.pad(y, np.array([1, 0, 0, 2]))
    y = F.scatter_nd(padded, F.unsqueeze(i, np.array([1])), F.expand(np.float32(7), np.array([3, 7])))
    executor = Executor(Graph([x, i], [y]), ParamStore({}, {}), threads=2)
    data_x, data_i = np.arange(24, dtype=np.float32).reshape(4, 6), np.array([3, 0, -1])
    expected = np.pad(np.concatenate([data_x[data_i], data_x[1:3]]).T, ((1, 0), (0, 2)))
    expected[data_i] = 7
    for _ in range(2):
        np.testing.assert_array_equal(executor(data_x, data_i)[0], expected)


@pytest.mark.parametrize("index_type", [np.int8, np.int32, np.int64, np.uint8, np.float32, np.float64, np.float16])
def test_one_hot(index_type):
    rng = np.random.default_rng(5)
    for shape, axis in [((40,), -1), ((40,), 0), ((6, 7), 1), ((6, 7), -3), ((), 0), ((3, 0), 1)]:
        indices = rng.integers(0 if np.dtype(index_type).kind == "u" else -12, 12, shape).astype(index_type)
        values = np.array([2, 9], np.int16)
        node = F.one_hot(values_of(indices)[0], np.int64(10), values_of(values)[0], axis=axis).node
        (expected,) = run_node(node, [indices, np.array(10), values])
        y = np.zeros(expected.shape, np.int16)
        make_kernel("cpu", node, KernelContext(threads=3))([indices, np.array(10), values], [y])
        np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("upper", [True, False])
def test_triangles(dtype, upper):
    for shape in [(7, 5), (3, 40, 60), (2, 1, 9)]:
        for k in (-(2**62), -70, -3, 0, 2, 70, 2**62):
            check(lambda x, k: F.trilu(x, k, upper=upper), [data(shape, dtype), np.int64(k)])
    x = np.arange(1, 13, dtype=np.float32).reshape(3, 4)
    expected = np.triu(x) if upper else np.tril(x)
    native.Trilu([3, 4], upper, None, "float32")([x], [x])
    np.testing.assert_array_equal(x, expected)
