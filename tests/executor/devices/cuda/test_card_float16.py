"""Training in float16 on the stand-in for a card: small gradients are kept, large ones lower the factor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from stand_in import Card
from together import together

import graphkit as gk
from graphkit.errors import NotFinite
from graphkit.ir.types import TensorType
from graphkit.train.programs import loss_scale

RNG = np.random.default_rng(0)
X, T = (RNG.standard_normal((8, n)).astype(np.float32) for n in (6, 3))


def trainer(device: str, precision: str, weight: float, **options: Any) -> gk.Trainer:
    """Two layers before a loss that is multiplied by `weight`, and a rate that is divided by it."""

    def loss(y: gk.Value, target: gk.Value) -> gk.Value:
        return gk.reduce_mean((y - target) * (y - target), keepdims=False) * np.float32(weight)

    targets = {"target": TensorType("float32", ("N", 3))}

    x = gk.input("x", ["N", 6])
    net = gk.Model(gk.nn.linear(gk.tanh(gk.nn.linear(x, 5, name="one")), 3, name="two"), seed=1)
    rate = gk.optim.SGD(0.1 / weight)
    return gk.Trainer(net, loss, rate, targets=targets, device=device, precision=precision, seed=1, **options)


def factor(made: gk.Trainer) -> list[float]:
    return np.asarray(made._stepper.slots[loss_scale.NAME]).tolist()


def params(made: gk.Trainer) -> dict[str, np.ndarray]:
    return {name: np.array(array) for name, array in made.net.params.items()}


def moved(made: gk.Trainer, steps: int = 1) -> dict[str, np.ndarray]:
    before = params(made)
    for _ in range(steps):
        made.step(X, T)
    return {name: array - before[name] for name, array in params(made).items()}


@together(full=lambda options: "clip_norm" in options)
@pytest.mark.parametrize("options", [{}, {"accumulate": 2}, {"clip_norm": 1e3}], ids=str)
def test_gradients_below_the_smallest_half_float(options: dict[str, Any], card: Card) -> None:
    """Of y they are 1e-9; the parameters move as they do in float32."""
    wanted = moved(trainer("cpu", "f32", 2.0**-24, **options), steps=2)
    made = trainer("cuda", "f16", 2.0**-24, **options)
    for name, array in moved(made, steps=2).items():
        np.testing.assert_allclose(array, wanted[name], rtol=0.02, atol=1e-3 * np.abs(wanted[name]).max(), err_msg=name)
    updates = 2 // options.get("accumulate", 1)
    assert factor(made) == [2.0**16, updates]
    assert made._stepper.updates == updates


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_gradients_that_are_too_large_lower_the_factor(card: Card) -> None:
    """Until they are finite; nothing is written before."""
    made = trainer("cuda", "f16", 2.0**12)
    before, lost = params(made), 0
    while np.isnan(float(made.step(X, T))) and lost < 16:
        lost += 1
        for name, array in params(made).items():
            np.testing.assert_array_equal(array, before[name])
    assert made._stepper.updates == 1
    assert made._stepper.skipped == lost >= 8
    assert factor(made) == [2.0 ** (16 - lost), 1]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_loss_that_stays_infinite_is_an_error(card: Card) -> None:
    """Once the factor cannot be lower."""
    made, target = trainer("cuda", "f16", 1.0), np.full_like(T, np.inf)
    for _ in range(16):
        assert np.isnan(float(made.step(X, target)))
    assert made._stepper.skipped == 16
    assert factor(made) == [1, 0]
    with pytest.raises(NotFinite, match="the loss is"):
        made.step(X, target)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_gradients_that_stay_too_large_are_an_error(card: Card) -> None:
    """Of several batches too, and of a loss that is finite; nothing is written."""
    made = trainer("cuda", "f16", 2.0**40, accumulate=2)
    before = params(made)
    for _ in range(32):
        assert np.isfinite(float(made.step(X, T)))
    assert made._stepper.skipped == 16
    made.step(X, T)
    with pytest.raises(NotFinite, match="gradients are not finite at update 1"):
        made.step(X, T)
    for name, array in params(made).items():
        np.testing.assert_array_equal(array, before[name])


def test_the_factor_is_in_checkpoints(card: Card, tmp_path: Any) -> None:
    made = trainer("cuda", "f16", 1.0)
    made.step(X, np.full_like(T, np.inf))
    made.step(X, T)
    made.save(tmp_path / "saved")
    again = trainer("cuda", "f16", 1.0)
    again.resume(tmp_path / "saved")
    assert factor(again) == factor(made) == [2.0**15, 1]
