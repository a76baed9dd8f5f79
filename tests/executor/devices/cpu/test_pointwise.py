"""The pointwise machine: broadcasts, casts, chains and special numbers, in all element types and instruction sets."""

import itertools

import numpy as np
import pytest
from combinations import in_one_item, seeds
from kernel_runs import run_kernel

import graphkit as gk
from graphkit.executor.devices.cpu import native
from graphkit.executor.devices.cpu.pointwise import kernel_of as chain_kernel
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.registry import make_kernel
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import FLOATS, INTEGERS, DType, TensorType, dtype_of
from graphkit.ops import F, Op, op, registry
from graphkit.ops.evaluate import evaluate, run_node
from graphkit.ops.pointwise import scalar_like

# Native and reference round differently, the reference in every one of its steps.
TOLERANCE = {
    DType.FLOAT32: {"rtol": 4e-6, "atol": 3e-7},
    DType.FLOAT64: {"rtol": 1e-14, "atol": 1e-15},
    DType.FLOAT16: {"rtol": 1e-3, "atol": 1e-7},
    DType.BFLOAT16: {"rtol": 8e-3, "atol": 1e-30},
}


def check(got, expected):
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    dtype = dtype_of(got.dtype)
    if dtype not in TOLERANCE:
        np.testing.assert_array_equal(got, expected)
        return
    wide = np.float64
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(got.astype(wide), expected.astype(wide), **TOLERANCE[dtype])


def node_of(op, *arrays):
    values = [None if a is None else Value(TensorType(dtype_of(a.dtype), a.shape)) for a in arrays]
    return Node(op, values)


def kernel_of(node, threads=1):
    kernel = make_kernel("cpu", node, KernelContext(threads=threads, used_outputs=(True,) * len(node.outputs)))
    assert kernel is not None, node.describe()
    return kernel


# --- broadcasting ---------------------------------------------------------------------------------

SHAPES = [
    ((5,), (5,)),
    ((1000,), ()),
    ((3, 700), (700,)),
    ((3, 700), (3, 1)),
    ((700, 3), (3,)),
    ((700, 3), (700, 1)),
    ((4, 1, 6, 1), (5, 1, 7)),
    ((2, 3, 49), (3, 1)),
    ((2, 3, 1, 65), (3, 4, 1)),
    ((1, 1), (2, 2)),
    ((0, 3), (1, 3)),
    ((), ()),
    ((2, 0), (1, 1)),
    ((64, 1), (1, 64)),
    ((1, 3000), (2, 1, 1)),
    ((129, 1, 200), (1, 3, 200)),
]


def random_array(rng, shape, dtype):
    dtype = dtype_of(dtype)
    if dtype is DType.BOOL:
        return rng.integers(0, 2, shape).astype(bool)
    if dtype in INTEGERS:
        info = np.iinfo(dtype.numpy)
        values = rng.integers(info.min, info.max, shape, dtype.numpy, endpoint=True)
        small = rng.integers(0, 5, shape).astype(dtype.numpy)
        return np.where(rng.random(shape) < 0.5, values, small)
    return np.asarray(rng.standard_normal(shape)).astype(dtype.numpy)


@in_one_item("values")
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "int64", "float16", "bfloat16", "uint16"])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_broadcasting(shapes, dtype, isa):
    rng = np.random.default_rng(3)
    a, b = (random_array(rng, s, dtype) for s in shapes)
    for name, threads in itertools.product(("Add", "Sub", "Less"), (1, 3)):
        for arrays in ((a, b), (b, a)):
            node = node_of(registry.get("", name)(), *arrays)
            (got,) = run_kernel(kernel_of(node, threads), node, list(arrays))
            check(got, run_node(node, arrays)[0])


@in_one_item()
@pytest.mark.parametrize("seed", range(25))
def test_random_broadcasts_of_three_operands(seed, isa):
    rng = np.random.default_rng(seed)
    full = rng.integers(1, 9, rng.integers(1, 6))
    full[-1] = rng.choice([1, 3, 16, 191, 192, 300, 1025])
    dtype = ("float32", "int32", "uint8", "float16", "float64")[seed % 5]

    def part(dtype):
        kept = rng.random(len(full)) < 0.7
        shape = np.where(kept, full, 1)[rng.integers(0, len(full)) if rng.random() < 0.3 else 0 :]
        return random_array(rng, tuple(int(n) for n in shape), dtype)

    arrays = [part("bool"), part(dtype), part(dtype)]
    node = node_of(registry.get("", "Where")(), *arrays)
    for threads in (1, 3):
        (got,) = run_kernel(kernel_of(node, threads), node, arrays)
        check(got, run_node(node, arrays)[0])


def test_a_huge_broadcast_is_not_materialised(isa):
    column, row = np.arange(900, dtype=np.float32)[:, None], np.arange(700, dtype=np.float32)
    node = node_of(registry.get("", "Mul")(), column, row)
    kernel = kernel_of(node, 3)
    assert kernel.scratch_bytes < 1 << 17
    check(run_kernel(kernel, node, [column, row])[0], column * row)


def test_shapes_that_do_not_broadcast_are_refused():
    with pytest.raises(native.Error, match="broadcast"):
        native.Pointwise(
            "Add", [2, 3], inputs=[([2], "float32"), ([3], "float32")], constants=[],
            instructions=[("add", [0, 1], "")], outputs=[(2, "float32")],
        )  # fmt: skip


# --- element types --------------------------------------------------------------------------------

CASTABLE = sorted(FLOATS | INTEGERS | {DType.BOOL}, key=str)


@in_one_item()
@pytest.mark.parametrize("source", CASTABLE, ids=str)
@pytest.mark.parametrize("target", CASTABLE, ids=str)
def test_casts(source, target, every_isa):
    rng = np.random.default_rng(5)
    x = random_array(rng, 333, source)
    if source in FLOATS and target in INTEGERS:
        # Conversion of numbers outside of the target's range is unspecified.
        x = (np.abs(x.astype(np.float32)) * 30).astype(source.numpy)
        if target is DType.UINT64 and source in (DType.FLOAT32, DType.FLOAT64):
            x[::5], x[1::5] = 2.0**63, 2.0**64 - 2.0**40
    elif source in FLOATS and target in FLOATS:
        special = [
            np.inf,
            -np.inf,
            np.nan,
            0.0,
            -0.0,
            65519.0,
            65520.0,
            1e-8,
            2.0**-25 * 1.000001,
            1 + 2.0**-11 + 2.0**-30,
        ]
        with np.errstate(all="ignore"):
            x = np.concatenate([x, np.array(special).astype(source.numpy)])
    node = node_of(registry.get("", "Cast")(to=target), x)
    (got,) = run_kernel(kernel_of(node), node, [x])
    expected = run_node(node, [x])[0]
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got.astype(np.float64), expected.astype(np.float64))


@in_one_item()
@pytest.mark.parametrize("dtype", sorted(INTEGERS, key=str), ids=str)
def test_integers_wrap_around_and_divide_as_the_standard_says(dtype, isa):
    rng = np.random.default_rng(6)
    info = np.iinfo(dtype.numpy)
    edge = np.array([info.min, info.max, 0, 1, 2, info.min + 1, info.max - 1], dtype.numpy)
    edge = np.concatenate([edge, -edge[3:4]])
    a, b = (x.ravel() for x in np.meshgrid(edge, edge))
    a, b = (np.concatenate([x, random_array(rng, 200, dtype)]) for x in (a, b))
    for name in ("Add", "Sub", "Mul", "Max", "Min", "Less", "GreaterOrEqual", "Equal", "BitwiseXor"):
        node = node_of(registry.get("", name)(), a, b)
        check(run_kernel(kernel_of(node), node, [a, b])[0], run_node(node, [a, b])[0])
    divisors = np.where(b == 0, np.array(3, dtype.numpy), b)
    for division in (registry.get("", "Div")(), *(registry.get("", "Mod")(fmod=fmod) for fmod in (False, True))):
        node = node_of(division, a, divisors)
        check(run_kernel(kernel_of(node), node, [a, divisors])[0], run_node(node, [a, divisors])[0])
        with pytest.raises(RuntimeError, match="integer division by zero"):
            run_kernel(kernel_of(node), node, [a, np.zeros_like(b)])
    for direction in ("LEFT", "RIGHT"):
        node = node_of(registry.get("", "BitShift")(direction=direction), a, b)
        check(run_kernel(kernel_of(node), node, [a, b])[0], run_node(node, [a, b])[0])
    exponents = (np.arange(len(a)) % 7).astype(dtype.numpy)
    node = node_of(registry.get("", "Pow")(), a, exponents)
    check(run_kernel(kernel_of(node), node, [a, exponents])[0], run_node(node, [a, exponents])[0])


@in_one_item()
@pytest.mark.parametrize("dtype", sorted(INTEGERS, key=str), ids=str)
def test_integer_quotients_and_powers_of_whole_vectors(dtype, every_isa):
    """Vectors of large and small numbers, with single divisors, single exponents and negative exponents."""
    rng = np.random.default_rng(16)
    info = np.iinfo(dtype.numpy)
    a, b = (rng.integers(info.min, info.max, 1000, dtype.numpy, endpoint=True) for _ in range(2))
    shifts = rng.integers(0, info.bits, 1000).astype(dtype.numpy)
    a[:700] >>= shifts[:700]
    b[300:] >>= shifts[300:]
    a[::7], a[1::7] = b[::7], b[1::7] - 1  # quotients that are integers, or nearly
    b[b == 0] = 1
    for divisor in (b, np.full(1, 7, dtype.numpy), np.full(1, info.max, dtype.numpy)):
        for division in (registry.get("", "Div")(), *(registry.get("", "Mod")(fmod=fmod) for fmod in (False, True))):
            node = node_of(division, a, divisor)
            check(run_kernel(kernel_of(node), node, [a, divisor])[0], run_node(node, [a, divisor])[0])
            for at in (0, 500, 999):
                zero = np.broadcast_to(divisor, a.shape).copy()
                zero[at] = 0
                with pytest.raises(RuntimeError, match="integer division by zero"):
                    run_kernel(kernel_of(node_of(division, a, zero)), node, [a, zero])
    exponents = rng.integers(0, 70, 1000).astype(dtype.numpy)
    if info.min < 0:
        a[400:500] = rng.choice(np.array([-1, 1, 2, 3], dtype.numpy), 100)
        exponents[400:500] = -exponents[400:500]
    for exponent in (exponents, np.full(1, 2, dtype.numpy), np.full(1, 0, dtype.numpy)):
        node = node_of(registry.get("", "Pow")(), a, exponent)
        check(run_kernel(kernel_of(node), node, [a, exponent])[0], run_node(node, [a, exponent])[0])


def test_remainders_of_doubles_are_exact(every_isa):
    """Huge quotients, quotients that are nearly integers, and subnormal numbers."""
    rng = np.random.default_rng(17)
    a = rng.standard_normal(4000) * 2.0 ** rng.integers(-60, 60, 4000)
    b = rng.standard_normal(4000) * 2.0 ** rng.integers(-60, 60, 4000)
    a[::5] = np.nextafter(b[::5] * rng.integers(1, 1 << 20, 800), 0)
    a[1::50], b[1::50] = 1e300, 3e-310
    a[2::50], b[2::50] = -5e-324, 1.5e-323
    b[3::50], a[4::50], b[5::50] = np.inf, -np.inf, 0
    node = node_of(registry.get("", "Mod")(fmod=True), a, b)
    (got,) = run_kernel(kernel_of(node), node, [a, b])
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(got, np.fmod(a, b))
    assert np.array_equal(np.signbit(got[np.isfinite(got)]), np.signbit(a[np.isfinite(got)]))


@in_one_item()
@pytest.mark.parametrize("a", sorted(FLOATS | INTEGERS, key=str), ids=str)
@pytest.mark.parametrize("b", ["float32", "float64", "float16", "int8", "int32", "int64", "uint32", "uint64"])
def test_powers_of_mixed_types(a, b):
    x = np.array([1, 2, 3, 5, 4, 7], np.float64).astype(a.numpy)
    y = np.array([0, 1, 2, 3, 1, 2], np.float64).astype(dtype_of(b).numpy)
    node = node_of(registry.get("", "Pow")(), x, y)
    check(run_kernel(kernel_of(node), node, [x, y])[0], run_node(node, [x, y])[0])


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint64"])
@pytest.mark.parametrize("exponent", [np.float32(1), np.float64(2), np.float16(3), np.float32(3)], ids=repr)
def test_integers_with_whole_float_exponents_are_exact(dtype, exponent):
    """Constant and fed exponents, and the reference, give the bits of products, also beyond 2^53."""
    x = np.array([94906267, 2**31 - 1, 46341, 200000, 7, 0], dtype)
    expected = np.prod(np.stack([x] * int(exponent)), axis=0, dtype=dtype)
    single, several = np.asarray(exponent), np.full(len(x), exponent)
    for y in (single, several):
        node = node_of(registry.get("", "Pow")(), x, y)
        check(run_node(node, [x, y])[0], expected)
        check(run_kernel(kernel_of(node), node, [x, y])[0], expected)
    fed = gk.input("x", x.shape, dtype)
    check(gk.Model({"y": F.pow(fed, F.constant(value=single))}).run({"x": x})["y"], expected)


SPECIAL = np.array(
    [0.0, -0.0, np.inf, -np.inf, np.nan, 1.5, -2.5, 0.5, 1e-40, -1e-40, 3e38, 2.0**23 + 1, -0.5], np.float32
)


@in_one_item()
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["Max", "Min", "Add", "Mul", "Div", "Mod", "Equal", "Less", "LessOrEqual", "Pow"])
def test_special_numbers_of_two_operands(name, dtype, isa):
    a, b = (x.ravel().astype(dtype) for x in np.meshgrid(SPECIAL, SPECIAL))
    if name == "Mod":  # numpy and C agree on nothing else at infinities
        a, b = (x[np.isfinite(a) & np.isfinite(b) & (b != 0)] for x in (a, b))
    node = node_of(registry.get("", name)(), a, b)
    check(run_kernel(kernel_of(node), node, [a, b])[0], run_node(node, [a, b])[0])


@in_one_item()
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize(
    "name",
    [
        *("Abs", "Neg", "Sign", "Floor", "Ceil", "Round", "Relu", "IsNaN", "IsInf", "Sqrt", "Elu"),
        *("ThresholdedRelu", "HardSigmoid", "HardSwish"),
    ],
)
def test_special_numbers_of_one_operand(name, dtype, isa):
    with np.errstate(over="ignore"):
        x = SPECIAL.astype(dtype_of(dtype).numpy)
    node = node_of(registry.get("", name)(), x)
    (got,), (expected,) = run_kernel(kernel_of(node), node, [x]), run_node(node, [x])
    check(got, expected)
    if got.dtype != bool and name not in ("Sign", "Relu", "Elu"):
        np.testing.assert_array_equal(np.signbit(got[:2].astype(float)), np.signbit(expected[:2].astype(float)))


@in_one_item()
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "uint8"])
def test_clip_of_special_numbers(dtype, isa):
    with np.errstate(all="ignore"):
        special = SPECIAL.astype(dtype) if dtype.startswith("float") else np.array([0, 1, 3, 100, 255], dtype)
    rng = np.random.default_rng(13)
    for low, high in itertools.product(special, special):
        x = rng.permutation(np.resize(special, 77))
        node = node_of(registry.get("", "Clip")(), x, np.array(low), np.array(high))
        arrays = [x, np.array(low), np.array(high)]
        np.testing.assert_array_equal(run_kernel(kernel_of(node), node, arrays)[0], run_node(node, arrays)[0])


@in_one_item()
@pytest.mark.parametrize("size", [1, 7, 63, 333])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "int16", "int64", "bool"])
def test_selections_and_comparisons(dtype, size, every_isa):
    rng = np.random.default_rng(14)
    a, b = (random_array(rng, size, dtype) for _ in range(2))
    b = np.where(rng.random(size) < 0.5, a, b)
    condition = rng.random(size) < 0.5
    equal, where = node_of(registry.get("", "Equal")(), a, b), node_of(registry.get("", "Where")(), condition, a, b)
    np.testing.assert_array_equal(run_kernel(kernel_of(equal), equal, [a, b])[0], a == b)
    np.testing.assert_array_equal(run_kernel(kernel_of(where), where, [condition, a, b])[0], np.where(condition, a, b))


@in_one_item("pairs")
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "int64", "uint16"])
@pytest.mark.parametrize("name", ["Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal"])
@pytest.mark.parametrize("shared", [False, True], ids=["selection alone", "another reader"])
def test_selections_by_comparisons(dtype, name, shared, every_isa):
    """A comparison is part of the selection if nothing else reads it; both have float32 or other elements."""
    rng = np.random.default_rng(13)
    arrays = [random_array(rng, (5, 67), dtype) for _ in range(3)]
    if dtype in ("float32", "float64", "float16"):
        arrays[0][0, :4], arrays[1][0, 2:6] = np.nan, np.nan
    arrays[1][1] = arrays[0][1]
    inputs = [Value(TensorType(dtype, a.shape), f"x{i}") for i, a in enumerate(arrays)]
    condition = getattr(
        F, {"LessOrEqual": "less_or_equal", "GreaterOrEqual": "greater_or_equal"}.get(name, name.lower())
    )(*inputs[:2])
    y = F.where(condition, F.add(inputs[0], inputs[2]), inputs[1])
    other = F.where(condition, np.float32(1), np.float32(-2))
    outputs = [y, F.not_(condition)] if shared else [y, other]
    expected = evaluate(Graph(inputs, outputs), arrays)
    model = gk.Model({f"y{i}": v for i, v in enumerate(outputs)})
    for threads in (1, 3):
        got = model.compile(threads=threads).run({f"x{i}": a for i, a in enumerate(arrays)})
        for i, array in enumerate(expected):
            check(got[f"y{i}"], array)


@in_one_item()
@pytest.mark.parametrize("half", ["float16", "bfloat16"])
@pytest.mark.parametrize("source", ["float32", "float64", "int32"])
def test_a_cast_to_a_half_float_rounds_once(source, half, isa):
    x = (np.random.default_rng(15).standard_normal(333) * 1000).astype(source)
    node = node_of(registry.get("", "Cast")(to=half), x)
    kernel = kernel_of(node)
    assert kernel.registers == (0 if source == "float32" else 1)
    check(run_kernel(kernel, node, [x])[0], run_node(node, [x])[0])

    def build(x):  # the rounded value is read, too
        narrow = F.cast(x, to=half)
        return narrow, F.cast(narrow, to=source)

    node, graph = body_of([x], build)
    for got, expected in zip(run_kernel(body_kernel(node, graph), node, [x]), evaluate(graph, [x]), strict=True):
        check(got, expected)


# --- memory ---------------------------------------------------------------------------------------


@in_one_item()
@pytest.mark.parametrize("size", [0, 1, 15, 1024, 5000])
def test_outputs_may_take_the_memory_of_operands(size, isa):
    rng = np.random.default_rng(7)
    a, b = (rng.standard_normal(size).astype(np.float32) for _ in range(2))
    node = node_of(registry.get("", "Sub")(), a, b)
    kernel = kernel_of(node, 3)
    assert set(kernel.inplace) == {(0, 0), (1, 0)}
    for position in (0, 1):
        operands = [a.copy(), b.copy()]
        kernel(operands, [operands[position]])
        np.testing.assert_array_equal(operands[position], a - b)


def test_an_operand_that_is_read_after_a_result_is_written_keeps_its_memory():
    instructions = [("neg", [0], ""), ("add", [0, 1], "")]
    kernel = native.Pointwise(
        "both", [9], inputs=[([9], "float32"), ([9], "float32")], constants=[], instructions=instructions,
        outputs=[(2, "float32"), (3, "float32")],
    )  # fmt: skip
    assert set(kernel.inplace) == {(0, 1), (1, 1)}
    x, y = np.arange(9, dtype=np.float32), np.full(9, 5, np.float32)
    z = y.copy()
    negated, total = np.empty_like(x), z
    kernel([x, z], [negated, total])
    np.testing.assert_array_equal(negated, -x)
    np.testing.assert_array_equal(total, x + y)


def test_smaller_and_narrower_operands_keep_their_memory():
    a, row = np.zeros((2, 3), np.float32), np.zeros(3, np.float32)
    assert kernel_of(node_of(registry.get("", "Add")(), a, row)).inplace == [(0, 0)]
    assert kernel_of(node_of(registry.get("", "Less")(), a, a)).inplace == []


@in_one_item()
@pytest.mark.parametrize("offset", [0, 1, 3])
def test_large_results_pass_the_caches(offset, isa):
    size = 3 << 20
    a, b = (np.arange(size + 16, dtype=np.float64)[offset : offset + size] * k for k in (1, 2))
    assert a.nbytes * 3 > 1 << 26
    node = node_of(registry.get("", "Add")(), a, b)
    out = np.zeros(size + 16, np.float64)
    kernel_of(node, 3)([a, b], [out[offset : offset + size]])
    np.testing.assert_array_equal(out[offset : offset + size], a + b)
    assert not out[:offset].any()
    assert not out[offset + size :].any()


@in_one_item()
@pytest.mark.parametrize("size", [1, 17, 1000, 1030, 4096])
def test_nothing_beside_the_result_is_written(size, isa):
    for dtype in (np.uint8, np.float16, np.float32, np.float64):
        x = np.ones(size, dtype)
        around = np.full(size + 200, 9, dtype)
        node = node_of(registry.get("", "Add")(), x, x)
        kernel_of(node)([x, x], [around[100 : 100 + size]])
        assert (around[:100] == 9).all()
        assert (around[100 + size :] == 9).all()
        assert (around[100 : 100 + size] == 2).all()


# --- bodies of several operators -------------------------------------------------------------------


@op
class Body(Op):
    """Stands for a graph, as fused regions do."""

    body: Graph
    domain = "test.pointwise"
    inputs, outputs = ("xs*",), ("ys*",)

    def infer(self, *xs):
        return tuple(v.type for v in self.body.outputs)


registry.remove(Body)


def body_of(arrays, build):
    """A kernel for the graph that `build` makes of symbols, its node, and the graph."""
    values = [Value(TensorType(dtype_of(a.dtype), a.shape)) for a in arrays]
    results = build(*values)
    graph = Graph(values, results if isinstance(results, tuple) else (results,))
    return Node(Body(body=graph), values), graph


def body_kernel(node, graph, threads=1):
    used = (True,) * len(graph.outputs)
    return chain_kernel("Body", node, graph.inputs, graph.outputs, KernelContext(threads=threads, used_outputs=used))


def deep(x, y):
    """Some sixty operators."""
    for step in range(12):
        x = F.tanh(x * y + 1.0) * 0.5 + F.sigmoid(y - x) - F.relu(x * (0.1 * step))
        y = F.exp(-(y * y)) + x
    return x, y


BODIES = {
    "chain": lambda x, y: -(F.sigmoid(F.gelu(x * y + 1.0, approximate="tanh")) * y - x),
    "shared": lambda x, y: (lambda s: (F.sigmoid(s), -F.exp(s), s))(x + y),
    "deep": deep,
    "select": lambda x, y: F.where(
        F.and_(x < y, F.not_(F.equal(x, y))), F.cast(F.cast(x, to="int32"), to=x.dtype), y * y
    ),
    "powers": lambda x, y: F.pow(x, scalar_like(3.0, x)) + F.pow(F.abs(y), scalar_like(0.75, y)) * 2.0 - x / 3.0,
    "through halves": lambda x, y: F.cast(F.cast(x, to="float16") * F.cast(y, to="float16"), to=x.dtype) + 1.0,
    "operands as results": lambda x, y: (x + 0.0 * y, y * 1.0 + 0.0 * x, x + y),
}


@in_one_item("pairs")
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize(
    "shapes", [((3000,), (3000,)), ((40, 33), (33,)), ((5, 300), (5, 1)), ((), ()), ((7, 1), (1, 5))]
)
@pytest.mark.parametrize("name", BODIES)
def test_bodies(name, shapes, dtype, isa):
    rng = np.random.default_rng(11)
    arrays = [random_array(rng, s, dtype) for s in shapes]
    joint = np.broadcast_shapes(*shapes)
    node, graph = body_of(arrays, lambda x, y: BODIES[name](x, y))
    if any(v.tensor.static_shape != joint for v in node.outputs):
        pytest.fail("a body's results have one shape")
    expected = evaluate(graph, arrays)
    for threads in (1, 3):
        kernel = body_kernel(node, graph, threads)
        assert kernel.registers <= 6
        for got, wanted in zip(run_kernel(kernel, node, arrays), expected, strict=True):
            assert got.dtype == wanted.dtype
            # The reference rounds after every operator, the kernel at the end.
            coarse = "float16" if name == "through halves" and dtype != "bfloat16" else dtype
            tolerance = {"float32": 1e-4, "float64": 1e-12, "float16": 2e-2, "bfloat16": 2e-1}[coarse]
            np.testing.assert_allclose(got.astype(float), wanted.astype(float), rtol=tolerance, atol=tolerance)


# Continuous functions whose results neither grow nor depend on rounding.
RANDOM_STEPS = (
    lambda a, b, c: (a + b) * 0.5,
    lambda a, b, c: F.tanh(a * b + c),
    lambda a, b, c: F.sub(a, b) * 0.25,
    lambda a, b, c: F.where(a < b, a, b),
    lambda a, b, c: F.where(F.or_(F.not_(a >= b), F.is_nan(c)), b, a),
    lambda a, b, c: F.max(a, b, c),
    lambda a, b, c: F.sigmoid(a) - F.sqrt(F.abs(b * c)) * 0.5,
    lambda a, b, c: F.cast(F.cast(a, to="float64"), to=a.dtype) / (F.abs(b) + 1.0),
)


def random_body(rng, operators):
    """A function of symbols with three results, each of the shape that all of them broadcast to."""
    picks = rng.integers(0, 1 << 30, (operators, 4))

    def build(*symbols):
        pool = list(symbols)
        for kind, *positions in picks:
            pool.append(RANDOM_STEPS[int(kind) % len(RANDOM_STEPS)](*(pool[int(p) % len(pool)] for p in positions)))
        joint = pool[-1]
        for symbol in symbols:
            joint = joint + symbol * 0.0
        return joint, F.neg(joint), pool[len(pool) // 2] + joint

    return build


@in_one_item()
@pytest.mark.parametrize("seed", seeds(30, default=10))
def test_random_bodies(seed, isa):
    rng = np.random.default_rng([seed, 8])
    full = [int(n) for n in rng.choice([1, 2, 3, 7, 16, 65, 208, 801], rng.integers(1, 4))]
    shapes = [tuple(n if rng.random() < 0.7 else 1 for n in full) for _ in range(rng.integers(1, 4))]
    dtype = ("float32", "float64")[seed % 2]
    arrays = [random_array(rng, shape, dtype) for shape in shapes]
    node, graph = body_of(arrays, random_body(rng, int(rng.integers(1, 40))))
    expected = evaluate(graph, arrays)
    for threads in (1, 3):
        for got, wanted in zip(run_kernel(body_kernel(node, graph, threads), node, arrays), expected, strict=True):
            tolerance = 1e-5 if dtype == "float32" else 1e-13
            np.testing.assert_allclose(got, wanted, rtol=tolerance * 10, atol=tolerance)


def test_products_and_sums_are_joined_and_dead_code_is_dropped():
    x = np.ones(8, np.float32)
    node, graph = body_of([x, x, x], lambda a, b, c: a * b + c)
    assert body_kernel(node, graph).registers == 0  # one instruction, from memory to memory


def test_results_do_not_depend_on_threads(isa):
    rng = np.random.default_rng(12)
    arrays = [rng.standard_normal(n, np.float32) * 1e6 for n in ((37, 333), (333,))]
    node, graph = body_of(arrays, lambda x, y: F.sin(x) * F.gelu(y) + F.pow(F.abs(x), F.tanh(y)))
    results = {run_kernel(body_kernel(node, graph, threads), node, arrays)[0].tobytes() for threads in (1, 2, 3, 4)}
    assert len(results) == 1


def test_an_output_that_nobody_reads():
    x = np.linspace(0, 50, 5000, dtype=np.float32)
    node, graph = body_of([x], lambda a: (a + 1.0, F.exp(a)))
    context = KernelContext(used_outputs=(False, True))
    kernel = chain_kernel("Body", node, graph.inputs, graph.outputs, context)
    y = np.empty_like(x)
    kernel([x], [None, y])
    np.testing.assert_allclose(y, np.exp(x), rtol=1e-6)
