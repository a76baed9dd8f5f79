"""Functions, operators, methods and indices of arrays give the results of numpy, on generated operands."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.configuration import set_hypothesis_home_dir
from hypothesis.internal.conjecture import providers

import graphkit as gk
from graphkit.errors import GraphkitError

nd = gk.nd
HALVES = ["float16", "bfloat16"]
FLOATS = [*HALVES, "float32", "float64"]
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
NUMBERS = [*FLOATS, *INTEGERS]
ALL = [*NUMBERS, "bool"]
# Large enough for vectors and what remains of them.
SIZES = [0, 1, 2, 3, 5, 8, 17, 33]
SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5]
# Relative errors of one operation, in units of the last place, and of functions.
TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 2e-6, "float64": 1e-13}

FEW = pytest.mark.parametrize("examples", [3, pytest.param(60, marks=pytest.mark.full)])


@pytest.fixture(scope="module", autouse=True)
def _no_constants_of_sources() -> Iterator[None]:
    """Let hypothesis draw no constants of local sources, because it would parse every loaded module of graphkit.

    That takes seconds in each process, and these tests only draw shapes, choices and seeds.
    """
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(providers, "_get_local_constants", providers.Constants)
        yield


@pytest.fixture(scope="module", autouse=True)
def _files_of_hypothesis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the files that hypothesis writes out of the checkout."""
    set_hypothesis_home_dir(tmp_path_factory.mktemp("hypothesis"))
    yield
    set_hypothesis_home_dir(None)


def repeated(check: Callable[..., None], examples: int, *arguments: Any) -> None:
    """Call `check(data, *arguments)` for a fixed sequence of generated examples."""

    @settings(
        max_examples=examples, derandomize=True, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.data())
    def run(data: Any) -> None:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            check(data, *arguments)

    run()


def numpy_dtype(name: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def shapes(data: Any, most: int = 3, least: int = 0) -> tuple[int, ...]:
    return tuple(data.draw(st.lists(st.sampled_from(SIZES[: 8 if most < 3 else 6]), min_size=least, max_size=most)))


def sample(data: Any, shape: tuple[int, ...], dtype: str, special: bool = True, low: int = -6) -> np.ndarray:
    """Return numbers near 0 with few digits. special: some of them are infinite, NaN or zeros."""
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    if dtype == "bool":
        return np.asarray(rng.integers(0, 2, shape)).astype(bool)
    if dtype in INTEGERS:
        return np.asarray(rng.integers(0 if dtype[0] == "u" else low, 7, shape)).astype(dtype)
    found = np.asarray(rng.integers(8 * low, 49, shape) / 8)
    if special and rng.integers(2):
        found = np.where(rng.random(shape) < 0.3, rng.choice(SPECIAL, shape), found)
    return np.asarray(found).astype(numpy_dtype(dtype))


def assert_same(found: Any, expected: Any, scale: float = 1.0, what: object = "") -> None:
    """Check shape, dtype and elements. scale: largest absolute value in what was computed."""
    assert isinstance(found, nd.NDArray), (what, type(found))
    result, expected = found.asnumpy(), np.asarray(expected)
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype), what
    rtol = TOLERANCE.get(expected.dtype.name, 0.0)
    if expected.dtype.name in HALVES:
        result, expected = result.astype("f4"), expected.astype("f4")
    np.testing.assert_allclose(result, expected, rtol=rtol, atol=rtol * scale, err_msg=str(what))


# --- functions of one array ---------------------------------------------------------------------------

# numpy's functions that are operators of graphkit, and their dtypes.
OF_ONE = {
    **dict.fromkeys(
        (
            "exp", "log", "sqrt", "sin", "cos", "tan", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "arcsinh",
            "arccosh", "arctanh", "log1p", "expm1", "floor", "ceil", "rint", "isnan", "isinf", "isfinite", "fabs",
        ),
        ALL,
    ),
    **dict.fromkeys(("absolute", "square"), NUMBERS),
    **dict.fromkeys(("sign", "positive"), NUMBERS),
    "negative": [t for t in NUMBERS if t[0] != "u"],
    "reciprocal": FLOATS,
    "logical_not": ALL,
    "invert": [*INTEGERS, "bool"],
}  # fmt: skip


def check_of_one(data: Any, name: str) -> None:
    function = getattr(np, name)
    a = sample(data, shapes(data), data.draw(st.sampled_from(OF_ONE[name])))
    try:
        expected = function(a)
    except TypeError:  # numpy has no loop for this dtype
        return
    assert_same(function(nd.array(a)), expected, what=(name, a.dtype))


@FEW
def test_functions_of_one_array(examples: int) -> None:
    for name in OF_ONE:
        repeated(check_of_one, examples, name)


# --- operators and functions of two arrays ------------------------------------------------------------

OF_TWO: dict[str, tuple[Callable[[Any, Any], Any], list[str]]] = {
    **{name: (getattr(operator, name), NUMBERS) for name in ("add", "sub", "mul", "lt", "le", "gt", "ge", "eq", "ne")},
    **{name: (getattr(operator, name), [*INTEGERS, "bool"]) for name in ("and_", "or_", "xor")},
    "truediv": (operator.truediv, FLOATS),
    "floordiv": (operator.floordiv, NUMBERS),
    "mod": (operator.mod, NUMBERS),
    "pow": (operator.pow, NUMBERS),
    "divmod": (lambda a, b: divmod(a, b)[1], NUMBERS),
    "maximum": (np.maximum, NUMBERS),
    "minimum": (np.minimum, NUMBERS),
    "fmod": (np.fmod, NUMBERS),
    "floor_divide": (np.floor_divide, NUMBERS),
    "power": (np.power, FLOATS),
    "equal": (np.equal, ALL),
    "not_equal": (np.not_equal, ALL),
    "logical_and": (np.logical_and, ALL),
    "logical_or": (np.logical_or, ALL),
    "logical_xor": (np.logical_xor, ALL),
}
DIVISIONS = frozenset({"floordiv", "mod", "divmod", "fmod", "floor_divide"})


def pair(data: Any, name: str, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Return two operands whose shapes broadcast."""
    whole = shapes(data)
    second = tuple([size if data.draw(st.booleans()) else 1 for size in whole])[data.draw(st.integers(0, len(whole))) :]
    a, b = sample(data, whole, dtype), sample(data, second, dtype)
    if dtype in FLOATS and name in ("pow", "power"):
        a = np.where(a == -np.inf, -a, a)  # -inf ** 0.5 is inf for arrays of numpy, but NaN for its scalars
    if dtype in INTEGERS:
        if name in DIVISIONS:
            b = np.where(b == 0, np.ones_like(b), b)  # numpy gives 0, graphkit an error
        if name in ("pow", "power"):
            b = abs(b) % np.asarray(3, b.dtype)
    return (a, b) if data.draw(st.booleans()) or name in DIVISIONS or name in ("pow", "power") else (b, a)


def check_of_two(data: Any, name: str) -> None:
    function, dtypes = OF_TWO[name]
    a, b = pair(data, name, data.draw(st.sampled_from(dtypes)))
    expected = function(a, b)
    scale = 64.0 if name in DIVISIONS else 1.0
    for x, y in ((nd.array(a), nd.array(b)), (nd.array(a), b), (a, nd.array(b))):
        assert_same(function(x, y), expected, scale, (name, a.dtype, a.shape, b.shape))
    if b.ndim == 0 and name not in ("pow", "power") and a.dtype.name != "bfloat16":
        expected = function(a, b.item())
        assert_same(function(nd.array(a), b.item()), expected, scale, (name, a.dtype, a.shape, b.item()))


@FEW
def test_operators_of_two_arrays(examples: int) -> None:
    for name in OF_TWO:
        repeated(check_of_two, examples, name)


IN_PLACE = ["iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "iand", "ior", "ixor"]


def check_in_place(data: Any, name: str) -> None:
    dtypes = FLOATS if name == "itruediv" else [*INTEGERS, "bool"] if name in IN_PLACE[-3:] else NUMBERS
    dtype = data.draw(st.sampled_from(dtypes))
    a, b = pair(data, "mod", dtype)
    if np.broadcast_shapes(a.shape, b.shape) != a.shape:
        a, b = b, a
    x = nd.array(a)
    expected = getattr(operator, name)(a.copy(), b)
    found = getattr(operator, name)(x, nd.array(b))
    assert found is x
    assert_same(found, expected, 64.0, (name, a.dtype))


@FEW
def test_operators_in_place(examples: int) -> None:
    for name in IN_PLACE:
        repeated(check_in_place, examples, name)


# --- reductions ---------------------------------------------------------------------------------------

REDUCTIONS = ["sum", "prod", "max", "min", "mean", "var", "std", "any", "all"]


def axes(data: Any, rank: int) -> Any:
    """Return None, an axis, or a tuple of axes, some of them negative."""
    if rank == 0 or data.draw(st.booleans()):
        return data.draw(st.sampled_from([None, ()])) if rank == 0 else None
    chosen = data.draw(st.lists(st.integers(0, rank - 1), unique=True, max_size=rank))
    signed = tuple([a - rank if data.draw(st.booleans()) else a for a in chosen])
    return signed[0] if len(signed) == 1 and data.draw(st.booleans()) else signed


def check_reduction(data: Any, name: str) -> None:
    dtype = data.draw(st.sampled_from(ALL))
    a = sample(data, shapes(data), dtype, low=0 if name == "prod" else -6)
    if name == "prod":
        a = a.clip(0, 1) if dtype in INTEGERS else a % np.asarray(2, a.dtype) if dtype in FLOATS else a
    options: dict[str, Any] = {"axis": axes(data, a.ndim)}
    if data.draw(st.booleans()):
        options["keepdims"] = data.draw(st.booleans())
    if name in ("var", "std"):
        options["ddof"] = data.draw(st.integers(0, 1))
    x = nd.array(a)
    wide = a.astype("float64") if dtype in HALVES else a
    try:
        expected = getattr(wide, name)(**options)
    except ValueError:
        with pytest.raises(GraphkitError, match="no elements"):
            getattr(x, name)(**options)
        return
    if dtype in HALVES and name not in ("any", "all"):
        expected = np.asarray(expected).astype(a.dtype)
    with np.errstate(all="ignore"):
        finite = np.abs(np.where(np.isfinite(wide), wide, 0)).astype("float64")
    scale = 1 + float((finite**2 if name in ("var", "std") else finite).sum())
    assert_same(getattr(x, name)(**options), expected, scale, (name, dtype, a.shape, options))
    assert_same(getattr(np, name)(x, **options), expected, scale, (name, dtype, a.shape, options))


@FEW
def test_reductions(examples: int) -> None:
    for name in REDUCTIONS:
        repeated(check_reduction, 2 * examples, name)


def check_one_axis(data: Any, name: str) -> None:
    dtype = data.draw(st.sampled_from(ALL))
    a = sample(data, shapes(data), dtype, special=name != "cumsum")
    axis = None if a.ndim == 0 or data.draw(st.booleans()) else data.draw(st.integers(-a.ndim, a.ndim - 1))
    x = nd.array(a)
    wide = a.astype("float64") if dtype in HALVES else a
    try:
        expected = getattr(wide, name)(axis)
    except ValueError:
        with pytest.raises(GraphkitError, match="no elements"):
            getattr(x, name)(axis)
        return
    if dtype in HALVES and name == "cumsum":
        expected = np.asarray(expected).astype(a.dtype)
    scale = 1 + 8 * float(a.size)
    for found in (getattr(x, name)(axis), getattr(np, name)(x, axis=axis)):
        assert_same(found, expected, scale, (name, dtype, a.shape, axis))
    if name != "cumsum":
        assert_same(getattr(x, name)(axis, keepdims=True), getattr(a, name)(axis, keepdims=True))


@FEW
def test_places_and_running_sums(examples: int) -> None:
    for name in ("argmax", "argmin", "cumsum"):
        repeated(check_one_axis, 3 * examples, name)


# --- shapes -------------------------------------------------------------------------------------------


def _reshaped(data: Any, a: Any) -> Callable[[Any], Any]:
    size = int(np.prod(a.shape))
    first = data.draw(st.sampled_from([n for n in range(1, max(size, 1) + 1) if size % n == 0]))
    return data.draw(
        st.sampled_from(
            [
                lambda x: x.reshape(first, -1) if size else x.reshape(a.shape),
                lambda x: x.reshape((size // first, first)),
                lambda x: np.reshape(x, (first, size // first, 1)),
                lambda x: x.reshape(-1) if a.size else x.reshape(0),
            ]
        )
    )


def _axis(data: Any, a: Any, more: int = 0) -> int:
    rank = a.ndim + more
    return data.draw(st.integers(-rank, rank - 1))


# For each function: the least number of axes, and what returns a function of arrays.
SHAPED: dict[str, tuple[int, Callable[[Any, Any], Callable[[Any], Any]]]] = {
    "reshape": (0, _reshaped),
    "transpose": (0, lambda data, a: (lambda order: lambda x: x.transpose(order))(
        data.draw(st.permutations(range(a.ndim))))),
    "T": (0, lambda data, a: lambda x: x.T),
    "mT": (2, lambda data, a: lambda x: x.mT),
    "np.transpose": (0, lambda data, a: np.transpose),
    "ravel": (0, lambda data, a: lambda x: x.ravel()),
    "flatten": (0, lambda data, a: lambda x: x.T.flatten()),
    "squeeze": (0, lambda data, a: lambda x: x.squeeze()),
    "np.squeeze": (0, lambda data, a: lambda x: np.squeeze(x[None], 0)),
    "expand_dims": (0, lambda data, a: (lambda axis: lambda x: np.expand_dims(x, axis))(_axis(data, a, 1))),
    "swapaxes": (1, lambda data, a: (lambda p, q: lambda x: x.swapaxes(p, q))(_axis(data, a), _axis(data, a))),
    "repeat": (1, lambda data, a: (lambda n, axis: lambda x: x.repeat(n, axis))(
        data.draw(st.integers(0, 3)), _axis(data, a))),
    "repeat all": (0, lambda data, a: lambda x: np.repeat(x, 2)),
    "concatenate": (1, lambda data, a: (lambda axis: lambda x: np.concatenate([x, x], axis))(_axis(data, a))),
    "concatenate all": (0, lambda data, a: lambda x: np.concatenate([x, x], None)),
    "stack": (0, lambda data, a: (lambda axis: lambda x: np.stack([x, x], axis))(_axis(data, a, 1))),
    "take": (1, lambda data, a: (lambda axis: lambda x: x.take([0, -1, 0], axis) if a.shape[axis] else x)(
        _axis(data, a))),
    "take out of range": (1, lambda data, a: (lambda mode: lambda x: np.take(x, [[0, -9], [70, 1]], 0, mode=mode) if
        len(a) else x)(data.draw(st.sampled_from(["wrap", "clip"])))),
    "where": (0, lambda data, a: lambda x: np.where(x == x, x, 1)),
    "clip": (0, lambda data, a: (lambda p, q: lambda x: x.clip(p, q))(*data.draw(
        st.sampled_from([(0, 3), (None, 2), (1, None), (3, 1)])))),
    "round": (0, lambda data, a: lambda x: x.round()),
    "copy": (0, lambda data, a: lambda x: x.copy()),
    "astype": (0, lambda data, a: (lambda t: lambda x: x.astype(numpy_dtype(t)))(data.draw(
        st.sampled_from([*FLOATS, "bool"])))),
    "zeros_like": (0, lambda data, a: lambda x: nd.zeros_like(x) if isinstance(x, nd.NDArray) else np.zeros_like(x)),
}  # fmt: skip
NOT_OF_BOOLEANS = frozenset({"clip", "round", "where"})


def check_shaped(data: Any, name: str) -> None:
    least, make = SHAPED[name]
    dtypes = NUMBERS if name in NOT_OF_BOOLEANS else ALL
    # A number beside bfloat16 gives float32 or float64 in numpy.
    dtype = data.draw(st.sampled_from([t for t in dtypes if t != "bfloat16"] if name in NOT_OF_BOOLEANS else dtypes))
    a = sample(data, shapes(data, least=least), dtype)
    function = make(data, a)
    assert_same(function(nd.array(a)), function(a), what=(name, a.dtype, a.shape))


@FEW
def test_shapes_and_parts(examples: int) -> None:
    for name in SHAPED:
        repeated(check_shaped, examples, name)


def check_products(data: Any) -> None:
    dtype = data.draw(st.sampled_from(["float32", "float64", "int32", "int64"]))
    m, n, k, batch = [data.draw(st.sampled_from(SIZES)) for _ in range(4)]
    a = sample(data, data.draw(st.sampled_from([(k,), (m, k), (batch, m, k), (1, m, k)])), dtype, special=False)
    b = sample(data, data.draw(st.sampled_from([(k,), (k, n), (batch, k, n)])), dtype, special=False)
    scale = 64.0 * (k + 1)
    assert_same(nd.array(a) @ nd.array(b), a @ b, scale)
    assert_same(np.dot(nd.array(a), nd.array(b)), np.dot(a, b), scale)
    assert_same(nd.array(a).dot(b), a.dot(b), scale)


@FEW
def test_products(examples: int) -> None:
    repeated(check_products, 5 * examples)


# --- indexing -----------------------------------------------------------------------------------------


def _slice(data: Any, size: int) -> slice:
    bound = st.one_of(st.none(), st.integers(-size - 1, size + 1))
    step = data.draw(st.sampled_from([None, 1, 2, -1, -2, 3]))
    return slice(data.draw(bound), data.draw(bound), step)


def index(data: Any, shape: tuple[int, ...]) -> Any:
    """Return an index of integers, slices, None, ..., booleans, and arrays whose shapes broadcast."""
    keys: list[Any] = []
    count = data.draw(st.sampled_from([1, 1, 2, 3]))
    kinds = st.sampled_from(["slice", "slice", "integer", "array", "array", "booleans"])
    used = 0
    while used < len(shape) and data.draw(st.integers(0, 4)):
        size = shape[used]
        kind = data.draw(kinds)
        if data.draw(st.integers(0, 5)) == 0:
            keys.append(None)
        if kind == "slice" or size == 0:
            keys.append(_slice(data, size))
        elif kind == "integer":
            keys.append(data.draw(st.integers(-size, size - 1)))
        elif kind == "array":
            found = np.array(data.draw(st.lists(st.integers(-size, size - 1), min_size=count, max_size=count)))
            keys.append(data.draw(st.sampled_from([found, found.tolist(), found.astype("int32")[None]])))
        else:
            chosen = np.zeros(size, bool)
            chosen[data.draw(st.permutations(range(size)))[:count]] = True
            keys.append(chosen)
        used += 1
    if data.draw(st.integers(0, 3)) == 0:
        keys.insert(data.draw(st.integers(0, len(keys))), ...)
    return keys[0] if len(keys) == 1 and data.draw(st.booleans()) else tuple(keys)


def check_index(data: Any) -> None:
    a = sample(data, shapes(data), data.draw(st.sampled_from(ALL)))
    key = index(data, a.shape)
    x = nd.array(a)
    try:
        expected = a[key]
    except IndexError:
        with pytest.raises(GraphkitError):
            x[key]
        return
    assert_same(x[key], expected, what=(a.shape, key))
    values = sample(data, np.shape(expected)[data.draw(st.integers(0, 1)) :], a.dtype.name)
    places = np.arange(a.size).reshape(a.shape)[key]
    if np.unique(places).size == places.size or values.ndim == 0:
        a[key] = values
        x[key] = values
        assert_same(x, a, what=(a.shape, key))


@FEW
def test_indices_and_assignment(examples: int) -> None:
    repeated(check_index, 20 * examples)


def check_index_gradient(data: Any) -> None:
    a = sample(data, shapes(data), "float64", special=False)
    key = index(data, a.shape)
    x = nd.array(a)
    x.attach_grad()
    try:
        weight = sample(data, np.shape(a[key]), "float64", special=False)
    except IndexError:
        return
    with nd.record():
        y = x[key]
    y.backward(nd.array(weight))
    expected = np.zeros_like(a)
    np.add.at(expected, key, weight)
    assert_same(x.grad, expected, what=(a.shape, key))


@FEW
def test_gradients_of_indices(examples: int) -> None:
    repeated(check_index_gradient, 4 * examples)


# --- creation -----------------------------------------------------------------------------------------

CREATION: dict[str, Callable[[Any, Any, Any], Any]] = {
    "zeros": lambda m, data, t: m.zeros(data[0], dtype=t),
    "ones": lambda m, data, t: m.ones(data[0], dtype=t),
    "full": lambda m, data, t: m.full(data[0], 1, dtype=t),
    "full_like": lambda m, data, t: m.full_like(m.ones(data[0], dtype=t), fill_value=1),
    "ones_like": lambda m, data, t: m.ones_like(m.ones(data[0], dtype=t), dtype="float32"),
    "arange": lambda m, data, t: m.arange(data[1], data[2], data[3], dtype="float64"),
    "arange of one": lambda m, data, t: m.arange(data[2], dtype="int64"),
    "linspace": lambda m, data, t: m.linspace(data[1], data[2], abs(data[3]), data[3] > 0, dtype="float64"),
    "eye": lambda m, data, t: m.eye(abs(data[1]), abs(data[2]), data[3], dtype=t),
    "array": lambda m, data, t: m.array(np.ones(data[0]).tolist(), dtype=t),
}


def check_creation(data: Any, name: str) -> None:
    small = st.integers(-6, 6)
    given = (shapes(data), data.draw(small), data.draw(small), data.draw(small.filter(bool)))
    dtype = numpy_dtype(data.draw(st.sampled_from(ALL)))
    if name == "linspace":
        given = (*given[:3], given[3])

    def made(module: Any) -> Any:
        if name == "linspace":
            return module.linspace(given[1], given[2], abs(given[3]), endpoint=given[3] > 0, dtype="float64")
        return CREATION[name](module, given, dtype)

    assert_same(made(nd), made(np), 8.0, (name, given, dtype))


@FEW
def test_functions_that_make_arrays(examples: int) -> None:
    for name in CREATION:
        repeated(check_creation, examples, name)
