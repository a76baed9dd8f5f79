"""Softmax and normalisations of the card on rows of every length: of a warp, of a block, kept and read again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from card_cases import node_of
from emulator import Emulator

from graphkit.executor.devices.cuda.launches import CardKernel
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.registry import make_launched
from graphkit.ir.graph import Node
from graphkit.ops import registry
from graphkit.ops.evaluate import run_node

SIZES = [1, 31, 40, 256, 257, 2000, 2100]


def run(emulator: Emulator, node: Node, arrays: list[Any], used: tuple[bool, ...] = (True,) * 3) -> list[Any]:
    kernel = make_launched("cuda", node, KernelContext(used_outputs=used))
    assert isinstance(kernel, CardKernel)
    found = []
    for order in (0, 1):
        results = [
            np.full(v.tensor.static_shape, 77, v.dtype.numpy) if read else None
            for v, read in zip(node.outputs, used, strict=False)
        ]
        assert not emulator.run(kernel, arrays, results, order=order)
        found.append(results)
    for a, b in zip(*found, strict=True):
        assert a is None or a.tobytes() == b.tobytes(), "what comes out depends on which thread comes first"
    return found[0]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["Softmax", "LogSoftmax"])
def test_softmax(name: str, size: int, emulator: Emulator) -> None:
    for dtype, tolerance in ((np.float32, 1e-6), (np.float16, 2e-3)):
        x = (8 * np.random.default_rng(size).standard_normal((9, size))).astype(dtype)
        node = node_of(registry.get("", name)(axis=-1), x)
        (found,) = run(emulator, node, [x])
        np.testing.assert_allclose(found, run_node(node, [x])[0], rtol=10 * tolerance, atol=tolerance)


def test_softmax_of_what_is_hidden_and_of_nan(emulator: Emulator) -> None:
    x = np.zeros((4, 50), np.float32)
    x[0, 1:] = -np.inf
    x[1] = -np.inf
    x[2, 7] = np.nan
    x[3, 3] = 1e30
    node = node_of(registry.get("", "Softmax")(axis=1), x)
    (found,) = run(emulator, node, [x])
    assert found[0].tolist() == [1] + [0] * 49
    assert np.isnan(found[1:3]).all()
    assert found[3].tolist() == [0] * 3 + [1] + [0] * 46


def test_softmax_in_the_place_of_its_operand(emulator: Emulator) -> None:
    """Where a thread has read all of its elements before it writes one."""
    for size, kept in ((40, True), (4000, False)):
        x = np.random.default_rng(0).standard_normal((3, size)).astype(np.float32)
        node = node_of(registry.get("", "Softmax")(axis=1), x)
        kernel = make_launched("cuda", node, KernelContext())
        assert isinstance(kernel, CardKernel)
        assert list(kernel.inplace) == [(0, 0)] * kept
        if kept:
            expected = run_node(node, [x])[0]
            emulator.run(kernel, [x], [x])
            np.testing.assert_allclose(x, expected, rtol=1e-6)


def test_other_axes_have_no_kernel() -> None:
    x = np.zeros((3, 4, 5), np.float32)
    assert make_launched("cuda", node_of(registry.get("", "Softmax")(axis=1), x), KernelContext()) is None
    assert make_launched("cuda", node_of(registry.get("", "Softmax")(axis=1), x[:, :, :1]), KernelContext()) is not None


@pytest.mark.parametrize("size", SIZES)
def test_layer_normalization(size: int, emulator: Emulator) -> None:
    rng = np.random.default_rng(size)
    for dtype, tolerance in ((np.float32, 1e-5), (np.float16, 5e-3)):
        x = (3 + rng.standard_normal((7, size))).astype(dtype)
        scale, bias = rng.standard_normal(size).astype(dtype), rng.standard_normal(size).astype(dtype)
        for factors in ([scale, bias], [scale], [scale, bias[:1]]):
            node = node_of(registry.get("", "LayerNormalization")(), x, *factors)
            expected = run_node(node, [x, *factors])
            for found, wanted in zip(run(emulator, node, [x, *factors]), expected, strict=True):
                np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance * max(1, np.abs(wanted).max()))
        alone = run(emulator, node, [x, *factors], used=(False, True, False))
        np.testing.assert_allclose(alone[1], expected[1], rtol=tolerance)


def test_factors_that_do_not_lie_along_rows_have_no_kernel() -> None:
    x, across = np.zeros((4, 4, 6), np.float32), np.ones((4, 1), np.float32)
    assert make_launched("cuda", node_of(registry.get("", "LayerNormalization")(), x, across), KernelContext()) is None
    wide = np.ones((4, 6), np.float32)
    node = node_of(registry.get("", "LayerNormalization")(axis=1), x, wide)
    assert make_launched("cuda", node, KernelContext()) is not None


@pytest.mark.parametrize("size", SIZES)
def test_rms_normalization(size: int, emulator: Emulator) -> None:
    rng = np.random.default_rng(size)
    x, scale = rng.standard_normal((5, size)).astype(np.float32), rng.standard_normal(size).astype(np.float32)
    node = node_of(registry.get("", "RMSNormalization")(epsilon=1e-3), x, scale)
    (found,) = run(emulator, node, [x, scale], used=(True,))
    np.testing.assert_allclose(found, run_node(node, [x, scale])[0], rtol=1e-5, atol=1e-5)
