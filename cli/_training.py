"""Optimizers from options, and the training step that `graphkit plan` and `graphkit bench` examine with --training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit.cli._groups import TRAINING_STEP, option
from graphkit.cli._inputs import Batch
from graphkit.cli._options import check_needed, log_backends, memory_options
from graphkit.errors import UsageError
from graphkit.model import Model

if TYPE_CHECKING:
    from graphkit.executor.report.plan import Plan
    from graphkit.train.optim import Optimizer
    from graphkit.train.trainer import Trainer

# Learning rate of the measured step: so small that parameters hardly change over many steps on one batch.
_RATE = 1e-6


def make_optimizer(name: str, lr: float | None, momentum: float | None, texts: dict[str, str]) -> Optimizer:
    """Return an optimizer by name. None: the optimizer's default (see `optim.get`). texts: further options."""
    from graphkit.train import optim

    fields: dict[str, Any] = {k: _number(k, v) for k, v in texts.items()}
    if lr is not None:
        fields["lr"] = lr
    if momentum is not None:
        if name not in ("sgd", "lars", "rmsprop"):
            raise UsageError(f"--momentum only works with --optimizer sgd, lars or rmsprop; {name} has no momentum")
        fields.setdefault("momentum", momentum)
    return optim.get(name, **fields)


def _number(name: str, text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"--optimizer-option {name}={text}: {text!r} is not a number, true or false") from None


def training_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--training with its options: --loss, --optimizer, --recompute, --swap-memory."""
    command = memory_options(command)
    command = option(
        "--optimizer", group=TRAINING_STEP, metavar="NAME", default="sgd", show_default=True,
        help="Optimizer of the training step; sgd has momentum 0.9.",
    )(command)  # fmt: skip
    command = option(
        "--loss", group=TRAINING_STEP, metavar="NAME", default="softmax_cross_entropy", show_default=True,
        help="Loss function of the training step.",
    )(command)  # fmt: skip
    return option(
        "--training", group=TRAINING_STEP, is_flag=True,
        help="Use a training step (forward, backward, update) instead of inference.",
    )(command)  # fmt: skip


def check_training(training: bool) -> None:
    """Raise UsageError if the command line has an option of a training step, but not --training."""
    check_needed("--training", training, ("loss", "optimizer", "recompute", "swap_memory"))


def trainer_of(net: Model, loss: str, optimizer: str, **options: Any) -> Trainer:
    """Return a Trainer of `net`. options: further arguments of the Trainer."""
    from graphkit.train.trainer import Trainer

    return Trainer(net, loss, make_optimizer(optimizer, _RATE, None, {}), **options)


@dataclass(frozen=True)
class TrainingStep:
    """A training step on one batch.

    run: trains and returns the loss. plan: its memory plan. feeds: inputs and targets. samples: number of samples.
    """

    run: Callable[[], float]
    plan: Plan
    feeds: dict[str, np.ndarray]
    samples: int


def training_step(net: Model, loss: str, optimizer: str, batch: Batch, **options: Any) -> TrainingStep:
    """Return a step of a Trainer of `net` on one batch of inputs and targets.

    options: further arguments of the Trainer.

    The number of samples is the first dimension of the first input that has dimensions.
    """
    from graphkit.train import losses
    from graphkit.train.programs.step import LEARNING_RATE

    trainer = trainer_of(net, loss, optimizer, **options)
    graph = trainer.graph
    names = [n for v in graph.inputs if v.role == "data" and (n := graph.name_of(v)) != LEARNING_RATE]
    yes_or_no = [n for n in names if n not in net.inputs] if losses.get(loss).probabilities else []
    feeds = batch.arrays(trainer, names, zero_or_one=yes_or_no)
    inputs = {name: feeds[name] for name in net.inputs}
    targets = {name: array for name, array in feeds.items() if name not in inputs}
    plan = trainer.plan({name: np.shape(array) for name, array in feeds.items()})
    log_backends(trainer.executor, options.get("backends"))
    samples = next((len(array) for array in inputs.values() if np.ndim(array)), 1)
    return TrainingStep(lambda: float(trainer.step(inputs, targets)), plan, feeds, samples)
