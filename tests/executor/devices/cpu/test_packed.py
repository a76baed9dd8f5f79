"""Packed copies of constants for kernels: they are renewed if the version of the constant changes."""

import weakref

import numpy as np
import pytest
from combinations import in_one_item
from kernel_runs import run_kernel

from graphkit.executor.devices.cpu import native
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.registry import make_kernel
from graphkit.executor.memory.packing import HeldArrays, PackedArrays, PackedOperand, SharedOperands
from graphkit.executor.run.params import ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Graph, Value
from graphkit.ir.stored import Scratch
from graphkit.ir.types import TensorType
from graphkit.ops import F
from graphkit.ops.evaluate import run_node

needs_onednn = pytest.mark.skipif(not native.has_onednn(), reason="built without oneDNN")


class Held:
    """A constant operand as the executor hands it to a kernel."""

    def __init__(self, array: np.ndarray):
        self.array = array
        self.version = 0

    def borrowed(self, scratch: Scratch) -> np.ndarray:
        return self.array


def example(shape=(16, 64), weights=(64, 48)):
    rng = np.random.default_rng(0)
    x = Value(TensorType("float32", shape), "x")
    w = Value(TensorType("float32", weights), "w", role="parameter")
    node = F.mat_mul(x, w).node
    return node, rng.standard_normal(shape, dtype=np.float32), rng.standard_normal(weights, dtype=np.float32)


@needs_onednn
@in_one_item()
@pytest.mark.parametrize("kind", ["mat_mul", "conv", "conv_transpose"])
def test_packed_copies_follow_versions(kind):
    rng = np.random.default_rng(1)
    matrix = kind == "mat_mul"
    shapes = ((16, 64), (64, 48)) if matrix else ((2, 16, 9, 9), (16, 16, 3, 3))
    x, w = (Value(TensorType("float32", shape)) for shape in shapes)
    node = getattr(F, kind)(x, w).node
    data, weights = (rng.standard_normal(shape, dtype=np.float32) for shape in shapes)
    held, packed = Held(weights), PackedArrays(lambda: held.version)
    kernel = make_kernel("cpu", node, KernelContext(threads=2, constant_inputs={1: held}))
    for version in range(3):
        packs = bool(kernel.packed_inputs)
        wanted = [PackedOperand(0, held, kernel, 1, kernel.packed_layout(1)) if packs else PackedOperand(0, held)]
        (operand,) = packed.get(wanted)
        assert packed.get(wanted)[0] is operand
        got = run_kernel(kernel, node, [data, operand])[0]
        np.testing.assert_allclose(got, run_node(node, [data, held.array])[0], atol=1e-3)
        # The same memory with other contents: the version says so.
        held.array *= -2
        held.version = version + 1


class _OverwrittenByAnother(SharedOperands):
    """Another thread, which began before the last update, writes its arrays directly after this one."""

    older: tuple[int, weakref.ref[HeldArrays]] | None = None

    @property
    def latest(self):
        return self.older or self._latest

    @latest.setter
    def latest(self, value):
        self._latest = value


def test_threads_that_read_operands_at_once_get_their_own_arrays():
    held = Held(np.ones(3, np.float32))
    packed = PackedArrays(lambda: held.version)
    operands = _OverwrittenByAnother([PackedOperand(7, held)])
    older = HeldArrays([np.zeros(3, np.float32)])
    operands.older = -1, weakref.ref(older)
    assert packed.get_shared(operands)[0] is held.array
    assert operands.externals == [7]


def test_shared_arrays_live_as_long_as_a_program_holds_them():
    held = Held(np.ones(3, np.float32))
    packed = PackedArrays(lambda: held.version)
    operands = SharedOperands([PackedOperand(7, held)])
    arrays = packed.get_shared(operands)
    assert packed.get_shared(operands) is arrays
    held.version = 1
    assert packed.get_shared(operands) is not arrays
    gone = weakref.ref(arrays)
    del arrays
    assert gone() is None
    assert packed.get_shared(operands)[0] is held.array


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
        results.add(run_kernel(kernel, node, arrays)[0].tobytes())
    assert len(results) == 1
