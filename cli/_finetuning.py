"""The options of fine-tuning, which `graphkit quantize` and `graphkit prune` share, and the training itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit.cli._groups import OPTIMISATION, option
from graphkit.cli._options import check_needed
from graphkit.cli._output import log
from graphkit.cli._ranges import FloatRange, IntRange
from graphkit.cli._training import make_optimizer
from graphkit.ir.types import TensorType
from graphkit.text import quantity
from graphkit.train import defaults

if TYPE_CHECKING:
    from graphkit.data import Dataset
    from graphkit.inference.evaluation import Evaluation
    from graphkit.model import Model

_RATE = 1e-4
# Losses by task of the evaluation.
_LOSSES = {
    "classification": "softmax_cross_entropy",
    "binary classification": "sigmoid_binary_cross_entropy",
    "multi-label": "sigmoid_binary_cross_entropy",
    "regression": "mse",
}
_PREFIX = "finetune_"


def finetuning_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--finetune and its options."""
    command = option(
        "--finetune-seed",
        group=OPTIMISATION,
        type=IntRange(0),
        help="Seed of the order of the samples, and of dropout.",
    )(command)
    command = option(
        "--finetune-batch-size", group=OPTIMISATION, type=IntRange(1), default=defaults.BATCH_SIZE, show_default=True,
        help="Samples per batch of --finetune.",
    )(command)  # fmt: skip
    command = option(
        "--finetune-lr", group=OPTIMISATION, type=FloatRange(0, min_open=True), default=_RATE, show_default=True,
        help="Learning rate of --finetune.",
    )(command)  # fmt: skip
    command = option(
        "--finetune-optimizer", group=OPTIMISATION, metavar="NAME", default="adam", show_default=True,
        help="Optimizer of --finetune.",
    )(command)  # fmt: skip
    command = option(
        "--finetune-loss", group=OPTIMISATION, metavar="NAME",
        help="Loss of --finetune. Default: softmax_cross_entropy, sigmoid_binary_cross_entropy or mse, by the task of "
        "the evaluation.",
    )(command)  # fmt: skip
    return option(
        "--finetune", group=OPTIMISATION, type=IntRange(1), metavar="EPOCHS",
        help="Train the result for this number of epochs on the training part of DATA. The evaluation then uses the "
        "test part.",
    )(command)  # fmt: skip


@dataclass(frozen=True)
class Finetuning:
    """How a model is fine-tuned."""

    epochs: int
    loss: str | None
    optimizer: str
    lr: float
    batch_size: int
    seed: int | None

    @classmethod
    def of(cls, options: dict[str, Any], epochs: int | None) -> Finetuning | None:
        """Take the options of fine-tuning out of `options`; return None without --finetune.

        Raises UsageError for an option that needs --finetune.
        """
        names = [name for name in options if name.startswith(_PREFIX)]
        check_needed("--finetune", epochs is not None, names)
        given = {name.removeprefix(_PREFIX): options.pop(name) for name in names}
        return None if epochs is None else cls(epochs, **given)

    def train(
        self, net: Model, data: Dataset, evaluation: Evaluation, *, threads: int | None,
        masks: Mapping[str, np.ndarray] | None = None,
    ) -> None:  # fmt: skip
        """Train a model in place. A model with the fixed batch size 1 is trained with any batch size.

        Args:
            net: The model.
            data: Labelled data.
            evaluation: An evaluation of the model, which determines the loss and the output.
            threads: Number of CPU threads.
            masks: See `gk.Trainer`.
        """
        from graphkit.inference.labelled_data import with_classes_of
        from graphkit.train.imported import free_batch
        from graphkit.train.masks import note_on_zeros
        from graphkit.train.trainer import Trainer

        data, _ = with_classes_of(net, data)
        trained = net
        if self.batch_size > 1 and _has_batch_of_one(net):
            trained = free_batch(net)
        trainer = Trainer(
            trained, self.loss or _LOSSES[evaluation.task], make_optimizer(self.optimizer, self.lr, None, {}),
            output=evaluation.output, threads=threads, seed=self.seed, masks=masks,
        )  # fmt: skip
        if note := note_on_zeros(trained, trainer.trained, trainer.masks(), "--keep-zeros"):
            log(note)
        records = trainer.fit(data, epochs=self.epochs, batch_size=self.batch_size)
        if trained is not net:
            for name in net.params:
                net.params[name] = trained.params[name]
        first, last = records[0]["loss"], records[-1]["loss"]
        losses = f"{last:.4g}" if self.epochs == 1 else f"{first:.4g} in the first epoch, {last:.4g} in the last"
        log(
            f"fine-tuning: {quantity(self.epochs, 'epoch')} on {quantity(len(data), 'sample')} of {data.name}; loss "
            f"{losses}"
        )


def _has_batch_of_one(net: Model) -> bool:
    """Whether the first dimension of every input is 1."""
    shapes = [kind.shape if isinstance(kind, TensorType) else None for kind in net.input_types.values()]
    return all(shape and shape[0] == 1 for shape in shapes)
