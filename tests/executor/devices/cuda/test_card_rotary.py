"""Rotary embeddings of the card: heads inside and outside of the sequence, pairs near and far, positions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from card_cases import node_of
from card_runs import kernel_of, run
from emulator import Emulator
from together import together

from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.registry import make_launched
from graphkit.ops import registry
from graphkit.ops.evaluate import run_node

_ROTARY = registry.get("", "RotaryEmbedding")


@together()
@pytest.mark.parametrize("kind", [np.float32, np.float16], ids=lambda k: k.__name__)
@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((3, 5, 70, 16), {}),
        ((3, 70, 80), {"num_heads": 5}),
        ((3, 5, 70, 20), {"rotary_embedding_dim": 16, "interleaved": True}),
        ((3, 70, 100), {"num_heads": 5, "rotary_embedding_dim": 16}),
    ],
    ids=str,
)
def test_positions(shape: tuple[int, ...], options: dict[str, Any], kind: Any, emulator: Emulator) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape).astype(kind)
    for leading, more in (((90,), [rng.integers(-90, 90, (3, 70))]), ((3, 70), [])):
        cos, sin = rng.standard_normal((2, *leading, 8)).astype(kind)
        node = node_of(_ROTARY(**options), x, cos, sin, *more)
        (found,) = run(emulator, node, [x, cos, sin, *more])
        (expected,) = run_node(node, [*(a.astype(np.float64) for a in (x, cos, sin)), *more])
        tolerance = 1e-6 if kind is np.float32 else 2e-3
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@together()
@pytest.mark.parametrize("wrong", [90, -91, 1 << 40])
def test_a_position_outside_of_the_caches_sets_the_fault(wrong: int, emulator: Emulator) -> None:
    x, cache, ids = np.ones((1, 2, 3, 4), np.float32), np.ones((90, 2), np.float32), np.array([[0, wrong, 1]])
    node = node_of(_ROTARY(), x, cache, cache, ids)
    kernel = kernel_of(node)
    assert emulator.run(kernel, [x, cache, cache, ids], [np.zeros_like(x)])
    assert "outside of the 90 of the caches" in str(kernel.failure(node, 1))


def test_caches_that_are_broadcast_have_no_kernel() -> None:
    x, cache = np.ones((2, 2, 3, 4), np.float32), np.ones((1, 3, 2), np.float32)
    assert make_launched("cuda", node_of(_ROTARY(), x, cache, cache), KernelContext()) is None
