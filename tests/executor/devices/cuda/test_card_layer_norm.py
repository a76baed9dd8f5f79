"""Normalisations of the card over the last axes: rows of a warp, of a block, kept and read again."""

from __future__ import annotations

import numpy as np
import pytest
from card_cases import node_of
from card_runs import run
from emulator import Emulator
from together import together

from graphkit.ops import registry
from graphkit.ops.evaluate import run_node

SIZES = [1, 31, 40, 256, 257, 2000, 2100]


@together(full=lambda size: size not in (40, 257, 2100))
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


@together()
@pytest.mark.parametrize("place", [0, 17, 1023])
@pytest.mark.parametrize("size", [1024, 70000])
def test_the_mean_of_a_row_with_infinity(place: int, size: int, emulator: Emulator) -> None:
    """The mean is infinite, at any position of the infinity, and the other rows are unchanged."""
    x = np.random.default_rng(0).standard_normal((3, size)).astype(np.float32)
    x[1, place], scale = -np.inf, np.ones(size, np.float32)
    node = node_of(registry.get("", "LayerNormalization")(), x, scale)
    y, means, _ = run(emulator, node, [x, scale])
    assert means[1] == -np.inf
    assert np.isnan(y[1]).all()
    assert np.isfinite(y[[0, 2]]).all()


# The factors of rows: across them, repeated along some of their axes, one for all; and rows in slices.
@together()
@pytest.mark.parametrize(
    ("shape", "axis", "factors"),
    [
        ((4, 4, 6), -1, [(4, 1), (4, 1, 6)]),
        ((4, 3, 6), 1, [(3, 1), (1, 6)]),
        ((4, 3, 6), 1, [(3, 6), ()]),
        ((2, 70000), 1, [(70000,), (2, 1)]),
    ],
    ids=str,
)
def test_factors_of_any_shape(
    shape: tuple[int, ...], axis: int, factors: list[tuple[int, ...]], emulator: Emulator
) -> None:
    rng = np.random.default_rng(0)
    x, *given = (np.asarray(rng.standard_normal(s), np.float32) for s in (shape, *factors))
    for name, arrays in (("LayerNormalization", [x, *given]), ("RMSNormalization", [x, given[0]])):
        node = node_of(registry.get("", name)(axis=axis, epsilon=1e-2), *arrays)
        expected = run_node(node, [a.astype(np.float64) for a in arrays])
        for found, wanted in zip(run(emulator, node, arrays), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)


@together(full=lambda size: size not in (1, 256, 2000))
@pytest.mark.parametrize("size", SIZES)
def test_rms_normalization(size: int, emulator: Emulator) -> None:
    rng = np.random.default_rng(size)
    x, scale = rng.standard_normal((5, size)).astype(np.float32), rng.standard_normal(size).astype(np.float32)
    node = node_of(registry.get("", "RMSNormalization")(epsilon=1e-3), x, scale)
    (found,) = run(emulator, node, [x, scale], used=(True,))
    np.testing.assert_allclose(found, run_node(node, [x, scale])[0], rtol=1e-5, atol=1e-5)
