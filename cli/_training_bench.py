"""What `graphkit bench --training` measures: steps of a Trainer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphkit.checks.inputs import concrete_shapes, make_feeds
from graphkit.cli._inputs import parse_inputs
from graphkit.cli._output import log
from graphkit.cli.train import make_optimizer
from graphkit.errors import InputError, did_you_mean
from graphkit.executor.plan import Plan
from graphkit.model import Model
from graphkit.train.step import LEARNING_RATE
from graphkit.train.trainer import Trainer

# So small that parameters hardly change, however many steps are made on the one batch.
_RATE = 1e-6


@dataclass(frozen=True)
class TrainingStep:
    """`run` trains on one batch and waits for the loss; `feeds` are inputs and targets, `samples` those of a batch."""

    run: Callable[[], float]
    plan: Plan
    feeds: dict[str, np.ndarray]
    samples: int


def training_step(
    net: Model, loss: str, optimizer: str, texts: tuple[str, ...], batch: int | None, fill: str, seed: int,
    **options: Any,
) -> TrainingStep:  # fmt: skip
    """A step of a Trainer of `net` on one batch: inputs and targets as `texts` say (see `parse_inputs`), others filled.

    The leading dimension of the first input counts the samples. `options` are the Trainer's. Raises InputError for a
    name that is neither an input nor a target.
    """
    trainer = Trainer(net, loss, make_optimizer(optimizer, _RATE, None, {}), seed=seed, **options)
    graph = trainer.graph
    names = [n for v in graph.inputs if v.role == "data" and (n := graph.name_of(v)) != LEARNING_RATE]
    given, known = parse_inputs(names, texts)
    for name in (*given, *known):
        if name not in names:
            raise InputError(f"no input or target {name!r}{did_you_mean(name, names)}")
    known |= {name: np.shape(array) for name, array in given.items()}
    shapes, guesses = concrete_shapes(trainer, known, batch)
    if guesses:
        log("guessed dimensions: " + ", ".join(f"{k}={v}" for k, v in guesses.items()))
    open_shapes = {name: shape for name, shape in shapes.items() if name not in given}
    arrays = make_feeds(trainer, fill, given=given, shapes=open_shapes, seed=seed).arrays
    feeds = {name: arrays[name] for name in names}
    inputs = {name: feeds[name] for name in net.inputs}
    targets = {name: array for name, array in feeds.items() if name not in inputs}
    plan = trainer.plan({name: np.shape(array) for name, array in feeds.items()})
    samples = next((len(array) for array in inputs.values() if np.ndim(array)), 1)
    return TrainingStep(lambda: float(trainer.step(inputs, targets)), plan, feeds, samples)
