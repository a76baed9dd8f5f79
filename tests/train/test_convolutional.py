"""Train convolutional networks with all passes and with none, and with several numbers of threads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item
from device_pipelines import patch_pipelines

import graphkit as gk
from graphkit import config

NETWORKS = {
    "resnet20": lambda: gk.models.build("resnet", layers=20, classes=5, image=(3, 13, 13)),
    "resnet": lambda: gk.models.build("resnet", layers=18, classes=5, image=(3, 33, 33)),
    "bottlenecks": lambda: gk.models.build("resnet", layers=50, classes=5, image=(3, 33, 33)),
    "mobilenetv2": lambda: gk.models.build("mobilenetv2", classes=5, image=(3, 33, 33), dropout=0.0),
    "lenet": lambda: gk.models.build("lenet"),
}


def batch(name: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    shape = {"lenet": (8, 1, 28, 28), "resnet20": (8, 3, 13, 13)}.get(name, (8, 3, 33, 33))
    return rng.standard_normal(shape, dtype=np.float32), rng.integers(0, 5, 8)


def by_lane(names: Iterable[str]) -> list[Any]:
    """Put deep networks into the full lane."""
    return [pytest.param(n, marks=pytest.mark.full) if n in ("resnet", "bottlenecks") else n for n in names]


def train(name: str, steps: int = 1, **options: object) -> tuple[list[float], dict[str, np.ndarray]]:
    """Return the losses, and all arrays that training writes."""
    net = NETWORKS[name]()
    trainer = gk.Trainer(net, loss="softmax_cross_entropy", optimizer=gk.optim.SGD(0.05), **options)
    losses = [float(trainer.step(*batch(name))) for _ in range(steps)]
    return losses, {key: np.array(value) for key, value in net.params.items()}


@in_one_item()
@pytest.mark.parametrize("name", by_lane(NETWORKS))
def test_step_equals_the_reference(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {key: np.array(value) for key, value in NETWORKS[name]().params.items()}
    with monkeypatch.context() as patch:
        patch_pipelines(patch, inference_passes=lambda *args: ())
        losses, expected = train(name)
    monkeypatch.setenv(config.STRICT.name, "1")
    found, params = train(name, threads=2)
    np.testing.assert_allclose(found, losses, rtol=1e-5)
    # Rounding decides whether a Relu passes a value near 0. With few positions, this has a large effect.
    total = sum(float(np.sum((expected[k] - before[k]) ** 2)) for k in before)
    wrong = sum(float(np.sum((expected[k] - params[k]) ** 2)) for k in before)
    assert wrong <= 1e-4 * total


@pytest.mark.parametrize(
    "name", [*by_lane(["resnet20", "resnet", "lenet"]), pytest.param("mobilenetv2", marks=pytest.mark.full)]
)
def test_deterministic_steps_do_not_depend_on_threads(name: str) -> None:
    first, *others = (train(name, steps=2, threads=n, deterministic=True) for n in (1, 2, 4))
    for losses, params in others:
        assert losses == first[0]
        for key, value in params.items():
            np.testing.assert_array_equal(value, first[1][key], err_msg=key)
