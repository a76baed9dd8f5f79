"""Normalisations of channels of the card, and all gradients: few groups and many, slices, one pixel, unused results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from card_cases import node_of
from card_runs import kernel_of, run
from emulator import Emulator
from together import together

from graphkit.ops import registry
from graphkit.ops.evaluate import run_node

pytestmark = pytest.mark.full

# Rows of few pixels and of many, one pixel, channels that are not a multiple of a tile, slices.
IMAGES = [(3, 5, 7, 3), (2, 4, 9000), (300, 70), (9000, 3), (40, 6, 2), (17,)]


def check(emulator: Emulator, name: str, options: dict[str, Any], arrays: list[Any], used: tuple[bool, ...]) -> None:
    """Against the reference in float64."""
    domain = "ai.graphkit" if name.endswith("Grad") else ""
    node = node_of(registry.get(domain, name)(**options), *arrays)
    expected = run_node(node, [None if a is None else a.astype(np.float64) for a in arrays])
    tolerance = 2e-5 if all(a is None or a.dtype == np.float32 for a in arrays) else 1e-2
    for y, wanted, read in zip(run(emulator, node, arrays, used), expected, used, strict=True):
        assert (y is None) is not read
        if read:
            np.testing.assert_allclose(y, wanted, rtol=tolerance, atol=tolerance * max(1, np.abs(wanted).max()))


def drawn(*shapes: tuple[int, ...], kind: type = np.float32) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(kind) for shape in shapes]


@together()
@pytest.mark.parametrize("shape", IMAGES, ids=str)
def test_batch_normalization(shape: tuple[int, ...], emulator: Emulator) -> None:
    channels = (*shape, 1)[1]
    x, dy, scale, b, mean, noise = drawn(shape, shape, *((channels,) for _ in range(4)))
    x, var = 7 + 2 * x, np.abs(noise) + np.float32(0.1)
    few = shape[0] % 2 == 0
    for options, used in (({}, (True,)), ({"training_mode": True, "momentum": 0.75}, (True, few, True))):
        check(emulator, "BatchNormalization", options, [x, scale, b, mean, var], used)
    if len(shape) > 1:
        check(emulator, "BatchNormGrad", {"epsilon": 1e-3}, [dy, x, scale], (True, True, few))


def test_vectors_of_other_types_than_images(emulator: Emulator) -> None:
    x, dy = drawn((4, 3, 50), (4, 3, 50), kind=np.float16)
    scale, b, mean = drawn((3,), (3,), (3,))
    arrays = [x, scale, b, mean, np.abs(mean)]
    check(emulator, "BatchNormalization", {"training_mode": True}, arrays, (True, True, True))
    check(emulator, "BatchNormGrad", {}, [dy, x, scale], (True, True, True))


def test_statistics_of_a_large_mean(emulator: Emulator) -> None:
    """A sum of squares would lose all of the variance."""
    x = (30000 + np.random.default_rng(0).standard_normal((2, 3, 30000))).astype(np.float32)
    one = np.ones(3, np.float32)
    node = node_of(registry.get("", "BatchNormalization")(training_mode=True, momentum=0.0), x, one, one, one, one)
    assert len(kernel_of(node).launches) == 3
    _, mean, var = run(emulator, node, [x, one, one, one, one])
    np.testing.assert_allclose(mean, x.astype(np.float64).mean(axis=(0, 2)), rtol=1e-6)
    np.testing.assert_allclose(var, x.astype(np.float64).var(axis=(0, 2)), rtol=1e-3)


def test_one_channel_of_nan_leaves_the_others(emulator: Emulator) -> None:
    x, scale = drawn((6, 5, 40), (5,))
    x[2, 3, 7] = np.nan
    node = node_of(registry.get("", "BatchNormalization")(training_mode=True), x, scale, scale, scale, np.abs(scale))
    y, mean, _ = run(emulator, node, [x, scale, scale, scale, np.abs(scale)])
    assert np.flatnonzero(np.isnan(mean)).tolist() == [3]
    assert np.isnan(y).any(axis=(0, 2)).tolist() == np.isnan(y).all(axis=(0, 2)).tolist() == np.isnan(mean).tolist()


@together()
@pytest.mark.parametrize("shape", [(2, 6, 3, 5), (1, 4, 30000), (40, 12, 1)], ids=str)
def test_instances_and_groups(shape: tuple[int, ...], emulator: Emulator) -> None:
    x, scale, b = drawn(shape, shape[1:2], shape[1:2])
    for name, options in (("InstanceNormalization", {}), ("GroupNormalization", {"num_groups": 2})):
        check(emulator, name, {"epsilon": 1e-2, **options}, [3 + x, scale, b], (True,))


def test_other_axes(emulator: Emulator) -> None:
    for shape, axes in (((3, 5, 4, 7), (0, 2, 3)), ((70, 300), (1,)), ((3, 4, 5, 6), (1, -1))):
        check(emulator, "MeanVarianceNormalization", {"axes": axes}, [5 + drawn(shape)[0]], (True,))
    for shape, axis in (((30, 70), 1), ((3, 70, 40), 1), ((1, 70000), 1)):
        x = drawn(shape)[0]
        x[0, :] *= 1 if shape[0] == 1 else 0
        check(emulator, "LpNormalization", {"axis": axis, "p": 1}, [x], (True,))
        check(emulator, "LpNormalization", {"axis": axis, "p": 2}, [x], (True,))


# --- channels last ----------------------------------------------------------------------------------

LAST: list[dict[str, Any]] = [
    {}, {"activation": "Relu"}, {"activation": "Clip", "activation_alpha": -0.25, "activation_beta": 0.5},
]  # fmt: skip


@together()
@pytest.mark.parametrize("shape", [(3, 7, 5), (4000, 3), (1, 30, 30, 33)], ids=str)
@pytest.mark.parametrize("options", LAST, ids=lambda o: o.get("activation", "none"))
def test_channels_last(shape: tuple[int, ...], options: dict[str, Any], emulator: Emulator) -> None:
    """Forward and backward, with and without a residual. The mask is computed from the result of the forward pass."""
    x, dy, other, scale, b, mean = drawn(shape, shape, shape, *[shape[-1:]] * 3)
    x, var = 7 + 2 * x, np.abs(mean) + np.float32(0.1)
    for residual in ([], [other]):
        forward = node_of(
            registry.get("ai.graphkit", "ChannelsLastBatchNorm")(**options), x, scale, b, mean, var, *residual
        )
        arrays = [x, scale, b, mean, var, *residual]
        expected = run_node(forward, [a.astype(np.float64) for a in arrays])
        found = run(emulator, forward, arrays)
        for y, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-4)
        given = [dy, x, scale, b, *found[3:], *([found[0], other] if residual else [])]
        back = node_of(registry.get("ai.graphkit", "ChannelsLastBatchNormGrad")(**options), *given)
        expected = run_node(back, [a.astype(np.float64) for a in given])
        some = ((False, True, True, False), (True, False, False, True)) if residual and len(x) == 3 else ()
        for used in ((True,) * 4, *some):
            for y, wanted, read in zip(run(emulator, back, given, used), expected, used, strict=True):
                assert (y is None) is not read
                if read:
                    np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-4 * max(1, np.abs(wanted).max()))


def test_what_is_no_number_passes_activations_with_channels_last(emulator: Emulator) -> None:
    """And so does the gradient there, as on processors; the other channels do not see it."""
    x, dy, vector = drawn((6, 4, 3), (6, 4, 3), (3,))
    x[2, 1, 1] = np.nan
    positive = np.abs(vector)
    for options in LAST[1:]:
        forward = node_of(registry.get("ai.graphkit", "ChannelsLastBatchNorm")(**options), x, *[positive] * 4)
        y, *_, mean, deviation = run(emulator, forward, [x, *[positive] * 4])
        assert np.isnan(y).all(axis=(0, 1)).tolist() == np.isnan(y).any(axis=(0, 1)).tolist() == [False, True, False]
        given = [dy, x, positive, positive, mean, deviation]
        back = node_of(registry.get("ai.graphkit", "ChannelsLastBatchNormGrad")(**options), *given)
        dx, _, db, passed = run(emulator, back, given)
        np.testing.assert_array_equal(passed[..., 1], dy[..., 1])
        assert np.isnan(dx).all(axis=(0, 1)).tolist() == np.isnan(dx).any(axis=(0, 1)).tolist() == [False, True, False]
        assert np.isfinite(db).all()


def test_statistics_of_half_floats_are_floats(emulator: Emulator) -> None:
    """A mean that is much larger than the deviation would change all gradients if it were rounded to float16."""
    rng = np.random.default_rng(0)
    x = (100 + rng.standard_normal((64, 50, 3))).astype(np.float16)
    dy, one = rng.standard_normal(x.shape).astype(np.float16), np.ones(3, np.float16)
    forward = node_of(registry.get("ai.graphkit", "ChannelsLastBatchNorm")(), x, *[one] * 4)
    *_, mean, deviation = run(emulator, forward, [x, *[one] * 4])
    np.testing.assert_allclose(mean, x.astype(np.float64).mean(axis=(0, 1)), rtol=1e-6)
    given = [dy, x, one, one, mean, deviation]
    back = node_of(registry.get("ai.graphkit", "ChannelsLastBatchNormGrad")(), *given)
    found = run(emulator, back, given)
    wanted = run_node(back, [a.astype(np.float64) for a in given])
    for y, expected in zip(found, wanted, strict=True):
        np.testing.assert_allclose(y, expected, rtol=2e-3, atol=2e-3)


# --- gradients of the normalisations of rows --------------------------------------------------------

# The operand, the factor, and the first axis: along rows, across them, repeated in both, one for all.
ROWS = [
    ((9, 40), (40,), -1), ((2000, 24), (24,), -1), ((2, 9000), (9000,), -1), ((4, 3, 10), (3, 1), 1),
    ((4, 3, 10), (4, 1, 10), 2), ((4, 3, 10), (4, 3, 10), 1), ((4, 3, 10), (), 2),
]  # fmt: skip


@together()
@pytest.mark.parametrize("case", ROWS, ids=str)
def test_gradients_of_rows(case: tuple[tuple[int, ...], tuple[int, ...], int], emulator: Emulator) -> None:
    shape, factor, axis = case
    x, dy, scale = (np.asarray(a, np.float32) for a in drawn(shape, shape, factor))
    x += 3
    axes = tuple(range(axis % x.ndim, x.ndim))
    mean, inverse = x.mean(axis=axes, keepdims=True), 1 / np.sqrt(x.var(axis=axes, keepdims=True) + 1e-5)
    for statistics, used in (([mean, inverse], (True, True, True)), ([], (True, len(shape) == 2, True))):
        check(emulator, "LayerNormGrad", {"axis": axis}, [dy, x, scale, *statistics], used)
    check(emulator, "RMSNormGrad", {"axis": axis, "epsilon": 1e-3}, [dy, x, scale], (True, True))


def test_gradients_of_which_some_are_unused(emulator: Emulator) -> None:
    x, dy, scale = drawn((9, 40), (9, 40), (40,))
    for used in ((False, True, True), (True, False, False), (False, False, True)):
        check(emulator, "LayerNormGrad", {}, [dy, x, scale], used)
    for flags in ((False, True), (True, False)):
        check(emulator, "RMSNormGrad", {}, [dy, x, scale], flags)


def test_results_in_the_place_of_operands(emulator: Emulator) -> None:
    x, dy, scale = drawn((4, 3, 7000), (4, 3, 7000), (3,))
    cases: list[tuple[str, dict[str, Any], list[Any], tuple[bool, ...]]] = [
        ("BatchNormGrad", {}, [dy, x, scale], (True, True, True)),
        ("LayerNormGrad", {"axis": 1}, [dy, x, scale[:1]], (True, False, False)),
        ("RMSNormGrad", {"axis": 1}, [dy, x, scale[:1]], (True, False)),
    ]
    for name, options, arrays, used in cases:
        node = node_of(registry.get("ai.graphkit", name)(**options), *arrays)
        expected = run_node(node, arrays)[0]
        kernel = kernel_of(node, used)
        assert list(kernel.inplace) == [(0, 0), (1, 0)]
        for place in (0, 1):
            operands = [a.copy() for a in arrays]
            others = [np.zeros(v.tensor.static_shape, v.dtype.numpy) for v in node.outputs[1:]]
            emulator.run(kernel, operands, [operands[place], *others])
            np.testing.assert_allclose(operands[place], expected, rtol=1e-3, atol=1e-5)
    node = node_of(registry.get("ai.graphkit", "LayerNormGrad")(), dy, x, np.ones(7000, np.float32))
    assert not kernel_of(node).inplace  # the sums over rows read the operands again
