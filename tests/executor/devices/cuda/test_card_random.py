"""Random numbers of the card beyond the operators' samples: the references' bits, odd sizes, masks, ratios."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from card_cases import node_of
from emulator import Emulator
from together import together

from graphkit.executor.devices.cuda.launches import CardKernel
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.registry import make_launched
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import TensorType, type_of_array
from graphkit.ops import Op, registry
from graphkit.ops.evaluate import run_node

RNG = np.array([0xFEDCBA9876543210, 0x8000000100000007], np.uint64)
SIZES = [1, 2, 3, 4, 5, 1021, 1024, 4099]
BITS = {2: np.uint16, 4: np.uint32, 8: np.uint64}


def kernel_of(node: Node, *used: bool) -> CardKernel:
    kernel = make_launched("cuda", node, KernelContext(used_outputs=used or (True,)))
    assert isinstance(kernel, CardKernel)
    return kernel


def drawn(emulator: Emulator, node: Node, arrays: list[Any]) -> np.ndarray:
    """Run the node; return the result. Elements around it must not be written."""
    y = node.output
    around = np.full(int(np.prod(y.tensor.static_shape)) + 32, 77, y.dtype.numpy)
    found = around[16:-16].reshape(y.tensor.static_shape)
    assert not emulator.run(kernel_of(node), arrays, [found])
    outside = np.concatenate([around[:16], around[-16:]])
    assert outside.tobytes() == np.full(32, 77, y.dtype.numpy).tobytes()
    return found


def unknown(op: Op, *arrays: Any) -> Node:
    """Return a node whose operands' elements are unknown when its kernel is made."""
    kinds = [type_of_array(a) for a in arrays]
    return Node(op, [Value(TensorType(kind.dtype, kind.shape)) for kind in kinds])


@together(full=lambda size, dtype: SIZES.index(size) % 2 == (dtype in ("float16", "float64")))
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("size", SIZES[-4:])
def test_uniform_numbers_have_the_references_bits(size: int, dtype: str, emulator: Emulator) -> None:
    op = registry.get("", "RandomUniform")(shape=(size,), dtype=dtype, low=-0.3, high=7.1, stream=0xFFFFFFFE)
    node = node_of(op, RNG)
    (wanted,) = run_node(node, [RNG])
    bits = BITS[wanted.dtype.itemsize]
    assert drawn(emulator, node, [RNG]).view(bits).tolist() == wanted.view(bits).tolist()


@together()
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("size", [1, 6, 100_001])
def test_normal_numbers(size: int, dtype: str, emulator: Emulator) -> None:
    node = node_of(registry.get("", "RandomNormal")(shape=(size,), dtype=dtype, stream=5), RNG)
    (wanted,) = run_node(node, [RNG])
    close = {"float32": 5e-7, "float64": 1e-13, "float16": 1e-3, "bfloat16": 8e-3}[dtype]
    # The reference rounds the angle, which is below 2 pi, to float64; a GPU's sincospi does not. The radius is below 9.
    # Near zeros of sine and cosine the error is therefore absolute.
    beside = 9 * 2.0**-51 if dtype == "float64" else close * 1e-3
    found = drawn(emulator, node, [RNG])
    np.testing.assert_allclose(found.astype(np.float64), wanted.astype(np.float64), rtol=close, atol=beside)


def test_a_node_without_a_state_draws_at_its_beginning(emulator: Emulator) -> None:
    x = np.zeros((3, 7), np.int32)
    node = node_of(registry.get("", "RandomUniformLike")(dtype="float32", stream=9), x)
    np.testing.assert_array_equal(drawn(emulator, node, [x]), run_node(node, [x])[0])


@together()
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("result", ["bool", "int64", "float16", "uint8"])
def test_bernoulli(dtype: str, result: str, emulator: Emulator) -> None:
    for size in SIZES[1:]:
        x = np.linspace(0, 1, size).astype(dtype)
        x[size // 2] = np.nan
        node = node_of(registry.get("", "Bernoulli")(dtype=result, stream=1), x, RNG)
        np.testing.assert_array_equal(drawn(emulator, node, [x, RNG]), run_node(node, [x, RNG])[0])


@together()
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("training", [True, False])
def test_dropout(training: bool, dtype: str, emulator: Emulator) -> None:
    rng = np.random.default_rng(0)
    for size, ratio in zip(SIZES, (0.1, 0.5, 0.0, 1.0, 0.3, 0.3, 2.0**-30, 0.999), strict=True):
        x = rng.standard_normal(size).astype(dtype)
        x[-1] = np.nan
        arrays = [x, np.array(ratio, np.float32), np.array(training), RNG]
        node = unknown(registry.get("", "Dropout")(stream=2), *arrays)
        wanted = run_node(node, arrays)
        results = [np.full(size, 9, dtype), np.full(size, False)]
        kernel = kernel_of(node, True, True)
        assert not emulator.run(kernel, arrays, results)
        np.testing.assert_array_equal(results[1], wanted[1])
        np.testing.assert_allclose(results[0], wanted[0], rtol=2e-3 if dtype == "float16" else 1e-6)
        alone = np.full(size, False)
        emulator.run(kernel_of(node, False, True), arrays, [None, alone])
        assert alone.tobytes() == results[1].tobytes()
        assert (0, 0) in kernel.inplace
        emulator.run(kernel_of(node, True, False), arrays, [x, None])
        assert x.tobytes() == results[0].tobytes()


@together()
@pytest.mark.parametrize("ratio", [np.nan, -0.25, 1.5, np.inf])
def test_a_ratio_that_is_none(ratio: float, emulator: Emulator) -> None:
    x = np.ones(5, np.float32)
    for training in (True, False):
        arrays = [x, np.array(ratio, np.float32), np.array(training), RNG]
        node = unknown(registry.get("", "Dropout")(), *arrays)
        kernel = kernel_of(node, True, True)
        assert emulator.run(kernel, arrays, [np.empty_like(x), np.empty(5, bool)]) is training
        assert "ratio is outside [0, 1]" in str(kernel.failure(node, 1))


def test_dropout_that_never_trains_reads_no_state(emulator: Emulator) -> None:
    x = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    node = node_of(registry.get("", "Dropout")(seed=3), x)
    kernel = kernel_of(node, True, True)
    assert not kernel.fault
    y, mask = np.empty_like(x), np.zeros(x.shape, bool)
    emulator.run(kernel, [x], [y, mask])
    assert y.tobytes() == x.tobytes()
    assert mask.all()


def test_seeds_of_a_nodes_own_have_no_kernel() -> None:
    x = np.ones(4, np.float32)
    for node in (
        node_of(registry.get("", "RandomUniform")(shape=(3,), seed=1.0), RNG),
        node_of(registry.get("", "RandomNormal")(shape=(3,), seed=1.0), RNG),
        node_of(registry.get("", "Bernoulli")(seed=1.0), x, RNG),
        node_of(registry.get("", "Dropout")(seed=1), x, None, np.array(True), RNG),
    ):
        assert make_launched("cuda", node, KernelContext()) is None


def test_large_results() -> None:
    """Above 2^31 elements they are counted in 64 bits; above 2^34 words a stream has an end."""
    op = registry.get("", "RandomUniform")
    rng = Value(TensorType("uint64", (2,)))
    (launch,) = kernel_of(Node(op(shape=(1 << 32,)), [rng])).launches
    assert "gk_u64" in launch.source.parameters[-1:]
    assert launch.blocks == 1 << 22
    assert make_launched("cuda", Node(op(shape=(1 << 34, 2)), [rng]), KernelContext()) is None
    assert make_launched("cuda", Node(op(shape=(1 << 34,), dtype="float64"), [rng]), KernelContext()) is None
