"""Validation: metrics and loss over a data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from graphkit.data import Dataset, IterableDataset
from graphkit.errors import UsageError
from graphkit.train import defaults, losses
from graphkit.train.background import BackgroundWork, first_batches, length_of
from graphkit.train.base_trainer import BaseTrainer
from graphkit.train.exchange.local import LocalInference
from graphkit.train.metrics import LOSS, as_list
from graphkit.train.programs.weights import weight_in
from graphkit.train.progress import ProgressBar
from graphkit.train.recurrent_state import RecurrentState


def usual_metrics(loss: Any, output: str) -> tuple[str, ...]:
    of_output = loss.get(output) if isinstance(loss, Mapping) else loss
    name = of_output if isinstance(of_output, str) else getattr(of_output, "name", "")
    return defaults.METRICS.get(name, (LOSS,))


class Evaluation:
    """Evaluates the inference graph of a trainer, with or without the loss. options: settings of the executors."""

    def __init__(self, options: dict[str, Any]):
        self._options = options
        self._with_loss: dict[bool, LocalInference] = {}

    @staticmethod
    def has_loss(trainer: BaseTrainer) -> bool:
        """Whether the loss can be a metric. It cannot if the model is divided among ranks."""
        return not trainer._exchange.divides_model

    def scores(
        self,
        trainer: BaseTrainer,
        data: Dataset | IterableDataset,
        specs: Sequence[Any],
        batch_size: int,
        prefetch: int,
        bar: ProgressBar,
        *,
        limit: int | None = None,
        weighted: bool = False,
    ) -> dict[str, float]:
        """Return the metrics of a data set by name, in the order of `specs`, `loss` first.

        `loss` is the weighted mean over batches. `weight_in` computes the weight of a batch.

        Args:
            weighted: Whether the data have sample weights, which count only in the loss.
        """
        specs = as_list(specs)
        with_loss = any(isinstance(spec, str) and spec == LOSS for spec in specs)
        if with_loss and not self.has_loss(trainer):
            raise UsageError(
                "evaluate: a model with groups= computes its loss only in training: leave 'loss' out of metrics="
            )
        measured = trainer._metrics(specs)
        program = self._loss_program(trainer, weighted) if with_loss else trainer._inference
        state = RecurrentState(trainer.net, trainer._recurrent_state.names)
        total = weight = 0.0
        with trainer._working(), trainer.averaged(), BackgroundWork(prefetch) as background, program.session():
            batches = first_batches(data.batches(batch_size, shuffle=False), limit)
            bar.start("validation", length_of(batches), transient=True)
            for batch in background.batches(map(trainer._prepared, batches)):
                feeds = state.feeds(batch.inputs)
                if with_loss:
                    feeds |= trainer._targets.fitted(batch.targets, weighted)
                results = program.run(feeds)
                state.keep(results)
                if with_loss:
                    share = weight_in(results, batch.size)
                    total += float(results[program.outputs[0]]) * share
                    weight += share
                if measured and trainer._output in results:
                    target = trainer._targets.metric_target(batch.targets, trainer._output)
                    background.measure(
                        measured, *trainer._targets.counted(trainer._output, results[trainer._output], target)
                    )
                bar.advance()
        values = trainer._exchange.values(measured)
        return {LOSS: total / weight if weight else float("nan"), **values} if with_loss else values

    def _loss_program(self, trainer: BaseTrainer, weighted: bool) -> LocalInference:
        if weighted not in self._with_loss:
            graph = losses.attach(trainer._inference_graph, *trainer._criterion, weighted=True, sample_weights=weighted)
            self._with_loss[weighted] = LocalInference(graph, trainer.net.params, self._options)
        return self._with_loss[weighted]
