"""What `graphkit bench --training` measures: steps of a Trainer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphkit.cli._inputs import Batch
from graphkit.cli.train import make_optimizer
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


def training_step(net: Model, loss: str, optimizer: str, batch: Batch, **options: Any) -> TrainingStep:
    """A step of a Trainer of `net` on one batch of inputs and targets; `options` are the Trainer's.

    The leading dimension of the first input counts the samples.
    """
    trainer = Trainer(net, loss, make_optimizer(optimizer, _RATE, None, {}), **options)
    graph = trainer.graph
    names = [n for v in graph.inputs if v.role == "data" and (n := graph.name_of(v)) != LEARNING_RATE]
    feeds = batch.arrays(trainer, names)
    inputs = {name: feeds[name] for name in net.inputs}
    targets = {name: array for name, array in feeds.items() if name not in inputs}
    plan = trainer.plan({name: np.shape(array) for name, array in feeds.items()})
    samples = next((len(array) for array in inputs.values() if np.ndim(array)), 1)
    return TrainingStep(lambda: float(trainer.step(inputs, targets)), plan, feeds, samples)
