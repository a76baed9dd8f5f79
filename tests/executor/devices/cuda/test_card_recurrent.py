"""Recurrent layers on the card, where samples do not reach: sizes, types, padding, what nobody reads, whole networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from card_cases import node_of
from card_runs import kernel_of, run
from emulator import Emulator
from stand_in import Card

import graphkit as gk
from graphkit.executor.devices.cuda.launches import Launch, Product
from graphkit.ops.evaluate import run_node
from graphkit.ops.rnn.backward import (
    GRURecurrence,
    GRURecurrenceGrad,
    LSTMRecurrence,
    LSTMRecurrenceGrad,
    RNNRecurrence,
    RNNRecurrenceGrad,
)

KINDS = {
    "RNN": (RNNRecurrence, RNNRecurrenceGrad),
    "GRU": (GRURecurrence, GRURecurrenceGrad),
    "LSTM": (LSTMRecurrence, LSTMRecurrenceGrad),
}


def language_model() -> gk.Model:
    return gk.models.build("lstm_lm", vocab=30, hidden=20, layers=2)


def gru_classifier() -> gk.Model:
    x = gk.input("x", [7, 4, 6])
    y, _ = gk.nn.gru(x, 20, name="gru")
    return gk.Model(gk.nn.linear(y, 30, name="head"), name="classifier")


@pytest.mark.parametrize("build", [language_model, gru_classifier])
def test_training(build: Callable[[], gk.Model], card: Card) -> None:
    rng = np.random.default_rng(0)
    targets = rng.integers(0, 30, (7, 4))
    x = targets if build is language_model else rng.standard_normal((7, 4, 6)).astype(np.float32)
    losses, parameters = [], []
    for device in ("cpu", "cuda"):
        net = build()
        trainer = gk.Trainer(net, loss="softmax_cross_entropy", optimizer=gk.optim.SGD(0.5), device=device)
        losses.append([float(trainer.step(x, targets)) for _ in range(4)])
        parameters.append(dict(net.params))
    np.testing.assert_allclose(*losses, rtol=1e-5)
    for name, array in parameters[0].items():
        np.testing.assert_allclose(parameters[1][name], array, rtol=1e-3, atol=1e-5, err_msg=name)
    print(card.launched, card.interpreted, card.recordings)
    assert not card.interpreted
