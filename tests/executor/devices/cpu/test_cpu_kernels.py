"""The factories of the CPU: native kernels equal the references, and packed weights follow versions."""

import numpy as np
import pytest

from graphkit.checks.samples import Case, all_cases
from graphkit.executor.devices.cpu import native
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.registry import has_factory, make_kernel
from graphkit.executor.memory.packing import PackedArrays
from graphkit.executor.run.params import ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import DType, TensorType
from graphkit.ops import F, registry
from graphkit.ops.evaluate import run_node

needs_onednn = pytest.mark.skipif(not native.has_onednn(), reason="built without oneDNN")

# Products and pools; the other families have tests of their own.
CONVOLUTIONS = {"Conv", "ConvTranspose", "ConvGradInput", "ConvGradWeight", "FusedConv"}
LAST = {"ChannelsLastConv", "ChannelsLastConvTranspose"}
PRODUCTS = {"MatMul", "Gemm", "FusedMatMul", *CONVOLUTIONS, *LAST}
POOLS = {"MaxPool", "MaxPoolGrad", "AveragePool", "AveragePoolGrad", "ChannelsLastMaxPool", "ChannelsLastAveragePool"}
ACCELERATED = [c for c in registry if c.name in POOLS | PRODUCTS and has_factory("cpu", c.domain, c.name)]
CASES = [case for cls in ACCELERATED for case in all_cases(cls)]
TOLERANCE = {DType.BFLOAT16: 2**-6, DType.FLOAT16: 2e-3, DType.FLOAT64: 1e-12}


class Held:
    """A constant operand as the executor hands it to a kernel."""

    def __init__(self, array: np.ndarray):
        self.array = array
        self.version = 0


def has_rows_beyond_windows(case: Case) -> bool:
    """Whether a transposed convolution's output goes on for a stride or more behind the last window."""
    if case.op.name != "ConvTranspose":
        return False
    geometry = case.op.geometry(case.arrays[0].shape, case.arrays[1].shape)
    return any(-end >= stride for end, stride in zip(geometry.end, geometry.strides, strict=True))


def run(kernel, node, arrays):
    outputs = [np.full(v.tensor.static_shape, 77, v.dtype.numpy) for v in node.outputs]
    kernel(arrays, outputs)
    return outputs


def test_the_operators_that_training_needs_are_accelerated():
    names = {cls.name for cls in ACCELERATED}
    assert names == (POOLS | PRODUCTS if native.has_onednn() else POOLS)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_native_equals_reference(case: Case):
    (node,) = case.graph(all_inputs=True).nodes
    arrays = list(case.arrays)
    tolerance = TOLERANCE.get(case.dtype, 1e-5)
    for threads in (1, 3):
        kernel = make_kernel("cpu", node, KernelContext(threads=threads, used_outputs=(True,) * len(node.outputs)))
        if kernel is None:
            return
        for got, expected in zip(run(kernel, node, arrays), run_node(node, arrays), strict=True):
            assert got.dtype == expected.dtype
            exact = got.dtype.kind in "biu"
            rtol, atol = (0, 0) if exact else (tolerance, tolerance)
            wide = (got, expected) if exact else (got.astype(np.float64), expected.astype(np.float64))
            np.testing.assert_allclose(*wide, rtol=rtol, atol=atol)


@needs_onednn
@pytest.mark.parametrize(
    "case", [c for c in CASES if c.dtype is DType.FLOAT32 and c.op.name in PRODUCTS - LAST], ids=lambda case: case.name
)
def test_every_product_in_single_precision_is_native(case: Case):
    (node,) = case.graph(all_inputs=True).nodes
    kernel = make_kernel("cpu", node, KernelContext(used_outputs=(True,) * len(node.outputs)))
    single = all(a is None or a.dtype == np.float32 for a in case.arrays)
    assert (kernel is not None) == (single and not has_rows_beyond_windows(case))


def example(shape=(16, 64), weights=(64, 48)):
    rng = np.random.default_rng(0)
    x = Value(TensorType("float32", shape), "x")
    w = Value(TensorType("float32", weights), "w", role="parameter")
    node = F.mat_mul(x, w).node
    return node, rng.standard_normal(shape, dtype=np.float32), rng.standard_normal(weights, dtype=np.float32)


@needs_onednn
@pytest.mark.parametrize("kind", ["mat_mul", "conv", "conv_transpose"])
def test_packed_copies_follow_versions(kind):
    rng = np.random.default_rng(1)
    matrix = kind == "mat_mul"
    shapes = ((16, 64), (64, 48)) if matrix else ((2, 16, 9, 9), (16, 16, 3, 3))
    x, w = (Value(TensorType("float32", shape)) for shape in shapes)
    node = getattr(F, kind)(x, w).node
    data, weights = (rng.standard_normal(shape, dtype=np.float32) for shape in shapes)
    held, packed = Held(weights), PackedArrays()
    kernel = make_kernel("cpu", node, KernelContext(threads=2, constant_inputs={1: held}))
    for version in range(3):
        operand = packed.get(held, kernel, 1) if kernel.packed_inputs else held.array
        assert not kernel.packed_inputs or packed.get(held, kernel, 1) is operand
        got = run(kernel, node, [data, operand])[0]
        np.testing.assert_allclose(got, run_node(node, [data, held.array])[0], atol=1e-3)
        # The same memory with other contents: the version says so.
        held.array *= -2
        held.version = version + 1


@needs_onednn
def test_executor_runs_on_packed_parameters_and_sees_new_ones(monkeypatch):
    monkeypatch.setenv("GRAPHKIT_STRICT", "1")
    node, x, w = example()
    params = ParamStore({"w": node.inputs[1].tensor}, {"w": w})
    executor = Executor(Graph(node.inputs, node.outputs), params, threads=2)
    for _ in range(3):
        np.testing.assert_allclose(executor(x)[0], x @ w, atol=1e-4)
    params["w"] = w + 1
    for _ in range(3):
        np.testing.assert_allclose(executor(x)[0], x @ (w + 1), atol=1e-4)
    # A fed parameter is an ordinary operand.
    other = w - 3
    np.testing.assert_allclose(executor.run({"x": x, "w": other})[executor.outputs[0]], x @ other, atol=1e-4)


@needs_onednn
def test_deterministic_results_do_not_depend_on_threads():
    rng = np.random.default_rng(2)
    x, dy = (Value(TensorType("float32", shape), n) for shape, n in (((8, 16, 20, 20), "x"), ((8, 32, 18, 18), "dy")))
    w = Value(TensorType("float32", (32, 16, 3, 3)), "w")
    node = F.conv_grad_weight(x, dy, w).node
    arrays = [rng.standard_normal(v.tensor.static_shape, dtype=np.float32) for v in (x, dy, w)]
    results = set()
    for threads in (1, 2, 3, 4):
        kernel = make_kernel("cpu", node, KernelContext(threads=threads, deterministic=True))
        results.add(run(kernel, node, arrays)[0].tobytes())
    assert len(results) == 1
