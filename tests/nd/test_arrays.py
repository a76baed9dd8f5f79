"""Arrays against numpy: creation, facts, arithmetic, indexing, assignment, element types, empty arrays."""

from __future__ import annotations

import copy
import operator
import pickle

import ml_dtypes
import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import InputError, TypeMismatch, UsageError
from graphkit.nd import ndarray, operators

nd = gk.nd
DTYPES = ["float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool"]
SHAPES = [(), (0,), (3,), (2, 3), (0, 3), (2, 1, 4), (5, 7)]


def numpy_dtype(name: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def sample(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.asarray(rng.integers(0, 2, shape) if dtype == "bool" else rng.integers(1, 6, shape)).astype(
        numpy_dtype(dtype)
    )


@in_one_item()
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_array_has_the_elements_of_its_data(dtype: str, shape: tuple[int, ...]) -> None:
    data = sample(shape, dtype)
    x = nd.array(data)
    assert (x.shape, x.ndim, x.size, x.nbytes) == (data.shape, data.ndim, data.size, data.nbytes)
    assert x.dtype == data.dtype == x.asnumpy().dtype
    np.testing.assert_array_equal(x.asnumpy(), data)
    np.testing.assert_array_equal(np.asarray(x), data)
    np.testing.assert_array_equal(x.copy().asnumpy(), data)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(x)).asnumpy(), data)
    np.testing.assert_array_equal(copy.deepcopy(x).asnumpy(), data)


def test_arrays_do_not_share_memory_with_data() -> None:
    data = np.ones(3, np.float32)
    x = nd.array(data)
    data[:] = 2
    found = x.asnumpy()
    found[:] = 3
    np.testing.assert_array_equal(x.asnumpy(), np.ones(3))


def test_functions_that_make_arrays() -> None:
    made = {
        "zeros": (nd.zeros((2, 3)), np.zeros((2, 3), np.float32)),
        "ones": (nd.ones(4, "int8"), np.ones(4, np.int8)),
        "full": (nd.full((2,), 7, "int64"), np.full(2, 7)),
        "arange": (nd.arange(5), np.arange(5, dtype=np.float32)),
        "arange of three": (nd.arange(1, 8, 3, dtype="int32"), np.arange(1, 8, 3, dtype=np.int32)),
        "eye": (nd.eye(2, 3), np.eye(2, 3, dtype=np.float32)),
        "list": (nd.array([[1, 2], [3, 4]]), np.array([[1, 2], [3, 4]])),
        "floats": (nd.array([1.5]), np.array([1.5], np.float32)),
        "number": (nd.array(2, "float64"), np.array(2.0)),
        "zeros_like": (nd.zeros_like(nd.ones((2, 2), "int16")), np.zeros((2, 2), np.int16)),
        "ones_like": (nd.ones_like(nd.zeros(())), np.ones((), np.float32)),
        "of an array": (nd.array(nd.ones(2), "int32"), np.ones(2, np.int32)),
        "other byte order": (nd.array(np.arange(3, dtype=">i4")), np.arange(3, dtype=np.int32)),
        "strides": (nd.array(np.arange(6).reshape(2, 3).T), np.arange(6).reshape(2, 3).T),
    }
    for name, (found, expected) in made.items():
        assert found.dtype == expected.dtype, name
        np.testing.assert_array_equal(found.asnumpy(), expected, err_msg=name)


def test_no_dtype_is_the_default_dtype() -> None:
    draw = nd.random
    made = [nd.zeros(2, None), nd.ones(2, None), nd.full(2, 1, None), nd.empty(2, None), nd.eye(2, dtype=None)]
    made += [nd.arange(2, dtype=None), nd.linspace(0, 1, dtype=None), draw.uniform(dtype=None), draw.normal(dtype=None)]
    assert {x.dtype for x in made} == {np.dtype("float32")}
    assert draw.randint(0, 2, dtype=None).dtype == np.int32


def test_random_numbers_depend_on_the_seed() -> None:
    nd.random.seed(7)
    first = [nd.random.uniform(-1, 1, (50, 2)).asnumpy(), nd.random.normal(2, 0.1, 100).asnumpy()]
    assert first[0].min() >= -1
    assert first[0].max() < 1
    assert first[0].std() > 0.3
    assert abs(first[1].mean() - 2) < 0.1
    integers = nd.random.randint(3, 6, 200).asnumpy()
    assert set(integers.tolist()) == {3, 4, 5}
    nd.random.seed(7)
    np.testing.assert_array_equal(nd.random.uniform(-1, 1, (50, 2)).asnumpy(), first[0])
    assert not np.array_equal(nd.random.uniform(-1, 1, (50, 2)).asnumpy(), first[0])


BINARY = ["add", "sub", "mul", "truediv", "floordiv", "mod", "lt", "le", "gt", "ge", "eq", "ne"]


@in_one_item()
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("name", BINARY)
def test_operators_of_python_are_those_of_numpy(name: str, dtype: str) -> None:
    function = getattr(operator, name)
    for first, second in [((2, 3), (2, 3)), ((2, 3), (3,)), ((4, 1), (1, 5)), ((), (2,)), ((0, 3), (1, 3))]:
        a, b = sample(first, dtype, 1), sample(second, dtype, 2)
        expected = function(a, b)
        if name == "truediv" and dtype.startswith("int"):
            expected = a // b  # Div of integers truncates; all are positive
        for x, y in [(nd.array(a), nd.array(b)), (nd.array(a), b), (a, nd.array(b))]:
            found = function(x, y)
            assert isinstance(found, nd.NDArray)
            np.testing.assert_allclose(found.asnumpy(), expected, rtol=1e-6)
            assert found.dtype == expected.dtype


def test_operators_with_numbers() -> None:
    a = sample((3, 2), "float32")
    x = nd.array(a)
    for function in (operator.add, operator.sub, operator.mul, operator.truediv, operator.pow):
        np.testing.assert_allclose(function(x, 2).asnumpy(), function(a, np.float32(2)), rtol=1e-6)
        np.testing.assert_allclose(function(2.5, x).asnumpy(), function(np.float32(2.5), a), rtol=1e-6)
    np.testing.assert_array_equal((-x).asnumpy(), -a)
    np.testing.assert_array_equal(abs(-x).asnumpy(), a)
    np.testing.assert_array_equal((1 / (x * 0.0)).asnumpy(), np.full((3, 2), np.inf))
    np.testing.assert_array_equal((1 / (x * -0.0)).asnumpy(), np.full((3, 2), -np.inf))
    assert np.isnan((x * float("nan")).asnumpy()).all()


def test_logical_and_bitwise_operators() -> None:
    p, q = np.array([True, True, False]), np.array([True, False, False])
    m, n = np.array([12, 10, 7], np.int32), np.array([10, 3, 1], np.int32)
    for function in (operator.and_, operator.or_, operator.xor):
        np.testing.assert_array_equal(function(nd.array(p), nd.array(q)).asnumpy(), function(p, q))
        np.testing.assert_array_equal(function(nd.array(m), nd.array(n)).asnumpy(), function(m, n))
    np.testing.assert_array_equal((~nd.array(p)).asnumpy(), ~p)
    np.testing.assert_array_equal((~nd.array(m)).asnumpy(), ~m)
    a, b = sample((2, 3), "float32"), sample((3, 4), "float32")
    np.testing.assert_array_equal((nd.array(a) @ nd.array(b)).asnumpy(), a @ b)
    np.testing.assert_array_equal((a @ nd.array(b)).asnumpy(), a @ b)


# gk's function on arrays -> the same in numpy.
FUNCTIONS = {
    "exp": (gk.exp, np.exp), "log": (gk.log, np.log), "sqrt": (gk.sqrt, np.sqrt), "tanh": (gk.tanh, np.tanh),
    "sin": (gk.sin, np.sin), "cos": (gk.cos, np.cos), "floor": (gk.floor, np.floor), "ceil": (gk.ceil, np.ceil),
    "sign": (gk.sign, np.sign), "round": (gk.round, np.round), "reciprocal": (gk.reciprocal, np.reciprocal),
    "relu": (lambda x: gk.relu(x - 3), lambda x: np.maximum(x - 3, 0)),
    "clip": (lambda x: gk.clip(x, 2.0, 4.0), lambda x: np.clip(x, 2, 4)),
    "sum": (lambda x: gk.reduce_sum(x, [0], keepdims=False), lambda x: x.sum(0)),
    "mean": (lambda x: gk.reduce_mean(x, [-1]), lambda x: x.mean(-1, keepdims=True)),
    "max": (lambda x: gk.reduce_max(x, [0, 1]), lambda x: x.max(keepdims=True)),
    "prod": (lambda x: gk.reduce_prod(x, keepdims=False), lambda x: x.prod()),
    "arg_max": (lambda x: gk.arg_max(x, axis=1, keepdims=False), lambda x: x.argmax(1)),
    "reshape": (lambda x: gk.reshape(x, [-1, 2]), lambda x: x.reshape(-1, 2)),
    "reshape as": (lambda x: gk.reshape(x, gk.shape(x)), lambda x: x),
    "transpose": (lambda x: gk.transpose(x, perm=[1, 0]), lambda x: x.T),
    "concat": (lambda x: gk.concat([x, x], axis=1), lambda x: np.concatenate([x, x], 1)),
    "split": (lambda x: gk.split(x, num_outputs=2, axis=0)[1], lambda x: np.split(x, 2, 0)[1]),
    "slice": (lambda x: gk.slice(x, [1], [3], [0]), lambda x: x[1:3]),
    "gather": (lambda x: gk.gather(x, [2, 0], axis=0), lambda x: x[[2, 0]]),
    "gather of an array": (lambda x: gk.gather(x, nd.array([2, 0]), axis=0), lambda x: x[[2, 0]]),
    "where": (lambda x: gk.where(x > 3, x, -x), lambda x: np.where(x > 3, x, -x)),
    "expand": (lambda x: gk.expand(x, [2, 4, 6]), lambda x: np.broadcast_to(x, (2, 4, 6))),
    "pad": (lambda x: gk.pad(x, [1, 0, 0, 2]), lambda x: np.pad(x, [(1, 0), (0, 2)])),
    "tile": (lambda x: gk.tile(x, [2, 1]), lambda x: np.tile(x, (2, 1))),
    "top_k": (lambda x: gk.top_k(x, 2)[0], lambda x: -np.sort(-x, 1)[:, :2]),
    "cum_sum": (lambda x: gk.cum_sum(x, 1), lambda x: x.cumsum(1)),
    "one_hot": (
        lambda x: gk.one_hot(gk.cast(x[0], to="int64"), 7, np.array([0.0, 1.0])),
        lambda x: np.eye(7)[x[0].astype(int)],
    ),
    "non_zero": (lambda x: gk.non_zero(x > 3), lambda x: np.array(np.nonzero(x > 3))),
    "cast": (lambda x: x.astype("int32"), lambda x: x.astype(np.int32)),
    "softmax": (
        lambda x: gk.softmax(x, axis=1), lambda x: np.exp(x) / np.exp(x).sum(1, keepdims=True),
    ),
    "linear": (
        lambda x: gk.nn.linear(x, 2, weight=nd.ones((2, 6)), bias=nd.ones(2)), lambda x: x @ np.ones((6, 2)) + 1,
    ),
    "ufunc": (np.exp, np.exp), "ufunc of two": (lambda x: np.maximum(x, 3.0), lambda x: np.maximum(x, 3)),
}  # fmt: skip


@in_one_item()
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_gk_run_at_once(name: str) -> None:
    ours, theirs = FUNCTIONS[name]
    data = sample((4, 6), "float32", 3)
    for _ in range(2):  # compiled, then from the cache
        found = ours(nd.array(data))
        assert isinstance(found, nd.NDArray)
        np.testing.assert_allclose(found.asnumpy(), theirs(data), rtol=2e-6)


KEYS = [
    0, -1, slice(None), slice(1, 3), slice(None, None, -1), slice(3, 0, -2), (1, 2), (slice(None), 0), (..., 1),
    (slice(1, 2), slice(2, 5, 2)), (None, 0), (0, None, ...), (slice(5, 9),), ...,
]  # fmt: skip
ADVANCED = [[2, 0, 2], np.array([1, -1]), np.array([[0, 1], [2, 3]]), ([0, 1], [2, 3]), "mask", "row mask"]


def key_of(key: object, data: np.ndarray) -> object:
    return data > 2 if key == "mask" else data[:, 0] > 2 if key == "row mask" else key


@in_one_item()
@pytest.mark.parametrize("key", KEYS + ADVANCED, ids=str)
def test_indexing_is_that_of_numpy(key: object) -> None:
    data = sample((4, 6), "int32", 4)
    k = key_of(key, data) if isinstance(key, str) else key
    np.testing.assert_array_equal(nd.array(data)[k].asnumpy(), data[k])


@in_one_item()
@pytest.mark.parametrize("key", KEYS + ADVANCED, ids=str)
def test_assignment_is_that_of_numpy(key: object) -> None:
    data = sample((4, 6), "float32", 4)
    k = key_of(key, data) if isinstance(key, str) else key
    x, part = nd.array(data), data[k]
    for value in (7, np.arange(part.size, dtype=np.float64).reshape(part.shape)):
        x[k] = value
        data[k] = value
        np.testing.assert_array_equal(x.asnumpy(), data)
    x[k] = nd.full(part.shape, 2.5, "float64")
    data[k] = 2.5
    np.testing.assert_array_equal(x.asnumpy(), data)


def test_basic_indices_reshape_and_transpose_share_memory() -> None:
    data = np.arange(6, dtype=np.float32).reshape(2, 3)
    x = nd.array(data)
    x[1][:] = 9
    x.reshape(3, 2)[0, 0] = -1
    x.T[2, 0] = 5
    x[:, 1:2] += 10
    expected = np.array([[-1, 11, 5], [9, 19, 9]], np.float32)
    np.testing.assert_array_equal(x.asnumpy(), expected)
    np.testing.assert_array_equal((x.T * 2).asnumpy(), expected.T * 2)
    np.testing.assert_array_equal(x.T.reshape(-1).asnumpy(), expected.T.reshape(-1))
    y = x.detach()
    y += 1
    np.testing.assert_array_equal(x.asnumpy(), expected + 1)
    z = x.copy()
    z[:] = 0
    np.testing.assert_array_equal(x.asnumpy(), expected + 1)


def test_overlapping_parts_are_copied_as_by_numpy() -> None:
    data = np.arange(10, dtype=np.float32)
    x = nd.array(data)
    x[1:] = x[:-1]
    data[1:] = data[:-1].copy()
    x[::-1] = x
    data[::-1] = data.copy()
    x[2:6] += x[1:5]
    data[2:6] += data[1:5].copy()
    np.testing.assert_array_equal(x.asnumpy(), data)


def test_in_place_operators() -> None:
    data = sample((3, 4), "float32")
    x = nd.array(data)
    before = x
    old = x * 1.0
    for function in (operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ipow):
        x = function(x, 2.0)
        data = function(data, np.float32(2))
    x += nd.array(data[0])
    data += data[0].copy()
    x += x
    data += data
    assert x is before
    np.testing.assert_allclose(x.asnumpy(), data, rtol=1e-6)
    np.testing.assert_array_equal(old.asnumpy(), sample((3, 4), "float32"))
    small = nd.ones(3)
    with pytest.raises(TypeMismatch, match=r"in-place operation of array: float32\[3\] cannot store"):
        small += nd.ones((2, 3))


def test_conversions_to_python() -> None:
    x = nd.array([3.5])
    assert float(x) == x.asscalar() == x.item() == 3.5
    assert int(x) == 3
    assert bool(x)
    assert [10, 20, 30][nd.array(1)] == 20
    assert nd.array([[1, 2]]).tolist() == [[1, 2]]
    assert [y.asscalar() for y in nd.arange(3)] == [0, 1, 2]
    assert len(nd.zeros((4, 2))) == 4
    with pytest.raises(TypeError, match=r"^len\(\) of unsized object$"):  # numpy's message
        len(nd.array(1.0))
    assert f"{x:.2f}" == "3.50"
    assert f"{nd.zeros((2, 2))}" == "array: float32[2, 2]"
    assert repr(nd.ones(2)) == "[1. 1.]\n<NDArray float32[2]>"
    assert str(nd.ones(2)) == "[1. 1.]"
    assert np.from_dlpack(nd.ones(2)).tolist() == [1, 1]
    assert (nd.ones(2) == None) is False  # noqa: E711
    assert len({nd.ones(2), nd.ones(2)}) == 2
    for wrong in (bool, float, int):
        with pytest.raises(UsageError):
            wrong(nd.ones(2))


def test_arrays_beside_graph_values_become_constants() -> None:
    x = gk.input("x", [2], "float32")
    a = nd.array([1.0, 2.0])
    for y in (x * a, a * x, gk.mul(a, x), gk.add(x, a * 1.0)):
        assert isinstance(y, gk.Value)
        assert not isinstance(y, nd.NDArray)
    net = gk.Model({"y": a * x + a})
    a += 10  # the constant has the elements of the time when the node was made
    np.testing.assert_array_equal(net.run({"x": np.float32([1, 1])})["y"], [2, 4])


@in_one_item()
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: x + nd.ones((4,)), TypeMismatch, "do not broadcast"),
        (lambda x: x + nd.ones((2, 3), "float64"), TypeMismatch, "must have the same element type"),
        (lambda x: x @ x, TypeMismatch, "inner dimensions"),
        (lambda x: nd.arange(3, dtype="int32") + 1.5, UsageError, "float constant 1.5"),
        (lambda x: x[5], UsageError, "out of bounds"),
        (lambda x: x[0, 0, 0], UsageError, "too many indices"),
        (lambda x: x[[5]].asnumpy(), gk.GraphkitError, "outside axis 0"),
        (lambda x: x[np.array([True])], UsageError, "do not fit its axes"),
        (lambda x: x.reshape(4), TypeMismatch, "cannot reshape"),
        (lambda x: x.asscalar(), UsageError, "must have one element"),
        (lambda x: x.__setitem__(0, np.ones(5)), TypeMismatch, "cannot be broadcast"),
        (lambda x: x.__setitem__(0, "a"), UsageError, "assignment to"),
        (lambda x: nd.array("text"), UsageError, "strings are values of graphs only"),
        (lambda x: nd.zeros((-1,)), UsageError, "integers of at least 0"),
        (lambda x: nd.array([[1], [1, 2]]), InputError, "an array"),
        (lambda x: gk.relu(x, alpha=1), UsageError, "no argument"),
        (lambda x: x.softmax(), AttributeError, r"an NDArray has no attribute 'softmax'; write gk.softmax"),
    ],
)
def test_wrong_calls_raise_at_once(call, error, message) -> None:
    with pytest.raises(error, match=message):
        call(nd.ones((2, 3)))


def test_tables_of_types_and_operators_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ndarray, "_MOST_SIGNATURES", 50)
    kept = nd.zeros((3, 777))
    for i in range(200):
        nd.zeros((i, 3))
    assert len(ndarray._signatures) <= 50
    assert len(ndarray._used) < 4096
    assert nd.zeros((3, 777))._signature is kept._signature
    for i in range(4200):
        operators._operator_of("random_uniform", shape=(1,), high=float(i))
    assert len(operators._operators) <= 4096
    assert operators._operator_of("leaky_relu", alpha=0.0) is not operators._operator_of("leaky_relu", alpha=-0.0)


def test_large_arrays_begin_at_a_page() -> None:
    x = nd.zeros((128, 128))
    x.attach_grad()
    with nd.record():
        y = nd.hybridize(gk.tanh)(x)
    made = [x, x.grad, y, x + 1.0, x.copy(), nd.array(np.ones((128, 128))), nd.random.normal(shape=(128, 128))]
    assert [a._data.ctypes.data % 4096 for a in made if a is not None] == [0] * 7
    assert (x.asnumpy() == 0).all()
    assert (made[5].asnumpy() == 1).all()
