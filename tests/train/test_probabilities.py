"""Networks that end in a Softmax or Sigmoid: losses take the logits, and metrics the probabilities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.ir.graph import Value
from graphkit.ops import F
from graphkit.train.probabilities import are_probabilities

X = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)
CLASSES, ANSWERS = np.arange(8) % 3, (np.arange(8) % 2).astype(np.float32)


def network(outputs: int, end: Callable[[Value], Value]) -> gk.Model:
    h = gk.nn.linear(gk.input("x", ["N", 6]), outputs, name="fc")
    return gk.Model({"y": end(h)}, seed=0)


def at(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


SOFTMAX: dict[str, Callable[[Value], Value]] = {
    "nothing": F.softmax,
    "identity": lambda h: F.identity(F.softmax(h)),
    "reshape": lambda h: F.reshape(F.softmax(F.reshape(h, at(-1, 1, 3))), at(-1, 3)),
    "squeeze": lambda h: F.squeeze(F.softmax(F.unsqueeze(h, at(1))), at(1)),
    "flatten": lambda h: F.flatten(F.softmax(F.reshape(h, at(-1, 3, 1, 1)), axis=1)),
    "transpose": lambda h: F.transpose(F.softmax(F.transpose(h, perm=(1, 0)), axis=0), perm=(1, 0)),
    "cast": lambda h: F.cast(F.softmax(F.cast(h, to="float64")), to="float32"),
    "clip": lambda h: F.clip(F.softmax(h), np.float32(1e-7), np.float32(1.0)),
    "max and min": lambda h: F.min(F.max(F.softmax(h), np.float32(1e-7)), np.float32(1 - 1e-7)),
}
SIGMOID: dict[str, Callable[[Value], Value]] = {
    "nothing": F.sigmoid,
    "squeeze": lambda h: F.squeeze(F.sigmoid(h), at(1)),
    "reshape": lambda h: F.reshape(F.sigmoid(h), at(-1)),
    "clip": lambda h: F.clip(F.sigmoid(h), np.float32(1e-6), np.float32(1 - 1e-6)),
    "gather": lambda h: F.gather(F.sigmoid(F.concat([h, h], axis=1)), at(1), axis=1),
}


def numbers(net: gk.Model, loss: str, target: np.ndarray) -> dict[str, Any]:
    trainer = gk.Trainer(net, loss, gk.optim.SGD(0.1))
    found = trainer.evaluate((X, target), ["loss", "accuracy", *(["auc"] if loss.startswith("sigmoid") else [])])
    return {**found, "step": float(trainer.step(X, target)), "next": float(trainer.step(X, target))}


@in_one_item()
@pytest.mark.parametrize(
    ("loss", "target", "outputs", "end"),
    [
        *(("softmax_cross_entropy", CLASSES, 3, end) for end in SOFTMAX.values()),
        *(("sigmoid_binary_cross_entropy", ANSWERS, 1, end) for end in SIGMOID.values()),
    ],
    ids=[*(f"softmax, {name}" for name in SOFTMAX), *(f"sigmoid, {name}" for name in SIGMOID)],
)
def test_the_loss_is_that_of_the_logits(
    loss: str, target: np.ndarray, outputs: int, end: Callable[[Value], Value]
) -> None:
    plain = network(outputs, lambda h: h if outputs > 1 else F.reshape(h, at(-1)))
    expected, net = numbers(plain, loss, target), network(outputs, end)
    assert are_probabilities(net.graph.outputs[0])
    found = numbers(net, loss, target)
    assert found.keys() == expected.keys()
    for name, number in expected.items():
        assert found[name] == pytest.approx(number, rel=1e-5), name


@in_one_item()
@pytest.mark.parametrize(
    "end",
    [
        lambda h: F.softmax(F.mul(h, np.float32(2))),
        lambda h: F.mul(F.softmax(h), np.float32(2)),
        lambda h: F.clip(F.softmax(h), np.float32(0.2), np.float32(1.0)),
        lambda h: F.clip(F.softmax(h), np.float32(0.0), np.float32(0.5)),
        lambda h: F.cast(F.softmax(h), to="int64"),
        lambda h: h,
    ],
)
def test_outputs_of_arithmetic_are_not_probabilities(end: Callable[[Value], Value]) -> None:
    output = end(gk.input("h", ["N", 3]))
    assert are_probabilities(output) is (output.node is not None and output.node.op.name == "Softmax")


@in_one_item()
@pytest.mark.parametrize(
    "end",
    [
        lambda h: F.softmax(F.reshape(h, at(-1, 3, 2)), axis=1),
        lambda h: F.reshape(F.softmax(F.reshape(h, at(-1, 2, 3))), at(-1, 3, 2)),
        lambda h: F.transpose(F.softmax(F.reshape(h, at(-1, 2, 3))), perm=(0, 2, 1)),
    ],
)
def test_softmax_over_another_axis_warns(end: Callable[[Value], Value]) -> None:
    net = network(6, end)
    with pytest.warns(UserWarning, match=r"the loss treats .* as logits, although it comes from .*Softmax"):
        gk.Trainer(net, "softmax_cross_entropy")


def test_other_losses_take_the_probabilities() -> None:
    target = np.eye(3, dtype=np.float32)[CLASSES]
    net = network(3, lambda h: F.identity(F.softmax(h)))
    found = float(gk.Trainer(net, "mse", gk.optim.SGD(0.1)).step(X, target))
    assert found == pytest.approx(float(np.square(network(3, F.softmax).run({"x": X})["y"] - target).mean()), rel=1e-5)
