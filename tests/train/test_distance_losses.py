"""Contrastive and triplet losses, compared with their formulas, numeric gradients, and PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import UsageError

RNG = np.random.default_rng(5)
EMBEDDINGS = RNG.standard_normal((9, 4))
CLASSES = np.array([0, 1, 0, 2, 1, 1, 3, 0, 2])  # class 3 has one sample: no positive


def run(build: Any, wrt: str = "x", **feeds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The loss that `build` makes of inputs by name, and its gradient with respect to one of them."""
    inputs = {name: gk.input(name, ["N", *array.shape[1:]], array.dtype.name) for name, array in feeds.items()}
    loss = build(**inputs)
    (gradient,) = gk.gradient([loss], [inputs[wrt]])
    results = gk.Model({"loss": loss, "gradient": gradient}, name="loss").compile(threads=1).run(feeds)
    return results["loss"], results["gradient"]


def numeric(formula: Any, x: np.ndarray) -> np.ndarray:
    found = np.zeros_like(x)
    for at in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[at] = 1e-6
        found[at] = (formula(x + step) - formula(x - step)) / 2e-6
    return found


def hardest(x: np.ndarray, classes: np.ndarray, margin: float, weights: np.ndarray | None = None) -> float:
    """Batch-hard triplet loss by loops."""
    total = count = 0.0
    for i in range(len(x)):
        distances = np.sqrt(((x - x[i]) ** 2).sum(1))
        positives = [distances[j] for j in range(len(x)) if j != i and classes[j] == classes[i]]
        negatives = [distances[j] for j in range(len(x)) if classes[j] != classes[i]]
        if positives and negatives:
            w = 1.0 if weights is None else weights[i]
            total += w * max(max(positives) - min(negatives) + margin, 0)
            count += w
    return total / count if count else 0.0


@in_one_item()
@pytest.mark.parametrize("margin", [0.0, 0.3, 2.0])
def test_triplet_mines_the_hardest_of_the_batch(margin: float) -> None:
    loss, gradient = run(lambda x, t: gk.losses.triplet(x, t, margin), x=EMBEDDINGS, t=CLASSES)
    np.testing.assert_allclose(loss, hardest(EMBEDDINGS, CLASSES, margin), rtol=1e-10)
    expected = numeric(lambda x: hardest(x, CLASSES, margin), EMBEDDINGS)
    np.testing.assert_allclose(gradient, expected, atol=1e-7)


@in_one_item()
@pytest.mark.parametrize("classes", [np.zeros(4, np.int64), np.arange(4), np.array([0, 0, 0, 1])])
def test_batches_without_triplets_have_no_loss(classes: np.ndarray) -> None:
    x = EMBEDDINGS[: len(classes)]
    loss, gradient = run(lambda x, t: gk.losses.triplet(x, t, 5.0), x=x, t=classes)
    np.testing.assert_allclose(loss, hardest(x, classes, 5.0), rtol=1e-10)
    assert np.isfinite(gradient).all()


def test_equal_embeddings_have_a_finite_gradient() -> None:
    """The distance 0 has no derivative."""
    for dtype in ("float32", "float64"):
        x = np.ones((4, 3), dtype)
        loss, gradient = run(lambda x, t: gk.losses.triplet(x, t), x=x, t=np.array([0, 0, 1, 1]))
        assert loss == 1.0
        assert np.isfinite(gradient).all()


def network() -> gk.Model:
    return gk.Model({"y": gk.mat_mul(gk.input("x", ["N", 4]), gk.parameter("w", [4, 4]))}, name="net")


def trainer(loss: Any, rate: float = 0.0, **options: Any) -> gk.Trainer:
    net = network()
    net.params["w"] = np.eye(4, dtype=np.float32)
    return gk.Trainer(net, loss, gk.optim.SGD(rate), threads=1, **options)


@pytest.mark.parametrize("weights", [None, np.array([0, 1, 2, 0, 0.5, 1, 9, 3, 0], np.float32)])
def test_named_triplet_counts_anchors(weights: np.ndarray | None) -> None:
    """The mean over batches is weighted by the anchors that count, not by samples."""
    x = EMBEDDINGS.astype(np.float32)
    made = trainer(gk.losses.get("triplet", margin=0.5))
    np.testing.assert_allclose(
        float(made.step(x, CLASSES, weights)), hardest(EMBEDDINGS, CLASSES, 0.5, weights), rtol=1e-5
    )
    order = np.arange(9)
    given = {} if weights is None else {"sample_weight": weights}
    found = made.evaluate((x, CLASSES), ["loss"], batch_size=4, **given)["loss"]
    total = count = 0.0
    for rows in (order[:4], order[4:8], order[8:]):
        w = np.ones(len(rows)) if weights is None else weights[rows].astype(float)
        has = np.array(
            [
                any(CLASSES[j] == CLASSES[i] for j in rows if j != i) and any(CLASSES[j] != CLASSES[i] for j in rows)
                for i in rows
            ]
        )
        weight = (w * has).sum()
        total += weight * hardest(EMBEDDINGS[rows], CLASSES[rows], 0.5, w)
        count += weight
    np.testing.assert_allclose(found, total / count, rtol=1e-5)


def test_named_triplet_is_weighted_over_ranks(on_ranks: Any) -> None:
    x = EMBEDDINGS.astype(np.float32)

    def work(store: Any) -> float:
        rows = slice(0, 6) if store.rank == 0 else slice(6, 9)  # the second rank has no triplet
        return float(trainer("triplet", kvstore=store).step(x[rows], CLASSES[rows]))

    assert on_ranks(work) == pytest.approx([hardest(EMBEDDINGS[:6], CLASSES[:6], 1.0)] * 2, rel=1e-5)


def contrastive(d: np.ndarray, t: np.ndarray, margin: float) -> np.ndarray:
    return t * d**2 + (1 - t) * np.maximum(margin - d, 0) ** 2


@pytest.mark.parametrize("margin", [1.0, 0.4])
def test_contrastive_follows_the_formula(margin: float) -> None:
    d, t = np.abs(RNG.standard_normal((12, 1))), RNG.integers(0, 2, (12, 1)).astype(np.float64)
    loss, gradient = run(lambda x, t: gk.losses.contrastive(x, t, margin), x=d, t=t)
    np.testing.assert_allclose(loss, contrastive(d, t, margin).mean(), rtol=1e-12)
    np.testing.assert_allclose(gradient, numeric(lambda x: contrastive(x, t, margin).mean(), d), atol=1e-8)


def test_named_contrastive_takes_zero_and_one() -> None:
    x = gk.input("x", ["N", 4])
    net = gk.Model({"d": gk.sqrt(gk.reduce_sum(x * x, [1], keepdims=False))}, name="distance")
    with pytest.raises(UsageError):
        gk.losses.get("contrastive", margin=-1.0)
    graph = gk.losses.with_loss(net, gk.losses.get("contrastive", margin=2.0))
    t = (CLASSES == 0).astype(np.float32)
    found = graph.run({"x": EMBEDDINGS.astype(np.float32), "target": t})["loss"]
    d = np.sqrt((EMBEDDINGS**2).sum(1))
    np.testing.assert_allclose(float(found), contrastive(d, t, 2.0).mean(), rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_triplet_margin_follows_the_formula(dtype: str) -> None:
    anchor, positive, negative = RNG.standard_normal((3, 6, 4))
    weights = RNG.random(6)

    def formula(a: np.ndarray) -> float:
        d = [np.sqrt(((a - other + 1e-6) ** 2).sum(1)) for other in (positive, negative)]
        return (weights * np.maximum(d[0] - d[1] + 0.5, 0)).sum() / weights.sum()

    loss, gradient = run(
        lambda a, p, n, w: gk.losses.triplet_margin(a, p, n, 0.5, sample_weight=w), "a",
        a=anchor.astype(dtype), p=positive.astype(dtype), n=negative.astype(dtype), w=weights.astype(np.float32),
    )  # fmt: skip
    np.testing.assert_allclose(loss, formula(anchor), rtol=1e-5)
    np.testing.assert_allclose(gradient, numeric(formula, anchor), atol=1e-5)


@pytest.mark.pytorch
def test_triplet_margin_equals_that_of_pytorch() -> None:
    import torch

    anchor, positive, negative = RNG.standard_normal((3, 6, 4))
    a, p, n = (torch.tensor(x, requires_grad=True) for x in (anchor, positive, negative))
    theirs = torch.nn.functional.triplet_margin_loss(a, p, n, margin=0.7)
    theirs.backward()
    for name, tensor in (("a", a), ("p", p), ("n", n)):
        loss, gradient = run(
            lambda a, p, n: gk.losses.triplet_margin(a, p, n, 0.7), name, a=anchor, p=positive, n=negative
        )
        np.testing.assert_allclose(loss, theirs.item(), rtol=1e-12)
        np.testing.assert_allclose(gradient, tensor.grad.numpy(), atol=1e-12)
