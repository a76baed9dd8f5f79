"""Matrix products on the GPU: requests to the library, which fakes compute, and their descriptors."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import sys
from typing import Any

import numpy as np
import pytest
import stand_in_library as documented
from card_cases import cases_of, node_of
from emulator import Emulator
from host_arrays import HostArray, card_with, through_the_library
from stand_in_library import STREAM, CublasLt
from together import together

import graphkit as gk
from graphkit.errors import MissingDependency, RuntimeFailure, UnsupportedError
from graphkit.executor.devices.cuda import card, products
from graphkit.executor.devices.cuda.launches import CardKernel, Launch, Product
from graphkit.executor.devices.cuda.libraries import cublaslt
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.registry import make_launched
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.ops import DOMAIN, F, registry
from graphkit.ops.evaluate import run_node
from graphkit.ops.internal.fused import FusedMatMul
from graphkit.passes.core.sweep import run_passes
from graphkit.passes.pipeline import array_passes

RNG = np.random.default_rng(0)


def random(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def kernel_of(op: Any, *arrays: Any) -> CardKernel | None:
    return make_launched("cuda", node_of(op, *arrays), KernelContext())  # type: ignore[return-value]


@together()
@pytest.mark.parametrize(
    ("a", "b", "batch"),
    [
        ((3, 4), (4, 5), 1),
        ((7, 3, 4), (4, 5), 1),  # more rows
        ((7, 3, 4), (1, 4, 5), 1),
        ((3, 4), (7, 4, 5), 7),
        ((2, 6, 3, 4), (2, 6, 4, 5), 12),
        ((2, 1, 3, 4), (2, 6, 4, 5), None),  # two strides
        ((1, 6, 3, 4), (2, 6, 4, 5), None),
        ((4,), (4, 5), 1),
        ((3, 4), (4,), 1),
        ((6, 3, 4), (4,), 1),
        ((4,), (6, 4, 5), 6),
        ((4,), (4,), 1),
        ((3, 0), (0, 5), None),
    ],
)
def test_leading_axes(a: tuple[int, ...], b: tuple[int, ...], batch: int | None, emulator: Emulator) -> None:
    arrays = [random(*a), random(*b)]
    kernel = kernel_of(registry.get("", "MatMul")(), *arrays)
    if batch is None:
        assert kernel is None, "CuPy computes it"
        return
    assert kernel is not None
    (product,) = kernel.launches
    assert isinstance(product, Product)
    assert product.batch == batch
    expected = np.matmul(*arrays)
    y = np.full(expected.shape, np.nan, np.float32)
    emulator.run(kernel, arrays, [y])
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


def test_empty_results_need_no_product() -> None:
    assert kernel_of(registry.get("", "MatMul")(), random(0, 4), random(4, 5)) == CardKernel(())
    assert kernel_of(registry.get("", "MatMul")(), np.ones((2, 2), np.int32), np.ones((2, 2), np.int32)) is None


@together()
@pytest.mark.parametrize("operands", ["", "b", "r", "br"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
def test_a_bias_and_a_residual(operands: str, dtype: Any, emulator: Emulator) -> None:
    op = FusedMatMul(transB=True, alpha=0.5)
    arrays = [random(5, 8, dtype=dtype), random(6, 8, dtype=dtype)]
    arrays.append(random(6, dtype=dtype) if "b" in operands else None)
    arrays.append(random(5, 6, dtype=dtype) if "r" in operands else None)
    kernel = kernel_of(op, *arrays)
    assert kernel is not None
    assert [type(launch) for launch in kernel.launches] == [Product]
    y = np.full((5, 6), np.nan, dtype)
    emulator.run(kernel, arrays, [y])
    (expected,) = run_node(node_of(op, *arrays), arrays)
    np.testing.assert_allclose(y, expected, rtol=5e-3 if dtype == np.float16 else 1e-5, atol=1e-3)


def test_activations_are_for_what_comes_behind() -> None:
    """Programs leave them to a pointwise region; a product that has one already is interpreted."""
    assert kernel_of(FusedMatMul(activation="Relu"), random(3, 4), random(4, 5)) is None
    x, w = (Value(TensorType("float32", s)) for s in ((3, 4), (4, 5)))
    graph = Graph([x, w], [F.neg(F.relu(F.add(F.mat_mul(x, w), np.ones(5, np.float32))))])
    made = run_passes(graph, array_passes(lambda node: True))
    assert [node.op.name for node in made.nodes if node.op.name != "Constant"] == ["FusedMatMul", "Fused"]


def test_a_third_operand_that_is_repeated_is_spread_first(emulator: Emulator) -> None:
    gemm = registry.get("", "Gemm")(alpha=2.0, beta=-0.5)
    a, b, c = random(5, 3), random(3, 4), random(5, 1)
    kernel = kernel_of(gemm, a, b, c)
    assert kernel is not None
    assert [type(launch) for launch in kernel.launches] == [Launch, Product]
    y = np.full((5, 4), np.nan, np.float32)
    emulator.run(kernel, [a, b, c], [y])
    np.testing.assert_allclose(y, 2 * (a @ b) - 0.5 * c, rtol=1e-5, atol=1e-5)


# --- the library ------------------------------------------------------------------------------------


@pytest.fixture
def bindings(monkeypatch: pytest.MonkeyPatch) -> CublasLt:
    made = CublasLt()
    monkeypatch.setattr(cublaslt, "_bindings", lambda: made)
    monkeypatch.setattr(cublaslt, "_handle", lambda card: made.create())
    return made


@pytest.mark.parametrize(("domain", "name"), [("", "MatMul"), ("", "Gemm"), (DOMAIN, "FusedMatMul")])
def test_descriptors_say_what_the_product_is(domain: str, name: str, bindings: CublasLt) -> None:
    """The library, by its documentation, computes the reference's results from them."""
    seen = 0
    for case in cases_of(registry.get(domain, name)):
        plain = case.kernel.launches and all(isinstance(launch, Product) for launch in case.kernel.launches)
        if not plain or case.node.output.dtype is gk.DType.BFLOAT16:
            continue
        (expected,) = run_node(case.node, case.arrays)
        tolerance = 5e-3 if expected.dtype == np.float16 else 1e-5
        np.testing.assert_allclose(through_the_library(case, STREAM), expected, tolerance, tolerance, err_msg=case.name)
        seen += 1
    assert seen >= 3
    gc.collect()
    assert all("handle" in facts for facts in bindings.alive.values()), "descriptors are left"


def test_a_bias_elsewhere_is_found_there(bindings: CublasLt) -> None:
    op = FusedMatMul()
    a, b, bias = random(3, 4), random(4, 5), random(5)
    kernel = kernel_of(op, a, b, bias)
    assert kernel is not None
    launched = card._Launched(card_with(STREAM), node_of(op, a, b, bias), kernel, None)
    scratch = HostArray(np.zeros(kernel.scratch_bytes, np.uint8))
    for given in (bias, bias + 1, bias):
        y = np.zeros((3, 5), np.float32)
        launched([HostArray(x) for x in (a, b, given)], [HostArray(y)], scratch)
        np.testing.assert_allclose(y, a @ b + given, rtol=1e-5)


def test_sums_of_half_floats(bindings: CublasLt) -> None:
    """They are available in float32 on request. A product that is computed twice is prepared once."""
    a, b = random(3, 4, dtype=np.float16), random(4, 5, dtype=np.float16)
    node = node_of(registry.get("", "MatMul")(), a, b)
    product = products.product(node, KernelContext(), a.shape, b.shape)
    assert product is not None
    product = product._replace(sums=True, workspace=0)
    assert (product.result, product._replace(sums=False).result) == (gk.DType.FLOAT32, gk.DType.FLOAT16)
    launched = card._Launched(card_with(STREAM), node, CardKernel((product, product)), None)
    y = np.zeros((3, 5), np.float32)
    launched([HostArray(a), HostArray(b)], [HostArray(y)], None)
    expected = a.astype(np.float32) @ b.astype(np.float32)
    np.testing.assert_allclose(y, expected, rtol=1e-6)
    assert not np.array_equal(y, y.astype(np.float16))
    assert len([facts for facts in bindings.alive.values() if "compute" in facts]) == 1


def test_tf32(bindings: CublasLt) -> None:
    """Where it is asked for, of float32 alone."""
    asked = []
    for dtype in (np.float32, np.float64):
        node = node_of(registry.get("", "MatMul")(), random(2, 3, dtype=dtype), random(3, 4, dtype=dtype))
        for tf32 in (False, True):
            kernel = make_launched("cuda", node, KernelContext(tf32=tf32))
            launched = card._Launched(card_with(STREAM), node, kernel, None)  # type: ignore[arg-type]
            asked += [facts["compute"] for facts in bindings.alive.values() if "compute" in facts]
            del launched
    assert asked == [68, 77, 70, 70]
    with pytest.raises(UnsupportedError, match=r"'tf32' needs a GPU \(device='cuda'\)"):
        gk.models.build("mlp").compile(precision="tf32")


def test_a_product_that_the_library_has_no_way_for(bindings: CublasLt) -> None:
    bindings.alternatives = 0
    (case, *_) = cases_of(registry.get("", "MatMul"))
    with pytest.raises(RuntimeFailure, match=r"MatMul.*: cuBLASLt 12\.9\.2 cannot multiply \[2, 3\] by \[3, 4\] of"):
        through_the_library(case, STREAM)
    gc.collect()
    assert all("handle" in facts for facts in bindings.alive.values()), "descriptors are left"


@pytest.mark.parametrize(
    ("what", "status", "message"),
    [
        ("the choice", 15, r"cuBLASLt 12\.9\.2 cannot multiply \[2, 3\] by \[3, 4\] of"),
        ("the choice", 7, r"cuBLASLt 12\.9\.2: status 7"),
        ("the call", 15, r"cuBLASLt 12\.9\.2: status 15"),
    ],
)
def test_a_product_that_the_library_refuses(what: str, status: int, message: str, bindings: CublasLt) -> None:
    bindings.refuses, bindings.status = what, status
    (case, *_) = cases_of(registry.get("", "MatMul"))
    with pytest.raises(RuntimeFailure, match=rf"MatMul.*: {message}"):
        through_the_library(case, STREAM)


@pytest.mark.parametrize("offset", [0, 64, 192])
def test_working_memory_begins_where_the_library_wants_it(offset: int, bindings: CublasLt) -> None:
    """The library's working memory is aligned, wherever the program's begins, and nothing else is written."""
    a, b = random(64, 512), random(512, 64)
    kernel = kernel_of(registry.get("", "MatMul")(), a, b)
    assert kernel is not None
    assert kernel.scratch_bytes > 1 << 16
    whole = np.full(kernel.scratch_bytes + 512, 0x5A, np.uint8)
    begin = -whole.ctypes.data % 256 + offset
    values = [Value(TensorType("float32", x.shape)) for x in (a, b)]
    launched = card._Launched(card_with(STREAM), F.mat_mul(*values).node, kernel, None)
    y = np.empty((64, 64), np.float32)
    launched([HostArray(a), HostArray(b)], [HostArray(y)], HostArray(whole[begin : begin + kernel.scratch_bytes]))
    np.testing.assert_allclose(y, a @ b, rtol=1e-4, atol=1e-4)
    assert (whole[:begin] == 0x5A).all()
    assert (whole[begin + kernel.scratch_bytes :] == 0x5A).all()
    assert (whole == 0xFF).any()


def test_without_the_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvmath.bindings.cublasLt", None)
    monkeypatch.setitem(sys.modules, "nvmath", None)
    cublaslt._bindings.cache_clear()
    (case, *_) = cases_of(registry.get("", "MatMul"))
    with pytest.raises(MissingDependency, match=r"MatMul.*cuBLASLt.*pip install '\.\[cuda12\]'"):
        through_the_library(case, STREAM)


@pytest.mark.skipif(importlib.util.find_spec("nvmath") is None, reason="nvmath is not installed")
def test_the_stand_in_has_the_numbers_of_the_bindings() -> None:
    real = importlib.import_module("nvmath.bindings.cublasLt")

    for name in ("Epilogue", "MatmulDescAttribute", "MatrixLayoutAttribute", "MatmulPreferenceAttribute"):
        for member in getattr(documented, name):
            assert int(getattr(real, name)[member.name]) == member
    made = CublasLt()
    for mine, dtypes in (("matmul_desc", documented.DTYPES), ("matrix_layout", documented.LAYOUT_DTYPES)):
        for attribute, dtype in dtypes.items():
            assert (
                np.dtype(getattr(real, f"get_{mine}_attribute_dtype")(int(attribute))).itemsize
                == np.dtype(dtype).itemsize
            )
    for attribute in documented.MatmulPreferenceAttribute:
        theirs = real.get_matmul_preference_attribute_dtype(int(attribute))
        assert np.dtype(theirs) == made.get_matmul_preference_attribute_dtype(int(attribute))
    assert np.dtype(real.matmul_heuristic_result_dtype) == made.matmul_heuristic_result_dtype
