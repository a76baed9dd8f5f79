"""Losses of the card: many labels and few, slices, pixels, labels that are ignored and that are wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from card_cases import node_of
from card_runs import kernel_of, run
from emulator import Emulator
from together import together

from graphkit.ir.types import DType
from graphkit.ops import registry
from graphkit.ops.evaluate import run_node

# Few scores and many, few labels and many, pixels; with weights of classes or without.
CASES: list[tuple[tuple[int, ...], dict[str, Any], bool]] = [
    ((5, 3), {"ignore_index": 1}, True),
    ((3000, 4), {}, True),
    ((3000, 4), {"ignore_index": -1, "reduction": "sum"}, False),
    ((2, 60000), {"ignore_index": 1}, False),
    ((70, 300), {}, False),
    ((3, 5, 40, 7), {"ignore_index": -1, "reduction": "none"}, True),
    ((3, 5, 40, 7), {"ignore_index": 2}, True),
    ((4, 1, 3), {"reduction": "none"}, False),
]


def operands(shape: tuple[int, ...], ignored: int | None, kind: type = np.float32) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, shape[1], (shape[0], *shape[2:]))
    if ignored is not None:
        labels.reshape(-1)[::3] = ignored
    return (2 * rng.standard_normal(shape)).astype(kind), labels, rng.uniform(0.5, 2, shape[1]).astype(kind)


def wide(arrays: list[Any]) -> list[Any]:
    return [a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays]


def compare(emulator: Emulator, name: str, options: dict[str, Any], arrays: list[Any], used: tuple[bool, ...]) -> None:
    domain = "ai.graphkit" if name.endswith("Grad") else ""
    node = node_of(registry.get(domain, name)(**options), *arrays)
    with np.errstate(invalid="ignore", divide="ignore"):
        expected = run_node(node, wide(arrays))
    found = run(emulator, node, arrays, used)
    tolerance = 1e-5 if arrays[0].dtype == np.float32 else 1e-2
    for y, wanted, read in zip(found, expected, used, strict=False):
        assert (y is None) is not read
        if read:
            np.testing.assert_allclose(y, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)


@together(full=lambda case: CASES.index(case) in (2, 4, 6, 7))
@pytest.mark.parametrize("case", CASES, ids=str)
def test_losses_and_gradients(case: tuple[tuple[int, ...], dict[str, Any], bool], emulator: Emulator) -> None:
    shape, options, weighted = case
    x, labels, weights = operands(shape, options.get("ignore_index"))
    none = options.get("reduction") == "none"
    dloss = np.random.default_rng(1).standard_normal(labels.shape if none else ()).astype(np.float32)
    more = [weights] if weighted else []
    compare(emulator, "SoftmaxCrossEntropyLoss", options, [x, labels, *more], (True, weighted))
    compare(emulator, "NegativeLogLikelihoodLoss", options, [x, labels, *more], (True,))
    log_prob = (x - np.log(np.exp(x).sum(axis=1, keepdims=True))).astype(np.float32)
    compare(emulator, "SoftmaxCrossEntropyGrad", options, [np.asarray(dloss), log_prob, labels, *more], (True,))
    if len(shape) == 2 and not none:
        arrays = [x, labels.astype(np.int32), np.asarray(dloss), *more]
        compare(emulator, "SoftmaxCrossEntropyWithGrad", options, arrays, (weighted, True))


def test_halves_are_computed_in_single_precision(emulator: Emulator) -> None:
    x, labels, weights = operands((300, 70), None, np.float16)
    compare(emulator, "SoftmaxCrossEntropyLoss", {}, [x, labels, weights], (True, True))
    compare(emulator, "SoftmaxCrossEntropyWithGrad", {}, [x, labels, np.full((), 1, np.float16), weights], (True, True))


@together(full=lambda kind, made, weighted: (kind is DType.FLOAT16) == (made == weighted))
@pytest.mark.parametrize("kind", [DType.BFLOAT16, DType.FLOAT16], ids=str)
@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_half_floats_beside_a_loss_that_is_none(kind: DType, made: bool, weighted: bool, emulator: Emulator) -> None:
    """Scores are widened as they are read; of the gradient that is `made` every element is what a cast makes of it."""
    x, labels, weights = operands((300, 70), None)
    x, dloss = x.astype(kind.numpy), np.full((), 0.25, np.float32)
    more = [weights] if weighted else []
    wanted = kind if made else None
    options = {"ignore_index": 3, "made": wanted}
    mixed = node_of(registry.get("ai.graphkit", "SoftmaxCrossEntropyWithGrad")(**options), x, labels, dloss, *more)
    plain = node_of(mixed.op.replace(made=None), x.astype(np.float32), labels, dloss, *more)
    loss, found = run(emulator, mixed, [x, labels, dloss, *more], (True, True))
    same, expected = run(emulator, plain, [x.astype(np.float32), labels, dloss, *more], (True, True))
    assert loss.tobytes() == same.tobytes()
    assert found.tobytes() == expected.astype(mixed.outputs[1].dtype.numpy).tobytes()


def test_all_labels_ignored(emulator: Emulator) -> None:
    """The sum is 0, even of infinite losses, and the mean is NaN."""
    x, labels = np.full((3, 4), np.inf, np.float32), np.full(3, 9)
    for reduction, wanted in (("sum", 0.0), ("mean", np.nan)):
        for name in ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"):
            node = node_of(registry.get("", name)(ignore_index=9, reduction=reduction), x, labels)
            np.testing.assert_equal(run(emulator, node, [x, labels])[0], np.float32(wanted))


@together()
@pytest.mark.parametrize("wrong", [-1, 4, 1 << 40])
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_a_label_out_of_range_sets_the_fault(wrong: int, reduction: str, emulator: Emulator) -> None:
    x, labels, weights = operands((30, 4), None)
    labels[17] = wrong
    dloss = np.ones(30 if reduction == "none" else (), np.float32)
    cases: list[tuple[str, str, list[Any]]] = [
        ("", "NegativeLogLikelihoodLoss", [x, labels, weights]),
        ("", "SoftmaxCrossEntropyLoss", [x, labels, weights]),
        ("ai.graphkit", "SoftmaxCrossEntropyGrad", [dloss, x, labels, weights]),
    ]
    if reduction == "mean":
        cases.append(("ai.graphkit", "SoftmaxCrossEntropyWithGrad", [x, labels, dloss, weights]))
    for domain, name, arrays in cases:
        for ignored, faulty in ((2, True), (wrong, False)):
            node = node_of(registry.get(domain, name)(reduction=reduction, ignore_index=ignored), *arrays)
            kernel = kernel_of(node)
            results = [np.zeros(v.tensor.static_shape, v.dtype.numpy) for v in node.outputs]
            assert emulator.run(kernel, arrays, results) is faulty
            assert "a label is outside [0, 4)" in str(kernel.failure(node, 1))


def test_the_gradient_in_the_place_of_scores(emulator: Emulator) -> None:
    for shape in ((70, 30), (2, 40000)):
        x, labels, weights = operands(shape, 1)
        dloss = np.ones((), np.float32)
        op = registry.get("ai.graphkit", "SoftmaxCrossEntropyWithGrad")(ignore_index=1)
        node = node_of(op, x, labels, dloss, weights)
        expected = run_node(node, [x, labels, dloss, weights])
        loss, kernel = np.zeros((), np.float32), kernel_of(node)
        assert list(kernel.inplace) == [(0, 1)]
        emulator.run(kernel, [x, labels, dloss, weights], [loss, x])
        np.testing.assert_allclose(loss, expected[0], rtol=1e-5)
        np.testing.assert_allclose(x, expected[1], rtol=1e-4, atol=1e-7)


@together()
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_no_labels_in_half_floats(reduction: str, emulator: Emulator) -> None:
    x, labels = np.zeros((0, 5), DType.BFLOAT16.numpy), np.zeros(0, np.int64)
    op = registry.get("ai.graphkit", "SoftmaxCrossEntropyWithGrad")(reduction=reduction, made=DType.BFLOAT16)
    arrays = [x, labels, np.ones((), np.float32)]
    loss, dscores = run(emulator, node_of(op, *arrays), arrays, (True, True))
    assert np.isnan(loss) if reduction == "mean" else loss == 0
    assert dscores.shape == (0, 5)
