"""Normalisations of the card over the last axes: rows of a warp, of a block, kept and read again."""

from __future__ import annotations

import numpy as np
import pytest
from card_cases import node_of
from card_runs import run
from emulator import Emulator

from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.registry import make_launched
from graphkit.ops import registry
from graphkit.ops.evaluate import run_node

SIZES = [1, 31, 40, 256, 257, 2000, 2100]


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
