"""Networks that train on a fake GPU have the results of the CPU, with GPU kernels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from combinations import default_at
from stand_in import Card
from together import together

import graphkit as gk
from graphkit.errors import RuntimeFailure

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


@together()
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


def test_a_label_out_of_range_is_an_error(card: Card) -> None:
    scores, labels = gk.input("scores", ["N", 4]), gk.input("labels", ["N"], dtype="int64")
    loss, _ = gk.softmax_cross_entropy_loss(scores, labels)
    exe = gk.Model({"loss": loss}).compile("cuda")
    x = np.ones((2, 4), np.float32)
    with pytest.raises(RuntimeFailure, match=r"SoftmaxCrossEntropyLoss.*a label is outside \[0, 4\)"):
        exe.run({"scores": x, "labels": np.array([1, 4])})
    np.testing.assert_allclose(exe.run({"scores": x, "labels": np.array([1, 3])})["loss"], np.log(4), rtol=1e-6)


def test_formulas_are_operators_with_kernels(card: Card) -> None:
    """Softmax and layer normalisation in the nodes of older exporters."""
    x = gk.input("x", [4, 6])
    axes = np.array([1])
    raised = gk.exp(x - gk.reduce_max(x, axes))
    centred = x - gk.reduce_mean(x, axes)
    normal = centred / gk.sqrt(gk.reduce_mean(centred * centred, axes) + 1e-5)
    net = gk.Model({"p": raised / gk.reduce_sum(raised, axes), "n": normal})
    feed = {"x": np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)}
    found, wanted = net.compile("cuda").run(feed), net.compile("cpu").run(feed)
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6)
    assert sorted(card.launched) == ["LayerNormalization", "Softmax"]
    assert not card.interpreted


def test_what_consists_of_kernels_is_expanded(card: Card) -> None:
    """Operators without a kernel of the card's own: in the forward pass, its gradient, and the update."""

    def trained(device: str) -> tuple[list[float], dict[str, np.ndarray]]:
        x, w = gk.input("x", ["N", 3, 4]), gk.parameter("w", (4, 5), init=gk.init.Normal(0.5))
        net = gk.Model({"y": gk.nn.linear(gk.flatten(gk.einsum(x, w, equation="nij,jk->nik")), 3)}, seed=3)
        trainer = gk.Trainer(net, "softmax_cross_entropy", gk.optim.Lamb(0.1), device=device, seed=1)
        rng = np.random.default_rng(0)
        batches = [(rng.standard_normal((6, 3, 4)).astype(np.float32), rng.integers(0, 3, 6)) for _ in range(3)]
        return [float(trainer.step(*batch)) for batch in batches], dict(net.params)

    here, params = trained("cpu")
    there, found = trained("cuda")
    np.testing.assert_allclose(there, here, rtol=1e-4)
    for key, array in params.items():
        np.testing.assert_allclose(found[key], array, rtol=1e-3, atol=1e-5)
    assert not card.interpreted


@default_at(1)
@pytest.mark.parametrize("options", [{}, {"accumulate": 2, "ema": 0.9}, {"clip_norm": 0.1}], ids=str)
def test_weights_of_batches(card: Card, options: dict[str, object]) -> None:
    """The GPU computes the weight of a batch. It divides the sums that the host adds up."""
    rng = np.random.default_rng(0)
    data = rng.standard_normal((24, 6)).astype(np.float32), np.sort(rng.integers(0, 3, 24))
    loss = gk.losses.get("softmax_cross_entropy", class_weights=[1.0, 20.0, 0.1], label_smoothing=0.1)

    def fitted(device: str) -> tuple[dict[str, float], gk.Model]:
        net = gk.Model({"y": gk.nn.linear(gk.tanh(gk.nn.linear(gk.input("x", ["N", 6]), 5)), 3)}, name="net", seed=3)
        trainer = gk.Trainer(net, loss, gk.optim.Adam(0.01), device=device, seed=1, **options)
        return trainer.fit(data, data, epochs=2, batch_size=5, progress=False)[-1], net

    (here, expected), (there, found) = fitted("cpu"), fitted("cuda")
    for name in ("loss", "valid_loss"):
        np.testing.assert_allclose(there[name], here[name], rtol=1e-4)
    for name, array in expected.params.items():
        np.testing.assert_allclose(found.params[name], array, rtol=1e-3, atol=1e-4)


def test_half_parameters_have_states_in_float32(card: Card) -> None:
    """Adam's steps of 1e-4 vanish in float16."""

    def stepped(device: str) -> gk.Trainer:
        x, w = gk.input("x", ["N", 4], "float16"), gk.parameter("w", [4, 3], dtype="float16")
        net = gk.Model({"y": gk.mat_mul(x, w)}, name="net", seed=1)
        trainer = gk.Trainer(net, optimizer=gk.optim.Adam(1e-4), device=device, ema=0.9, threads=1)
        rng = np.random.default_rng(0)
        for _ in range(12):
            trainer.step(rng.standard_normal((8, 4)).astype(np.float16), rng.integers(0, 3, 8))
        return trainer

    here, there = stepped("cpu"), stepped("cuda")
    for name in ("w/master", "w/average", "w/variance"):
        found, expected = there._stepper.slots[name], here._stepper.slots[name]
        assert np.asarray(found).dtype == np.float32
        np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-3, atol=1e-5)
    assert there.net.params["w"].dtype == np.float16
