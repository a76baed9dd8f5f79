"""Single operations with broadcast operands, which are computed row by row, compared with numpy."""

import itertools

import numpy as np
import pytest
from combinations import in_one_item
from kernel_runs import at_page_end, run_kernel

from graphkit.executor.devices.cpu import native
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.registry import make_kernel
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import TensorType, dtype_of
from graphkit.ops import registry

OPERATIONS = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Min": np.minimum, "Max": np.maximum,
    "And": np.logical_and, "Or": np.logical_or, "Xor": np.logical_xor,
    "BitwiseAnd": np.bitwise_and, "BitwiseOr": np.bitwise_or, "BitwiseXor": np.bitwise_xor,
    "Equal": np.equal, "Less": np.less, "LessOrEqual": np.less_equal,
}  # fmt: skip

# Rows of less than a vector, of whole vectors, of more than a page; few and many rows; other axes before them.
SHAPES = [
    ((40, 16), (40, 1)),
    ((40, 17), (17,)),
    ((33, 31), (33, 1)),
    ((3, 5, 49), (3, 5, 1)),
    ((2, 7, 1), (1, 129)),
    ((4, 3, 2, 100), (4, 1, 2, 1)),
    ((5, 64, 65), (5, 1, 65)),
    ((3, 1025), (3, 1)),
    ((6, 523), (523,)),
    ((2, 2600), (2600,)),
    ((7, 1, 300), (2, 300)),
    ((2, 9, 201), (2, 1, 201)),
    ((0, 64), (0, 1)),
    ((1, 600), (600,)),
]


def values(rng, shape, dtype):
    if np.dtype(dtype).kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    if np.dtype(dtype).kind != "f":
        return rng.integers(0, 1 << 31, shape).astype(dtype)
    x = rng.standard_normal(shape).astype(dtype)
    special = np.array([np.nan, np.inf, -np.inf, 0, -0.0, 1e-40], dtype)
    return np.where(rng.random(shape) < 0.1, rng.choice(special, shape), x).astype(dtype)


@in_one_item("values")
@pytest.mark.parametrize(
    "dtype",
    ["float32", "float64", "int32", "int64", "uint32", "uint64", "int8", "uint8", "int16", "uint16", "bool"],
)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_rows_equal_numpy(shapes, dtype, every_isa):
    rng = np.random.default_rng(0)
    a, b = (values(rng, shape, dtype) for shape in shapes)
    names = {
        "f": ("Add", "Sub", "Mul", "Div", "Min", "Max"),
        "b": ("And", "Or", "Xor", "Equal"),
    }.get(np.dtype(dtype).kind, ("Add", "Sub", "Mul", "Min", "Max", "BitwiseAnd", "BitwiseOr", "BitwiseXor"))
    if dtype in ("int8", "uint8"):
        names += ("Equal", "Less", "LessOrEqual")
        a[..., ::2] = b[..., ::3] = 7
    for name, arrays in itertools.product(names, ((a, b), (b, a))):
        node = Node(registry.get("", name)(), [Value(TensorType(dtype_of(x.dtype), x.shape)) for x in arrays])
        with np.errstate(all="ignore"):
            expected = OPERATIONS[name](*arrays)
        for threads in (1, 3):
            kernel = make_kernel("cpu", node, KernelContext(threads=threads))
            (got,) = run_kernel(kernel, node, list(arrays))
            np.testing.assert_array_equal(got, expected)


@in_one_item()
@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (1, 2, 0)])
@pytest.mark.parametrize("small", [((7, 1), (7, 1)), ((513,), (513,)), ((7, 513), (513,)), ((7, 1), (7, 513))], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_scaled_rows_equal_numpy(dtype, small, order, isa):
    rng = np.random.default_rng(1)
    arrays = [values(rng, shape, dtype) for shape in ((3, 7, 513), *small)]
    arrays = [arrays[i] for i in order]
    with np.errstate(all="ignore"):
        exact = arrays[0].astype(np.longdouble) * arrays[1] + arrays[2]
    results = []
    for threads in (1, 3):
        kernel = native.Pointwise(
            "scaled", exact.shape, inputs=[(x.shape, dtype) for x in arrays], constants=[],
            instructions=[("mul_add", [0, 1, 2], "")], outputs=[(3, dtype)], threads=threads,
        )  # fmt: skip
        y = np.empty(exact.shape, dtype)
        kernel(arrays, [y])
        results.append(y)
    np.testing.assert_array_equal(*results)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(results[0].astype(np.longdouble), exact, rtol=1e-5, atol=1e-6)


@in_one_item()
@pytest.mark.parametrize("dtype", ["float32", "int64", "int8", "uint16"])
@pytest.mark.parametrize(
    "shapes",
    [
        ((40, 17), (40, 1)),
        ((40, 17), (17,)),
        ((3, 1025), (3, 1)),
        ((9, 105), (105,)),
        # Rows of less than eight vectors of one or two bytes, which are not aligned.
        ((9, 105), (9, 1)),
        ((20, 45), (20, 1)),
    ],
    ids=str,
)
def test_rows_are_not_read_beyond_their_end(shapes, dtype, every_isa):
    rng = np.random.default_rng(2)
    a, b = (at_page_end(values(rng, shape, dtype)) for shape in shapes)
    node = Node(registry.get("", "Add")(), [Value(TensorType(dtype_of(x.dtype), x.shape)) for x in (a, b)])
    y = at_page_end(np.zeros(a.shape, dtype))
    make_kernel("cpu", node, KernelContext(threads=1))([a, b], [y])
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(y, a + b)
