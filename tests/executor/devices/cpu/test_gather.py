"""Gathers: random shapes and element types against the references, and bad indices."""

import numpy as np
import pytest
from combinations import in_one_item
from kernel_runs import DTYPES, same_bits, small_integers

from graphkit.errors import RuntimeFailure
from graphkit.executor.devices.cpu import native
from graphkit.executor.run.params import ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F

# Shapes of x and of the indices, and an axis: more indices than are checked at once, rows that go beyond them.
LONG = [
    ((3, 50), (3, 2500), 1),
    ((700, 5), (700, 3), 1),
    ((9, 700), (40, 700), 0),
    ((6, 20, 33), (5, 31, 30), 1),
    ((5, 3, 4, 6), (4, 3, 3, 100), 3),
]


@in_one_item()
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
        same_bits(lambda x, i, axis=axis: F.gather(x, i, axis=axis), [small_integers(shape, dtype, seed), indices])


@in_one_item()
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
        same_bits(
            lambda x, i, axis=axis: F.gather_elements(x, i, axis=axis), [small_integers(shape, dtype, seed), indices]
        )


@in_one_item()
@pytest.mark.parametrize("index_type", [np.int32, np.int64])
@pytest.mark.parametrize("least", [0, -1], ids=["no negative indices", "negative indices"])
@pytest.mark.parametrize(("shape", "picked", "axis"), LONG)
def test_gather_elements_with_many_indices(shape, picked, axis, least, index_type, isa):
    indices = np.random.default_rng(0).integers(least * shape[axis], shape[axis], picked).astype(index_type)
    same_bits(lambda x, i: F.gather_elements(x, i, axis=axis), [small_integers(shape, np.dtype(np.float32)), indices])


@in_one_item()
@pytest.mark.parametrize("index_type", [np.int32, np.int64])
@pytest.mark.parametrize("places", [[0], [1023], [1024, 5000], [6999, 4097]])
@pytest.mark.parametrize("index", [5, -6])
def test_the_first_of_many_indices_outside_is_named(places, index, index_type, isa):
    indices = np.random.default_rng(0).integers(-5, 5, (7, 1000)).astype(index_type)
    indices.flat[places] = index
    kernel = native.GatherElements((7, 5), (7, 1000), 1, "float32", np.dtype(index_type).name, threads=2)
    with pytest.raises(native.Error, match=rf"index {index} .element {min(places)} of"):
        kernel([np.zeros((7, 5), np.float32), indices], [np.zeros((7, 1000), np.float32)])


@in_one_item()
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
        same_bits(
            lambda x, i, batch=batch: F.gather_nd(x, i, batch_dims=batch), [small_integers(shape, dtype), indices]
        )


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


@in_one_item()
@pytest.mark.parametrize(("kernel", "operands", "shape", "message"), BAD, ids=[type(b[0]).__name__ for b in BAD])
def test_indices_outside_their_axis(kernel, operands, shape, message):
    arrays = [np.zeros(a, np.float32) if isinstance(a, tuple) else a if a is None else np.asarray(a) for a in operands]
    y = np.full(shape, 5, np.float32)
    with pytest.raises(native.Error, match=message):
        kernel(arrays, [y])
    assert (y == 5).all()


@in_one_item()
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
