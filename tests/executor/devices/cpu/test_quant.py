"""Kernels of quantised operators against their references, which they equal to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from combinations import full, in_one_item
from kernel_runs import at_page_end, run_kernel, unwritten

import graphkit as gk
from graphkit.executor.devices.cpu import native
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.registry import make_kernel
from graphkit.executor.memory.packing import aligned_bytes
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import TensorType, dtype_of
from graphkit.ops import F
from graphkit.ops._base import Op
from graphkit.ops.evaluate import run_node
from graphkit.ops.internal.channels_last_quantised import ChannelsLastConvInteger, ChannelsLastQLinearConv
from graphkit.ops.internal.quantised import (
    DynamicQuantizeMatMul,
    MatMulIntegerToFloat,
    QGemm,
    QLinearAdd,
    QLinearMul,
    TableLookup,
)
from graphkit.ops.internal.weight_only import WeightOnlyMatMul
from graphkit.ops.quant.conv import ConvInteger, QLinearConv
from graphkit.ops.quant.linear import DequantizeLinear, QuantizeLinear
from graphkit.ops.quant.matmul import MatMulInteger, QLinearMatMul

BYTES = (np.uint8, np.int8)


@pytest.fixture(params=["baseline", full("avx2"), full("avx512"), "avx512 with products of bytes"])
def products(request: pytest.FixtureRequest) -> Iterator[str]:
    """Kernels made while the test runs multiply bytes as this set does; work of any size is shared among threads.

    The default lane has the lowest and the highest one, as `every_isa` does.
    """
    isa, *dot = request.param.split(" with ")
    try:
        native.use_isa(isa)
    except native.Unsupported as error:
        pytest.skip(str(error))
    native.use_dot_products(bool(dot))
    native.share_all_work(True)
    try:
        if dot and not native.has_dot_products():
            pytest.skip("this processor has no products of bytes")
        yield request.param
    finally:
        native.share_all_work(False)
        native.use_dot_products(True)
        native.use_isa("")


def anything(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any, extreme: bool = False) -> np.ndarray:
    """Integers of all sizes, or the extremes alone."""
    info = np.iinfo(dtype)
    if extreme:
        return rng.choice(np.array([info.min, info.max]), shape).astype(dtype)
    return rng.integers(info.min, info.max + 1, shape).astype(dtype)


def check(op: Op, arrays: list[Any], packed: int | None = None) -> None:
    """The kernels on one thread and on two, with and without packed weights, against the reference."""
    values = [
        None if a is None else Value(TensorType(dtype_of(a.dtype), a.shape), f"v{i}") for i, a in enumerate(arrays)
    ]
    node = Node(op, values)
    with np.errstate(all="ignore"):
        expected = run_node(node, arrays)
    for threads in (1, 2):
        kernel = make_kernel("cpu", node, KernelContext(threads))
        assert kernel is not None, node.describe()
        results = [run_kernel(kernel, node, arrays)]
        # Nothing is read or written behind operands and results.
        ends = [at_page_end(result) for result in unwritten(node)]
        kernel([None if a is None else at_page_end(a) for a in arrays], ends)
        results.append(ends)
        if packed is not None:
            held: Any = {packed: None}
            kernel = make_kernel("cpu", node, KernelContext(threads, constant_inputs=held))
            assert kernel is not None, node.describe()
            memory = aligned_bytes(kernel.packed_bytes(packed))  # type: ignore[attr-defined]
            kernel.pack(packed, arrays[packed], memory)  # type: ignore[attr-defined]
            results.append(run_kernel(kernel, node, [memory if i == packed else a for i, a in enumerate(arrays)]))
        for result in results:
            for got, wanted in zip(result, expected, strict=True):
                if got.dtype == np.float32:
                    np.testing.assert_allclose(got, wanted, rtol=2e-6, atol=1e-6)
                else:
                    np.testing.assert_array_equal(got, wanted)


def f32(*values: float) -> np.ndarray:
    return np.array(values if len(values) > 1 else values[0], np.float32)


# --- products -------------------------------------------------------------------------------------

PRODUCTS = [
    ((1, 1), (1, 1)), ((7, 5), (5, 3)), ((49, 64), (64, 130)), ((25, 127), (127, 65)), ((3, 4, 30), (30, 48)),
    ((2, 3, 5, 16), (2, 3, 16, 20)), ((5, 16), (4, 16, 24)), ((6,), (6, 40)), ((4, 9), (9,)), ((0, 8), (8, 4)),
    ((3, 0), (0, 5)), ((2, 1, 5, 8), (3, 8, 17)),
]  # fmt: skip


@in_one_item("values")
@pytest.mark.parametrize("extreme", [False, True])
@pytest.mark.parametrize(("left", "right"), [(a, b) for a in BYTES for b in BYTES])
def test_sums_of_products(products: str, left: Any, right: Any, extreme: bool) -> None:
    rng = np.random.default_rng(0)
    for a, b in PRODUCTS:
        x, w = anything(rng, a, left, extreme), anything(rng, b, right, extreme)
        columns = b[-1] if len(b) == 2 else 1
        for a_zero, b_zero in [
            (None, None),
            (anything(rng, (), left), None),
            (anything(rng, (), left), anything(rng, (columns,), right)),
        ]:
            check(MatMulInteger(), [x, w, a_zero, b_zero], packed=1)


def test_few_rows(products: str) -> None:
    """Tiles of any number of rows, alone and after full tiles."""
    rng = np.random.default_rng(6)
    for rows in range(1, 13):
        check(MatMulInteger(), [anything(rng, (rows, 9), np.uint8), anything(rng, (9, 83), np.int8)], packed=1)


def test_sums_beyond_int16(products: str) -> None:
    """Pairs of products, 2 * 255 * -128 and more of them, are not cut at the bounds of int16."""
    x, w = np.full((3, 4096), 255, np.uint8), np.full((4096, 17), -128, np.int8)
    check(MatMulInteger(), [x, w], packed=1)
    check(MatMulInteger(), [x, -1 - w], packed=1)


@in_one_item()
@pytest.mark.parametrize("result", BYTES)
def test_quantised_products(products: str, result: Any) -> None:
    rng = np.random.default_rng(1)
    for a, b in PRODUCTS:
        x, w = anything(rng, a, np.uint8), anything(rng, b, np.int8)
        zero = anything(rng, (), result)
        columns = b[-1] if len(b) == 2 else 1
        scales = rng.uniform(0.001, 0.1, columns).astype(np.float32)
        for b_scale, b_zero in ((f32(0.02), np.array(3, np.int8)), (scales, np.zeros(columns, np.int8))):
            arrays = [x, f32(0.03), np.array(99, np.uint8), w, b_scale, b_zero, f32(0.7), zero]
            check(QLinearMatMul(), arrays, packed=3)


def test_ties_and_saturation(products: str) -> None:
    """Ties round to even. Numbers that are too large, infinite or NaN become a bound, as in the reference."""
    x = np.arange(256, dtype=np.uint8).reshape(256, 1)
    w = np.array([[1, 2, 3, -1, -2, -128, 127, 0]], np.int8)
    for scale in (0.5, 0.25, 1e30, float("inf"), float("nan"), -1.0, 0.0):
        for zero in (np.array(0, np.uint8), np.array(255, np.uint8), np.array(-128, np.int8), np.array(127, np.int8)):
            arrays = [x, f32(scale), np.array(7, np.uint8), w, f32(1.0), np.array(0, np.int8), f32(1.0), zero]
            check(QLinearMatMul(), arrays, packed=3)


def test_products_that_come_out_as_numbers(products: str) -> None:
    rng = np.random.default_rng(2)
    for rows, terms, columns in ((1, 16, 5), (30, 33, 64), (129, 64, 100), (0, 4, 4)):
        w, scales = anything(rng, (terms, columns), np.int8), rng.uniform(0.001, 0.1, columns).astype(np.float32)
        zeros, bias = anything(rng, (columns,), np.int8), rng.standard_normal(columns).astype(np.float32)
        x = anything(rng, (2, rows, terms), np.uint8)
        check(MatMulIntegerToFloat(), [x, w, f32(0.1), scales, np.array(8, np.uint8), zeros, bias], packed=1)
        reals = rng.standard_normal((2, rows, terms)).astype(np.float32)
        check(DynamicQuantizeMatMul(), [reals, w, scales, zeros, bias], packed=1)
        check(DynamicQuantizeMatMul(), [reals, w, f32(0.1), None, bias], packed=1)


@in_one_item()
@pytest.mark.parametrize("transposes", [(False, False), (True, False), (False, True), (True, True)])
def test_gemm(products: str, transposes: tuple[bool, bool]) -> None:
    rng = np.random.default_rng(3)
    for m, k, n in ((1, 7, 5), (50, 64, 33)):
        a = anything(rng, (k, m) if transposes[0] else (m, k), np.int8)
        b = anything(rng, (n, k) if transposes[1] else (k, n), np.int8)
        c = rng.integers(-(10**6), 10**6, n).astype(np.int32)
        common = [a, f32(0.1), np.array(-7, np.int8), b, f32(0.02), np.array(0, np.int8), c]
        op = QGemm(transA=transposes[0], transB=transposes[1], alpha=1.5)
        check(op, common, packed=3)
        check(op, [*common, f32(3.0), np.array(9, np.int8)], packed=3)


# --- convolutions ---------------------------------------------------------------------------------

# x with channels last, weights, attributes.
CONVOLUTIONS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 9, 9, 3), (16, 3, 3, 3), {"pads": (1, 1, 1, 1)}),
    ((2, 11, 10, 3), (20, 3, 7, 7), {"pads": (3, 3, 3, 3), "strides": (2, 2)}),
    ((2, 7, 6, 16), (24, 16, 1, 1), {}),
    ((1, 8, 8, 20), (70, 20, 1, 1), {"strides": (2, 2)}),
    ((1, 7, 9, 12), (17, 12, 3, 2), {"dilations": (2, 3), "pads": (2, 1, 0, 3)}),
    ((2, 6, 6, 16), (32, 4, 3, 3), {"group": 4, "pads": (1, 1, 1, 1)}),
    ((1, 6, 6, 6), (9, 2, 3, 3), {"group": 3, "pads": (1, 1, 1, 1)}),
    ((1, 5, 5, 6), (12, 1, 3, 3), {"group": 6}),
    ((2, 8, 7, 32), (32, 1, 3, 3), {"group": 32, "pads": (1, 1, 1, 1)}),
    ((1, 9, 8, 150), (150, 1, 3, 3), {"group": 150, "pads": (0, 1, 2, 1), "strides": (2, 2)}),
    ((1, 10, 9, 96), (96, 1, 5, 5), {"group": 96, "pads": (2, 2, 2, 2)}),
    ((1, 4, 20, 67), (67, 1, 1, 4), {"group": 67, "dilations": (1, 2), "strides": (1, 3)}),
    ((3, 12, 5), (8, 5, 3), {"pads": (2, 0)}),
    ((1, 4, 5, 6, 8), (8, 1, 2, 3, 2), {"group": 8, "pads": (1, 0, 1, 0, 1, 0)}),
    ((1, 4, 5, 6, 4), (6, 4, 2, 3, 2), {"strides": (1, 2, 1)}),
    ((0, 6, 6, 4), (8, 4, 3, 3), {}),
]


@in_one_item("values")
@pytest.mark.parametrize("extreme", [False, True])
@pytest.mark.parametrize(("left", "right"), [(a, b) for a in BYTES for b in BYTES])
def test_convolutions(products: str, left: Any, right: Any, extreme: bool) -> None:
    rng = np.random.default_rng(4)
    for shape, weights, attrs in CONVOLUTIONS:
        x, w = anything(rng, shape, left, extreme), anything(rng, weights, right, extreme)
        m = weights[0]
        zeros = (anything(rng, (), left), anything(rng, (m,), right))
        check(ChannelsLastConvInteger(**attrs), [x, w, *zeros], packed=1)
        check(ChannelsLastConvInteger(**attrs), [x, w], packed=1)
        scales = rng.uniform(1e-4, 2e-2, m).astype(np.float32)
        bias = rng.integers(-(10**5), 10**5, m).astype(np.int32)
        w_zero = np.array(128 if right is np.uint8 else 0, right)
        for y_zero in (np.array(31, np.uint8), np.array(-128, np.int8)):
            arrays = [x, f32(0.05), zeros[0], w, scales, np.full(m, w_zero), f32(0.9), y_zero, bias]
            check(ChannelsLastQLinearConv(**attrs), arrays, packed=3)


def test_convolutions_with_channels_first(products: str) -> None:
    rng = np.random.default_rng(5)
    for shape, weights, attrs in CONVOLUTIONS:
        x = anything(rng, (shape[0], shape[-1], *shape[1:-1]), np.uint8)
        w = anything(rng, weights, np.int8)
        check(ConvInteger(**attrs), [x, w, np.array(3, np.uint8)], packed=1)
        zero = np.array(0, np.uint8)
        check(QLinearConv(**attrs), [x, f32(0.1), zero, w, f32(0.02), np.array(1, np.int8), f32(1.5), zero], packed=3)


@in_one_item()
@pytest.mark.parametrize("group", [1, 4])
def test_convolutions_with_windows_beyond_int64(group: int) -> None:
    """Strides and dilations that have no effect may have any size. Positions beyond int64 have no kernel."""
    x = np.arange(20, dtype=np.uint8).reshape(1, 4, 5)
    far = 1 << 62
    for taps, attrs in ((1, {"dilations": (far,)}), (3, {}), (3, {"dilations": (far,), "pads": (2 * far - 1,) * 2})):
        op, w = ConvInteger(strides=(far,), group=group, **attrs), np.ones((4, 4 // group, taps), np.uint8)
        node = Node(op, [Value(TensorType(dtype_of(v.dtype), v.shape), name) for v, name in ((x, "x"), (w, "w"))])
        if attrs.get("pads"):
            assert make_kernel("cpu", node, KernelContext(1)) is None
            continue
        kernel = make_kernel("cpu", node, KernelContext(1))
        assert kernel is not None
        (y,) = run_kernel(kernel, node, [x, w])
        sums = x[..., :taps].astype(np.int32).sum(2, keepdims=True)
        np.testing.assert_array_equal(y, sums if group == 4 else sums.sum(1, keepdims=True).repeat(4, 1))


def test_convolutions_with_huge_windows_have_no_kernel() -> None:
    """A saved program may describe any window. The kernel stores a position for each of its elements."""
    operands = [("x", [1, 1, 1 << 21], "uint8"), ("w", [1, 1, 1 << 21], "uint8")]
    with pytest.raises(native.Unsupported, match="windows of 2097152 elements"):
        native.integer_convolution(operands, [1, 1, 1], "int32", [1], [1], [0], 1, threads=1)


@in_one_item()
@pytest.mark.parametrize(
    ("x", "w"), [((2, 4), (4, 0)), ((2, 0), (0, 3)), ((0, 4), (4, 3)), ((2, 4), (0, 4, 3)), ((0, 2, 4), (0, 4, 3))]
)
def test_constant_weights_without_elements(x: tuple[int, ...], w: tuple[int, ...]) -> None:
    a, b = gk.input("a", list(x), dtype="uint8"), gk.constant(np.ones(w, np.uint8))
    given = np.ones(x, np.uint8)
    y = gk.Model({"y": F.mat_mul_integer(a, b)}).compile(optimize=False).run({"a": given})["y"]
    np.testing.assert_array_equal(y, np.matmul(given.astype(np.int32), np.ones(w, np.int32)))


# --- element by element ---------------------------------------------------------------------------


@in_one_item()
@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16])
def test_quantisation(products: str, dtype: Any) -> None:
    rng = np.random.default_rng(6)
    x = (rng.standard_normal((5, 7, 33)) * 300).astype(np.float32)
    x.ravel()[:6] = [np.inf, -np.inf, np.nan, 0.5, 1.5, 2.5]
    whole = anything(rng, x.shape, dtype)
    cases: list[tuple[tuple[int, ...], dict[str, Any]]] = [
        ((), {}), ((1,), {}), ((5,), {"axis": 0}), ((7,), {"axis": 1}), ((33,), {"axis": -1}),
        ((5, 3, 33), {"axis": 1, "block_size": 3}), ((5, 7, 5), {"axis": 2, "block_size": 8}),
        ((2, 7, 33), {"axis": 0, "block_size": 4}),
    ]  # fmt: skip
    for shape, attrs in cases:
        scale, zero = rng.uniform(0.5, 2, shape).astype(np.float32), anything(rng, shape, dtype)
        check(QuantizeLinear(**attrs), [x, scale, zero])
        check(DequantizeLinear(**attrs), [whole, scale, zero])
        check(DequantizeLinear(**attrs), [whole, scale])
    for shape, axis in (((2, 0), 1), ((0, 2), 0), ((2, 0, 3), 1)):
        scale, zero = np.zeros(0, np.float32), np.zeros(0, dtype)
        check(QuantizeLinear(axis=axis), [np.zeros(shape, np.float32), scale, zero])
        check(DequantizeLinear(axis=axis), [np.zeros(shape, dtype), scale, zero])


@in_one_item()
@pytest.mark.parametrize("values", [[], [0.0], [3.0], [-3.0, np.nan, 5.0], [np.inf, 1.0], [-np.inf, np.inf], [1e-45]])
def test_dynamic_quantisation(products: str, values: list[float]) -> None:
    node = F.dynamic_quantize_linear(Value(TensorType(dtype_of(np.dtype(np.float32)), (len(values),)), "x"))[0].node
    check(node.op, [np.array(values, np.float32)])
    many = np.random.default_rng(7).standard_normal(70001).astype(np.float32)
    check(node.op, [np.concatenate([many, np.array(values, np.float32)])])


@in_one_item("values")
@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("op", [QLinearAdd(), QLinearMul()], ids=lambda op: op.name)
def test_sums_and_products_of_elements(products: str, op: Op, dtype: Any) -> None:
    rng = np.random.default_rng(8)
    for a, b in [
        ((257,), (257,)),
        ((3, 130), (130,)),
        ((4, 1, 5), (1, 7, 1)),
        ((2, 3), ()),
        ((1,), (9,)),
        ((0, 3), (3,)),
    ]:
        for _ in range(4):
            scales = [f32(rng.uniform(0.01, 0.2)) for _ in range(3)]
            zeros = [anything(rng, (), dtype) for _ in range(3)]
            x, y = anything(rng, a, dtype), anything(rng, b, dtype)
            check(op, [x, scales[0], zeros[0], y, scales[1], zeros[1], scales[2], zeros[2]])


@in_one_item()
@pytest.mark.parametrize("dtype", BYTES)
def test_tables(products: str, dtype: Any) -> None:
    rng = np.random.default_rng(9)
    x = anything(rng, (3, 1001), dtype)
    for table in (anything(rng, (256,), np.int8), rng.standard_normal(256).astype(np.float32)):
        check(TableLookup(), [x, table])


# --- weights of few bits --------------------------------------------------------------------------


@in_one_item()
@pytest.mark.parametrize(("dtype", "bits"), [(np.uint8, 4), (np.int8, 4), (np.uint8, 8), (np.int8, 8)])
def test_products_with_weights_of_few_bits(products: str, dtype: Any, bits: int) -> None:
    rng = np.random.default_rng(10)
    low = 0 if dtype is np.uint8 else -(1 << (bits - 1))
    for rows, terms, columns, block in (
        (1, 64, 16, 32),
        (1, 130, 33, 16),
        (2, 7, 5, 7),
        (15, 100, 40, 100),
        (0, 8, 3, 8),
    ):
        a = rng.standard_normal((rows, terms)).astype(np.float32)
        blocks = -(-terms // block)
        w, zero = (rng.integers(low, low + (1 << bits), (columns, n)).astype(dtype) for n in (terms, blocks))
        scale = rng.uniform(0.01, 0.1, (columns, blocks)).astype(np.float32)
        op = WeightOnlyMatMul(block_size=block, bits=bits)
        for given in ([a, w, scale, zero], [a, w, scale]):
            values = [Value(TensorType(dtype_of(v.dtype), v.shape), f"v{i}") for i, v in enumerate(given)]
            node = Node(op, values)
            spread = [np.repeat(p.astype(np.float64), block, 1)[:, :terms] for p in (scale, zero)]
            exact = a.astype(np.float64) @ ((w - (spread[1] if len(given) > 3 else 0.0)) * spread[0]).T
            bits_found = set()
            for threads in (1, 2):
                held: Any = dict.fromkeys(range(1, len(given)))
                for constant_inputs in ({}, held):
                    kernel: Any = make_kernel("cpu", node, KernelContext(threads, constant_inputs=constant_inputs))
                    operands = list(given)
                    for position in kernel.packed_inputs:
                        operands[position] = aligned_bytes(kernel.packed_bytes(position))
                        kernel.pack(position, given[position], operands[position])
                    (y,) = run_kernel(kernel, node, operands)
                    np.testing.assert_allclose(y, exact, rtol=1e-5, atol=1e-5 * np.abs(exact).max(initial=1))
                    bits_found.add(y.tobytes())
            assert len(bits_found) == 1


@in_one_item()
@pytest.mark.parametrize(
    ("a", "w", "block", "bits"),
    [
        ((), (5, 8), 8, 8),
        ((3, 8), (8,), 8, 8),
        ((3, 7), (5, 8), 8, 8),
        ((3, 8), (5, 8), 0, 8),
        ((3, 0), (5, 0), 8, 8),
        ((3, 8), (5, 8), 8, 2),
    ],
)
def test_products_with_weights_of_few_bits_that_have_no_kernel(a: Any, w: Any, block: int, bits: int) -> None:
    with pytest.raises(native.Unsupported, match=r"a product of .* with weights"):
        native.WeightOnlyProduct(a, w, "uint8", block, bits, zeros=False, packed=False, threads=1)


@in_one_item()
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_of_few_bits_and_numbers_that_are_not_finite(products: str, value: float) -> None:
    rng = np.random.default_rng(11)
    a = rng.standard_normal((3, 32)).astype(np.float32)
    a[1, 5] = value
    w, zero = (rng.integers(0, 16, (20, n)).astype(np.uint8) for n in (32, 2))
    scale = rng.uniform(0.01, 0.1, (20, 2)).astype(np.float32)
    check(WeightOnlyMatMul(block_size=16, bits=4), [a, w, scale, zero], packed=None)
