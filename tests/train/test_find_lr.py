"""The search for a learning rate: its curve, its suggestion, and that it restores the trainer."""

import csv

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import UsageError


def trainer(**options):
    x = gk.input("x", ["N", 3])
    h = gk.nn.batch_norm(gk.nn.dropout(gk.nn.linear(x, 8, name="fc1"), 0.2), name="bn")
    net = gk.Model(gk.nn.linear(h, 3, name="fc2"), seed=0)
    options.setdefault("optimizer", gk.optim.Adam(gk.optim.Cosine(1e-2)))
    return gk.Trainer(net, threads=1, seed=1, **options)


def data(n=90):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, 3)).astype(np.float32)
    return x, x.argmax(1)


@in_one_item("values")
@pytest.mark.parametrize("options", [{}, {"ema": 0.9}, {"accumulate": 2}, {"mixup": 0.4}], ids=str)
@pytest.mark.parametrize("after", [0, 2], ids=["at first", "after two epochs"])
def test_search_restores_the_trainer(options, after):
    """Training after a search is bit-identical to training without one: also slots, dropout and statistics."""

    def trained(searched):
        found = trainer(**options)
        if after:
            found.fit(data(), epochs=after, batch_size=16)
        if searched:
            curve = gk.find_lr(found, data(), batch_size=16)
            assert len(curve.rates) > 20
        found.fit(data(), epochs=2, batch_size=16)
        return {**found.net.params, **found._stepper.slots}, found.updates

    (straight, count), (searched, other) = trained(False), trained(True)
    assert count == other
    for name, array in straight.items():
        np.testing.assert_array_equal(searched[name], array, err_msg=name)


def test_the_curve_of_a_parabola(tmp_path):
    """Gradient descent on (w - 3)^2 converges below a rate of 1, fastest at 1/2, and diverges above, unless it is
    exactly at 3.
    """
    x = gk.input("x", ["N", 1])
    net = gk.Model(gk.nn.linear(x, 1, bias=False, init="zeros", name="fc"))
    found = gk.Trainer(net, "mse", gk.optim.SGD(0.1), threads=1)
    ones = np.ones((8, 1), np.float32)
    targets = 3 + np.random.default_rng(1).normal(0, 0.3, (8, 1)).astype(np.float32)
    noisy = gk.find_lr(found, (ones, targets), lowest=1e-4, highest=100.0, steps=200, batch_size=2)
    assert noisy.diverged
    assert 0.5 < noisy.rates[-1] < 20, "a while after errors begin to grow"
    assert 1e-3 < noisy.suggestion < 1
    curve = gk.find_lr(found, (ones, 3 * ones), lowest=1e-4, highest=100.0, steps=200)
    w = 0.0
    for rate, loss in list(zip(curve.rates, curve.losses, strict=True))[:60]:
        assert loss == pytest.approx((w - 3) ** 2, rel=1e-4)
        w -= rate * 2 * (w - 3)
    ratios = np.array(curve.rates[1:]) / np.array(curve.rates[:-1])
    np.testing.assert_allclose(ratios, 1e6 ** (1 / 199), rtol=1e-6)
    curve.save(tmp_path / "curve.csv")
    with (tmp_path / "curve.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["loss"]) for row in rows] == list(curve.losses)
    assert [float(row["learning_rate"]) for row in rows] == list(curve.rates)
    assert net.params["fc_weight"] == 0


def test_search_ends_at_a_nonfinite_loss():
    found = trainer(optimizer=gk.optim.SGD(0.1))
    curve = gk.find_lr(found, data(), lowest=1e-3, highest=1e38, steps=50)
    assert curve.diverged
    assert len(curve.rates) < 50
    assert curve.suggestion is not None
    assert all(np.isfinite(array).all() for array in found.net.params.values())


def test_a_loss_that_never_falls_has_no_suggestion():
    found = trainer(optimizer=gk.optim.SGD(0.1))
    curve = gk.find_lr(found, data(), lowest=1e-30, highest=1e-29, steps=2)
    assert curve.suggestion is None
    assert not curve.diverged


def test_find_lr_errors(on_ranks):
    for options, message in [
        ({"lowest": 1.0, "highest": 0.1}, "must be below highest"), ({"steps": 1}, "integer of at least 2"),
        ({"lowest": 0.0}, "above 0"),
    ]:  # fmt: skip
        with pytest.raises(UsageError, match=message):
            gk.find_lr(trainer(), data(), **options)
    half = trainer(accumulate=2, optimizer="adam")
    half.step(*data())
    with pytest.raises(UsageError, match="between two epochs"):
        gk.find_lr(half, data())

    def work(store):
        with pytest.raises(UsageError, match="only works in one process"):
            gk.find_lr(trainer(kvstore=store), data())

    on_ranks(work)


def test_a_first_loss_that_is_infinite_ends_the_search():
    net = gk.Model(gk.nn.linear(gk.input("x", ["N", 1]), 1, name="fc"), seed=0)
    found = gk.Trainer(net, "mse", gk.optim.SGD(0.1), threads=1, on_nonfinite="ignore")
    x = np.ones((4, 1), np.float32)
    curve = gk.find_lr(found, (x, 1e30 * x), steps=20, batch_size=2)
    assert (curve.diverged, len(curve.losses), curve.suggestion) == (True, 1, None)
    assert np.isinf(curve.losses[0])
