"""deterministic=True: whole training steps give the same bits for any number of threads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import graphkit as gk
from graphkit.executor.devices.cpu import native

RNG = np.random.default_rng(5)

Batch = tuple[np.ndarray, np.ndarray]


def images(shape: tuple[int, ...]) -> Batch:
    return RNG.standard_normal(shape, dtype=np.float32), RNG.integers(0, 10, shape[0])


def tokens(vocab: int, shape: tuple[int, ...]) -> Batch:
    return RNG.integers(0, vocab, shape), RNG.integers(0, vocab, shape)


# Large enough that most GEMMs and convolutions are split among threads, with batches that do not divide evenly.
NETWORKS: dict[str, tuple[Callable[[], gk.Model], Batch]] = {
    "lenet": (lambda: gk.models.build("lenet"), images((22, 1, 28, 28))),
    "resnet": (lambda: gk.models.build("resnet", layers=18, classes=10, image=(3, 65, 65)), images((5, 3, 65, 65))),
    "transformer_lm": (
        lambda: gk.models.build("transformer_lm", vocab=500, width=96, heads=4, layers=2, length=33),
        tokens(500, (5, 33)),
    ),
    "lstm_lm": (
        lambda: gk.models.build("lstm_lm", vocab=600, hidden=90, layers=2, dropout=0.2),
        tokens(600, (21, 10)),
    ),
}
PRECISIONS = [
    "f32",
    pytest.param("bf16", marks=pytest.mark.skipif(not native.has_bfloat16(), reason="no bfloat16 arithmetic")),
]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.full) if n == "resnet" else n for n in NETWORKS])
def test_steps_do_not_depend_on_threads(name: str, precision: str) -> None:
    build, batch = NETWORKS[name]
    runs = []
    for threads in (1, 2, 4):
        net = build()
        trainer = gk.Trainer(
            net,
            loss="softmax_cross_entropy",
            optimizer=gk.optim.Adam(1e-3),
            clip_norm=1.0,
            threads=threads,
            deterministic=True,
            precision=precision,
            seed=1,
        )
        losses = [float(trainer.step(*batch)) for _ in range(3)]
        assert losses[2] < losses[0]
        runs.append((losses, {key: np.array(value) for key, value in net.params.items()}))
    (first, expected), *others = runs
    for losses, params in others:
        assert losses == first
        for key, value in params.items():
            np.testing.assert_array_equal(value, expected[key], err_msg=key)
