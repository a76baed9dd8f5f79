"""Networks that train on the stand-in for the card: what the processor computes, by kernels of the card's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from stand_in import Card

import graphkit as gk

NETWORKS: dict[str, tuple[Callable[[gk.Value], gk.Value], set[str]]] = {
    "layers": (
        lambda x: gk.nn.rms_norm(gk.tanh(gk.nn.layer_norm(gk.nn.linear(gk.flatten(x), 12)))),
        {"LayerNormalization", "LayerNormGrad", "RMSNormalization", "RMSNormGrad"},
    ),
    "batches": (lambda x: gk.nn.linear(gk.flatten(gk.nn.batch_norm(x)), 5), {"BatchNormalization", "BatchNormGrad"}),
    "images": (
        lambda x: gk.nn.linear(gk.flatten(gk.nn.group_norm(gk.nn.instance_norm(x), 2)), 5),
        {"InstanceNormalization", "GroupNormalization"},
    ),
    "attention": (
        lambda x: gk.softmax(gk.nn.linear(gk.flatten(x), 7)) + gk.log_softmax(gk.nn.linear(gk.flatten(x), 7), axis=0),
        {"Softmax", "LogSoftmax", "SoftmaxGrad"},
    ),
}


def trained(build: Callable[[gk.Value], gk.Value], device: str) -> tuple[list[float], dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    net = gk.Model({"y": build(gk.input("x", ["N", 4, 3, 3]))}, name="net", seed=3)
    trainer = gk.Trainer(net, "softmax_cross_entropy", gk.optim.SGD(0.1), device=device, seed=1)
    losses = []
    for _ in range(3):
        images, labels = rng.standard_normal((6, 4, 3, 3)).astype(np.float32), rng.integers(0, 5, 6)
        losses.append(float(trainer.step(images, labels)))
    return losses, dict(net.params)


@pytest.mark.parametrize("name", NETWORKS)
def test_training(name: str, card: Card) -> None:
    build, wanted = NETWORKS[name]
    here, params = trained(build, "cpu")
    there, found = trained(build, "cuda")
    np.testing.assert_allclose(there, here, rtol=1e-5)
    for key, array in params.items():
        np.testing.assert_allclose(found[key], array, rtol=1e-3, atol=1e-5)
    assert wanted | {"SoftmaxCrossEntropyWithGrad"} <= set(card.launched)
    assert not wanted & set(card.interpreted)
