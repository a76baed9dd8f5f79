"""CTC, compared with a sum over all alignments, numeric gradients, and PyTorch."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import graphkit as gk
from graphkit.errors import UsageError

RNG = np.random.default_rng(4)


def labels_of(alignment: tuple[int, ...], blank: int) -> tuple[int, ...]:
    merged = [c for i, c in enumerate(alignment) if i == 0 or alignment[i - 1] != c]
    return tuple(c for c in merged if c != blank)


def brute_force(logits: np.ndarray, target: np.ndarray, lengths: np.ndarray, blank: int) -> np.ndarray:
    """The loss of each sample: sum the probabilities of all alignments that give its labels."""
    p = np.exp(logits.astype(np.float64))
    p /= p.sum(-1, keepdims=True)
    found = []
    for probabilities, row, length in zip(p, target, lengths, strict=True):
        wanted, total = tuple(c for c in row if c >= 0), 0.0
        for alignment in itertools.product(range(logits.shape[-1]), repeat=int(length)):
            if labels_of(alignment, blank) == wanted:
                total += np.prod(probabilities[np.arange(length), list(alignment)])
        found.append(-np.log(total) / max(len(wanted), 1) if total else np.inf)
    return np.array(found)


def program(dtype: str = "float64", classes: int = 3, **options: Any) -> Any:
    """A function of (logits, target, lengths) that returns the loss and its gradient with respect to the logits."""
    x, target = gk.input("x", ["N", "T", classes], dtype), gk.input("target", ["N", "S"], "int64")
    lengths = gk.input("lengths", ["N"], "int64")
    loss = gk.losses.ctc(x, target, lengths, **options)
    (gradient,) = gk.gradient([loss], [x])
    exe = gk.Model({"loss": loss, "gradient": gradient}, name="ctc").compile(threads=1)

    def run(logits: np.ndarray, rows: np.ndarray, steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        results = exe.run({"x": logits.astype(dtype), "target": rows, "lengths": steps})
        return results["loss"], results["gradient"]

    return run


# Labels with neighbours that are equal, without labels, and shorter than the longest.
TARGETS = np.array([[1, 2, -1], [1, 1, -1], [-1, -1, -1], [2, 1, 2], [2, -1, -1]])
LENGTHS = np.array([5, 4, 3, 5, 1])
LOGITS = RNG.standard_normal((5, 5, 3))


@pytest.mark.parametrize("blank", [0, 2])
def test_loss_is_the_sum_over_all_alignments(blank: int) -> None:
    targets = TARGETS if blank == 0 else np.where(TARGETS == 2, 0, TARGETS)
    loss, _ = program(blank=blank)(LOGITS, targets, LENGTHS)
    np.testing.assert_allclose(loss, brute_force(LOGITS, targets, LENGTHS, blank).mean(), rtol=1e-12)


def test_gradient_is_that_of_central_differences() -> None:
    run = program()
    _, gradient = run(LOGITS, TARGETS, LENGTHS)
    numeric = np.zeros_like(LOGITS)
    for at in np.ndindex(LOGITS.shape):
        step = np.zeros_like(LOGITS)
        step[at] = 1e-6
        numeric[at] = (run(LOGITS + step, TARGETS, LENGTHS)[0] - run(LOGITS - step, TARGETS, LENGTHS)[0]) / 2e-6
    np.testing.assert_allclose(gradient, numeric, atol=1e-8)
    assert not gradient[4, 1:].any(), "steps after the end of a sequence have no influence"


def test_sequence_that_is_too_short_has_infinite_loss_and_no_gradient() -> None:
    """Two equal labels need three steps."""
    run = program()
    loss, gradient = run(LOGITS[:2], np.array([[1, 1], [1, 2]]), np.array([2, 2]))
    assert loss == np.inf
    assert np.isfinite(gradient).all()
    assert not gradient[0].any()
    assert gradient[1].any()
    assert np.isfinite(run(LOGITS[:1], np.array([[1, 1]]), np.array([3]))[0])


def test_long_sequences_with_large_logits_are_finite() -> None:
    logits = RNG.standard_normal((2, 600, 8)) * 50
    target = RNG.integers(1, 8, (2, 40))
    loss, gradient = program("float32", 8)(logits, target, np.array([600, 431]))
    exact, exact_gradient = program("float64", 8)(logits, target, np.array([600, 431]))
    np.testing.assert_allclose(loss, exact, rtol=1e-5)
    np.testing.assert_allclose(gradient, exact_gradient, atol=2e-3)
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_logits_are_computed_in_float32(dtype: str) -> None:
    x = gk.input("x", ["N", "T", 3], dtype)
    loss = gk.losses.ctc(x, gk.input("target", ["N", "S"], "int64"))
    rounded = LOGITS[:4].astype(gk.DType[dtype.upper()].numpy)
    exe = gk.Model({"loss": loss}, name="ctc").compile(threads=1)
    found = exe.run({"x": rounded, "target": TARGETS[:4]})["loss"]
    expected = brute_force(rounded.astype(np.float64), TARGETS[:4], np.full(4, 5), 0).mean()
    np.testing.assert_allclose(float(found), expected, rtol=1e-2)


def network(classes: int = 3) -> gk.Model:
    x = gk.input("x", ["N", "T", 4])
    return gk.Model({"logits": gk.nn.linear(x, classes, name="fc")}, name="net", seed=0)


def test_named_loss_trains_with_padded_targets_and_weights() -> None:
    x = RNG.standard_normal((6, 5, 4)).astype(np.float32)
    targets = np.array([[1, 2], [1, -1], [2, 2], [2, 1], [-1, -1], [1, 1]])
    made = gk.Trainer(network(), "ctc", gk.optim.SGD(0.0), threads=1)
    logits = made.net.run({"x": x})["logits"]
    each = brute_force(logits, targets, np.full(6, 5), 0)
    np.testing.assert_allclose(float(made.step(x, targets)), each.mean(), rtol=1e-5)
    w = np.array([0, 1, 2, 0.5, 3, 0], np.float32)
    np.testing.assert_allclose(float(made.step(x, targets, w)), (w * each).sum() / w.sum(), rtol=1e-5)
    record = made.fit((x, targets), (x, targets), batch_size=4)[0]
    np.testing.assert_allclose([record["loss"], record["valid_loss"]], each.mean(), rtol=1e-5)
    trained = gk.Trainer(network(), "ctc", gk.optim.Adam(0.1), threads=1)
    first = float(trained.step(x, targets))
    for _ in range(30):
        last = float(trained.step(x, targets))
    assert last < first / 2


def test_output_after_softmax_is_not_normalised_twice() -> None:
    x = gk.input("x", ["N", "T", 4])
    net = gk.Model({"p": gk.softmax(gk.nn.linear(x, 3, name="fc"))}, name="net", seed=0)
    given, targets = RNG.standard_normal((2, 5, 4)).astype(np.float32), np.array([[1, 2], [1, -1]])
    expected = float(gk.Trainer(network(), "ctc", gk.optim.SGD(0.0), threads=1).step(given, targets))
    assert float(gk.Trainer(net, "ctc", gk.optim.SGD(0.0), threads=1).step(given, targets)) == pytest.approx(expected)


def test_dimension_of_the_model_may_have_the_name_of_the_target_length() -> None:
    x = gk.input("x", ["N", "target_length", 4])
    net = gk.Model({"logits": gk.nn.linear(x, 3, name="fc")}, name="net", seed=0)
    given, targets = RNG.standard_normal((2, 5, 4)).astype(np.float32), np.array([[1, 2], [1, -1]])
    made = gk.Trainer(net, "ctc", gk.optim.SGD(0.0), threads=1)
    expected = gk.Trainer(network(), "ctc", gk.optim.SGD(0.0), threads=1).step(given, targets)
    assert float(made.step(given, targets)) == pytest.approx(float(expected))


@pytest.mark.parametrize("blank", [-1, 3])
def test_blank_must_be_a_class(blank: int) -> None:
    with pytest.raises(UsageError, match="blank"):
        gk.Trainer(network(), gk.losses.get("ctc", blank=blank))


def test_label_that_is_no_class_is_an_error() -> None:
    made = gk.Trainer(network(), "ctc", threads=1)
    with pytest.raises(gk.errors.GraphkitError, match=r"3"):
        made.step(RNG.standard_normal((1, 5, 4)).astype(np.float32), np.array([[3]]))


def test_logits_without_a_time_axis_are_an_error() -> None:
    net = gk.Model({"logits": gk.nn.linear(gk.input("x", ["N", 4]), 3)}, name="net")
    with pytest.raises(UsageError, match="ctc needs logits"):
        gk.Trainer(net, "ctc")


@pytest.mark.pytorch
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("samples", "steps", "classes", "longest"), [(4, 12, 5, 3), (7, 33, 11, 9), (1, 1, 2, 1)])
def test_loss_and_gradient_equal_those_of_pytorch(
    dtype: str, samples: int, steps: int, classes: int, longest: int
) -> None:
    import torch

    logits = RNG.standard_normal((samples, steps, classes))
    targets, counts = RNG.integers(1, classes, (samples, longest)), RNG.integers(0, longest + 1, samples)
    for row, count in zip(targets, counts, strict=True):
        row[count:] = -1
    lengths = RNG.integers(max(steps - 3, 1), steps + 1, samples)
    loss, gradient = program(dtype, classes)(logits, targets, lengths)
    x = torch.tensor(logits, requires_grad=True)
    theirs = torch.nn.functional.ctc_loss(
        torch.log_softmax(x, -1).transpose(0, 1), torch.tensor(np.maximum(targets, 0)), torch.tensor(lengths),
        torch.tensor(counts), reduction="mean",
    )  # fmt: skip
    theirs.backward()
    tolerance = 1e-5 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(loss, theirs.item(), rtol=tolerance)
    np.testing.assert_allclose(gradient, x.grad.numpy(), atol=tolerance)
