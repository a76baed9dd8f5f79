"""Losses with ignored targets, probabilities, focal losses and masks, compared with their formulas and PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import InputError, UsageError
from graphkit.train.losses import with_loss

RNG = np.random.default_rng(3)
LOGITS = RNG.standard_normal((7, 4)).astype(np.float32)
WEIGHTS = (0.5, 2.0, 1.0, 0.25)
PROBABILITIES = RNG.dirichlet(np.ones(4), 7).astype(np.float32)
PROBABILITIES[0] = [1, 0, 0, 0]
MASKS = (RNG.random((7, 4)) > 0.5).astype(np.float32)
IGNORED = np.array([0, -100, 3, 3, -100, 0, 1])


def value_and_gradient(loss, logits, target):
    """Return a loss and its gradient with respect to the logits."""
    net = with_loss(gk.Model({"y": gk.identity(gk.input("logits", logits.shape))}), loss)
    found = gk.grad(net, of="loss", wrt="logits", with_outputs=True).run({"logits": logits, "target": target})
    return float(found["loss"]), found["logits_grad"]


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def focal(x, t, gamma):
    p = softmax(x)[np.arange(len(t)), t]
    return np.mean(-((1 - p) ** gamma) * np.log(p))


def sigmoid_focal(x, t, gamma, alpha):
    p = sigmoid(x) * t + (1 - sigmoid(x)) * (1 - t)
    a = 1 if alpha is None else alpha * t + (1 - alpha) * (1 - t)
    return np.mean(-a * (1 - p) ** gamma * np.log(p))


def dice(x, t):
    p = sigmoid(x)
    axes = tuple(range(1, x.ndim))
    return np.mean(1 - (2 * (p * t).sum(axes) + 1) / (p.sum(axes) + t.sum(axes) + 1))


def kl(x, t):
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(t > 0, t * (np.log(t) - np.log(softmax(x))), 0)
    return terms.sum(-1).mean()


def numeric_gradient(formula, x, *target, step=1e-6):
    x, found = x.astype(np.float64), np.zeros(x.shape)
    for i in np.ndindex(x.shape):
        moved = [x.copy(), x.copy()]
        moved[0][i] += step
        moved[1][i] -= step
        found[i] = (formula(moved[0], *target) - formula(moved[1], *target)) / (2 * step)
    return found


CLASSES = np.array([0, 1, 3, 3, 2, 0, 1])
FORMULAS = {
    "categorical_cross_entropy": ({}, lambda x, t: -(t * np.log(softmax(x))).sum(-1).mean(), PROBABILITIES),
    "kl_divergence": ({}, kl, PROBABILITIES),
    "focal": ({}, lambda x, t: focal(x, t, 2), CLASSES),
    "focal, gamma 0.5": ({"gamma": 0.5}, lambda x, t: focal(x, t, 0.5), CLASSES),
    "focal, gamma 0": ({"gamma": 0}, lambda x, t: focal(x, t, 0), CLASSES),
    "sigmoid_focal": ({}, lambda x, t: sigmoid_focal(x, t, 2, 0.25), MASKS),
    "sigmoid_focal, options": ({"gamma": 1, "alpha": 0.5}, lambda x, t: sigmoid_focal(x, t, 1, 0.5), MASKS),
    "dice": ({}, dice, MASKS),
}


@in_one_item()
@pytest.mark.parametrize("name", FORMULAS)
def test_values_and_gradients_are_those_of_the_formulas(name):
    options, formula, target = FORMULAS[name]
    loss = gk.losses.get(name.partition(",")[0], **options)
    value, gradient = value_and_gradient(loss, LOGITS, target)
    wide = target.astype(np.float64) if target.dtype.kind == "f" else target
    assert value == pytest.approx(formula(LOGITS.astype(np.float64), wide), rel=1e-5)
    np.testing.assert_allclose(gradient, numeric_gradient(formula, LOGITS, wide), rtol=1e-3, atol=1e-5)


@in_one_item()
@pytest.mark.parametrize("name", ["focal", "sigmoid_focal"])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_sure_predictions_have_finite_gradients(name, gamma):
    logits = np.array([[200.0, -200.0], [-200.0, 200.0]], np.float32)
    target = np.array([0, 0]) if name == "focal" else np.array([[1, 0], [1, 0]], np.float32)
    value, gradient = value_and_gradient(gk.losses.get(name, gamma=gamma), logits, target)
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()
    assert value > 10, "the second prediction is wrong"


@pytest.mark.pytorch
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["alike", "weighted"])
@pytest.mark.parametrize("ignored", [-100, 1])
def test_ignored_targets_are_those_of_pytorch(smoothing, weights, ignored):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    target = np.where(IGNORED == -100, ignored, IGNORED)
    leaf = torch.tensor(LOGITS, requires_grad=True)
    given = None if weights is None else torch.tensor(weights)
    wanted = torch.nn.functional.cross_entropy(
        leaf, torch.tensor(target), given, ignore_index=ignored, label_smoothing=smoothing
    )
    wanted.backward()
    loss = gk.losses.get(
        "softmax_cross_entropy", label_smoothing=smoothing, class_weights=weights, ignore_index=ignored
    )
    value, gradient = value_and_gradient(loss, LOGITS, target)
    assert value == pytest.approx(float(wanted.detach()), rel=1e-5)
    np.testing.assert_allclose(gradient, leaf.grad.numpy(), rtol=1e-4, atol=1e-6)


def test_ignored_targets_have_no_part_in_loss_and_gradient():
    loss = gk.losses.get("softmax_cross_entropy", ignore_index=-100)
    kept = IGNORED != -100
    value, gradient = value_and_gradient(loss, LOGITS, IGNORED)
    expected, part = value_and_gradient("softmax_cross_entropy", LOGITS[kept], IGNORED[kept])
    assert value == pytest.approx(expected, rel=1e-6)
    np.testing.assert_allclose(gradient[kept], part, rtol=1e-6)
    assert not gradient[~kept].any()
    value, gradient = value_and_gradient(loss, LOGITS, np.full(7, -100))
    assert value == 0
    assert not gradient.any()


@in_one_item()
@pytest.mark.parametrize("batch_size", [6, 4, 1])
def test_batches_are_weighted_by_the_targets_that_count(batch_size):
    """Loss and accuracy are means over all targets that count, also if few targets of a batch do."""
    x = RNG.standard_normal((6, 5, 3)).astype(np.float32)
    y = RNG.integers(0, 4, (6, 5))
    y[RNG.random((6, 5)) < 0.6] = -1
    y[2] = -1
    net = gk.Model({"y": gk.mat_mul(gk.input("x", ["N", "T", 3]), gk.parameter("w", (3, 4), "normal"))}, seed=0)
    loss = gk.losses.get("softmax_cross_entropy", ignore_index=-1)
    logits = net.run({"x": x})["y"]
    kept = y >= 0
    p = softmax(logits.astype(np.float64))[kept, y[kept]]
    trainer = gk.Trainer(net, loss, gk.optim.SGD(0.0))
    found = trainer.evaluate((x, y), ["loss", "accuracy"], batch_size=batch_size)
    assert found["loss"] == pytest.approx(-np.log(p).mean(), rel=1e-5)
    assert found["accuracy"] == pytest.approx((logits.argmax(-1) == y)[kept].mean())
    (record,) = trainer.fit((x, y), epochs=1, batch_size=batch_size, metrics=["accuracy"])
    assert record["loss"] == pytest.approx(-np.log(p).mean(), rel=1e-5)
    assert record["accuracy"] == pytest.approx((logits.argmax(-1) == y)[kept].mean())


@in_one_item()
@pytest.mark.parametrize("metric", ["accuracy", "perplexity", "top2", "f1"])
def test_metrics_do_not_count_ignored_targets_of_another_shape(metric):
    x, y = RNG.standard_normal((8, 3)).astype(np.float32), np.array([0, 1, 2, 1, -1, -1, -1, -1])
    net = gk.Model({"y": gk.nn.linear(gk.input("x", ["N", 3]), 4)}, seed=0)
    trainer = gk.Trainer(net, gk.losses.get("softmax_cross_entropy", ignore_index=-1))
    expected = gk.Trainer(net).evaluate((x[:4], y[:4]), metric)
    for targets in (y, y[:, None]):
        assert trainer.evaluate((x, targets), metric, batch_size=3) == pytest.approx(expected)


def test_numbers_of_a_batch_count_once_for_each_target():
    """The function always gets [targets, classes] and [targets], also if many targets of a batch are ignored."""
    shapes = []

    def ones(output, target):
        shapes.append((output.ndim, target.ndim))
        return 1.0

    y = RNG.integers(0, 4, (4, 5))
    y[0, 0] = -1
    net = gk.Model({"y": gk.mat_mul(gk.input("x", ["N", "T", 3]), gk.parameter("w", (3, 4), "normal"))}, seed=0)
    trainer = gk.Trainer(net, gk.losses.get("softmax_cross_entropy", ignore_index=-1))
    found = trainer.evaluate((RNG.standard_normal((4, 5, 3)).astype(np.float32), y), ones, batch_size=2)
    assert found == {"ones": 1.0}
    assert set(shapes) == {(2, 1)}


@pytest.mark.parametrize("options", [{"ignore_index": -1}, {"class_weights": (1.0, 10.0, 1.0, 1.0)}], ids=str)
def test_outputs_with_equal_options_have_different_divisors(options):
    x = gk.input("x", ["N", 3])
    net = gk.Model({"a": gk.nn.linear(x, 4, name="a"), "b": gk.nn.linear(x, 4, name="b")}, seed=0)
    loss = gk.losses.get("softmax_cross_entropy", **options)
    with pytest.warns(UserWarning, match="the losses of outputs 'a' and 'b' have different divisors"):
        gk.Trainer(net, {"a": loss, "b": loss})


def test_only_the_ignored_number_may_be_out_of_range():
    net = gk.Model({"y": gk.nn.linear(gk.input("x", ["N", 3]), 4)}, seed=0)
    trainer = gk.Trainer(net, gk.losses.get("softmax_cross_entropy", ignore_index=255))
    x = np.zeros((3, 3), np.float32)
    trainer.fit((x, np.array([0, 255, 3])), epochs=1)
    with pytest.raises(InputError, match=r"class numbers from 0 to 3, or 255 \(ignored\), .* contain 254"):
        trainer.step(x, np.array([0, 254, 255]))


@pytest.mark.parametrize("batch_size", [4, 3])
def test_a_dice_loss_is_a_mean_over_samples(batch_size):
    x = RNG.standard_normal((4, 2, 3)).astype(np.float32)
    masks = (RNG.random((4, 2, 3)) > 0.5).astype(np.float32)
    given = gk.input("x", ["N", "H", "W"])
    net = gk.Model({"y": given * gk.parameter("w", (), "ones")}, seed=0)
    trainer = gk.Trainer(net, "dice", gk.optim.SGD(0.0))
    found = trainer.evaluate((x, masks), ["loss"], batch_size=batch_size)
    assert found["loss"] == pytest.approx(dice(x.astype(np.float64), masks), rel=1e-5)


@in_one_item()
@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("focal", {"gamma": -1}, "gamma must be a finite number of at least 0"),
        ("sigmoid_focal", {"alpha": 2}, "alpha must be a finite number"),
        ("mse", {"gamma": 1.0}, "gamma= and --loss-option gamma=X only work with focal and sigmoid_focal"),
        ("focal", {"ignore_index": 0}, "ignore_index= and --ignore-index only work with softmax_cross_entropy"),
        ("softmax_cross_entropy", {"ignore_index": 1.5}, "ignore_index must be an integer"),
        ("softmax_cross_entropy", {"ignore_index": 1 << 70}, "is not an int64 number"),
        ("kl_div", {}, "did you mean 'kl_divergence'"),
    ],
)
def test_wrong_options(name, options, message):
    with pytest.raises(UsageError, match=message):
        gk.losses.get(name, **options)
