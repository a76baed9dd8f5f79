"""The loop of `Trainer.fit`: batches, validation, logs and checkpoints."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from graphkit.checks.footprint import peak_bytes
from graphkit.data import Batch, Dataset, IterableDataset, LazyDataset
from graphkit.errors import UnsupportedError, UsageError
from graphkit.executor.run.interruption import uninterrupted
from graphkit.train import saving
from graphkit.train.agreement import data_facts
from graphkit.train.background import BackgroundWork, first_batches, length_of
from graphkit.train.base_trainer import BaseTrainer, States
from graphkit.train.callback_runner import CallbackRunner
from graphkit.train.callbacks import Callback
from graphkit.train.epoch_stats import ReplacedSamples, Throughput
from graphkit.train.evaluation import Evaluation
from graphkit.train.exchange.gather import gather, merged_values, reported_name
from graphkit.train.metrics import LOSS, Metric, as_list
from graphkit.train.position import MetricStates
from graphkit.train.programs.weights import weight_in
from graphkit.train.progress import JsonLog, ProgressBar
from graphkit.train.staleness import warn_of_staleness
from graphkit.train.termination import Termination, termination_of

_IN_EPOCH = "called only within an epoch"


@dataclass
class Fit:
    """One call of `Trainer.fit`, from any position of a run.

    In a single process, the first Ctrl-C takes effect after the current step. While the record and the checkpoint of an
    epoch are being written, it takes effect after that. A second Ctrl-C takes effect at once. With several ranks, the
    first one does, too.

    Attributes:
        folder: The run folder, the same on all ranks. Rank 0 writes.
        every: Number of updates between checkpoints within an epoch; None for no such checkpoints.
        log_every: Number of updates between log lines within an epoch; 0 for none.
        batches: Number of batches after which an epoch and its validation end (`fast_dev_run`); None for all batches.
    """

    trainer: BaseTrainer
    evaluation: Evaluation
    train: Dataset | IterableDataset
    valid: Dataset | IterableDataset | None
    metrics: Sequence[Any]
    batch_size: int
    folder: Path | None
    every: int | None
    prefetch: int
    bar: ProgressBar
    on_epoch: Callable[[int, dict[str, float]], None] | None = None
    callbacks: Callback | Sequence[Callback] = ()
    log_every: int = 0
    batches: int | None = None
    weighted_validation: bool = False

    def __post_init__(self) -> None:
        self._rank, self._ranks = self.trainer._place
        self._measured: list[Metric] | None = None
        self._terminated = False
        self._throughput: Throughput | None = None
        self._partial: dict[str, float] = {}
        self._logged_throughput: dict[str, float] = {}
        skips = isinstance(self.train, LazyDataset) and self.train.on_damaged == "skip"
        self._replaced = ReplacedSamples() if skips else None
        self._background = BackgroundWork(0)
        # Ends all processes together after a SIGTERM, or None. Its constructor withdraws what this rank announced in an
        # earlier `fit`. The constructor must run before `_compare_ranks`, after which other ranks may read
        # announcements.
        self._termination = None if self.folder is None else termination_of(self.trainer.kvstore)
        self._compare_ranks()
        self.log = JsonLog(self.folder if self.trainer._writes else None)
        callbacks = [self.callbacks] if isinstance(self.callbacks, Callback) else self.callbacks
        self.runner = CallbackRunner(self.trainer, callbacks)
        self.trainer.stop_reason = None

    def _compare_ranks(self) -> None:
        trainer, position = self.trainer, self.trainer.position
        if trainer.kvstore is not None:
            facts = {
                **data_facts(self.train), "seed": trainer.seed, "batch_size": self.batch_size,
                "epochs": position.until - position.start, "max_steps": position.max_steps,
                "fast_dev_run": self.batches, "validation_split": position.validation_split, "epoch": position.epoch,
                "batch": position.batch,
            }  # fmt: skip
            advice = "Every rank must pass the whole training data: fit itself selects the samples of each rank"
            trainer.kvstore.transport.compare("fit", facts, advice)

    def run(self) -> list[dict[str, float]]:
        position = self.trainer.position
        if self.trainer.step_incomplete:
            raise UsageError(
                "the last step was interrupted: some parameters may be updated, others not; resume() from a "
                "checkpoint, or set trainer.step_incomplete = False to continue with these values"
            )
        self.log.begin(position.epoch, self.trainer.updates, position.seconds, ended=position.finished)
        history = []
        ending: BaseException | None = None
        try:
            self._begin()
            with contextlib.nullcontext() if self._termination is None else self._termination:
                while not position.finished:
                    history.append(self._epoch())
                    if self._termination is not None and self._termination.is_due_now():
                        self._terminate(self._termination)
        except KeyboardInterrupt as interrupt:
            ending = interrupt
            self._save_interrupted(interrupt)
            raise
        except Exception as error:
            ending = error
            raise
        finally:
            self._end(ending)
        return history

    def _begin(self) -> None:
        trainer, position = self.trainer, self.trainer.position
        numbers = {"epoch": position.epoch, "until": position.until, "updates": trainer.updates}
        resumed = position.within or position.epoch > position.start
        trainer._rates.run_updates = self._count_updates()
        if not position.finished:
            warn_of_staleness(trainer.kvstore, trainer.optimizer, trainer.learning_rate)
        self.runner.begin({**numbers, "processes": self._ranks, "resumed": resumed}, trainer._callback_states)

    def callback_states(self) -> States:
        return self.runner.states()

    @property
    def callbacks_may_add_scores(self) -> bool:
        return self.runner.may_add_scores

    def scores(self) -> tuple[str, ...]:
        alone = self.trainer.kvstore is None or self._ranks == 1
        metrics = self.trainer._metrics(self.metrics)
        # Rank 0 makes the record. Metrics that cannot be merged have the value of rank 0 there.
        measured = [LOSS, *(metric.name if alone else reported_name(metric, 0) for metric in metrics)]
        given = [spec for spec in as_list(self.metrics) if isinstance(spec, str) and spec == LOSS]
        validated = measured if given or self.evaluation.has_loss(self.trainer) else measured[1:]
        return ("learning_rate", *measured, *(f"valid_{name}" for name in validated if self.valid is not None))

    def _count_updates(self) -> int | None:
        """Return the number of updates of the whole run; None if the schedule does not need it.

        If only `max_steps` ends the run, set `position.until` to the epoch in which the run will probably end.

        Raises UsageError if the schedule needs the number of updates, but the data have no length.
        """
        trainer, position = self.trainer, self.trainer.position
        schedule = trainer.optimizer.schedule
        if not (schedule.is_open or position.open_ended):
            return None
        batches = self.train.batches(self.batch_size, seed=trainer.seed, rank=self._rank, ranks=self._ranks)
        count = length_of(first_batches(batches, self.batches))
        if position.open_ended:
            if count:
                epochs = math.ceil((position.max_steps or 0) / math.ceil(count / trainer.accumulate))
                position.until = max(position.until, position.start + epochs)
            return position.max_steps
        if count is None:
            raise UsageError(f"{self.train.name} has no length: pass steps= to the schedule, {schedule}")
        updates = math.ceil(count / trainer.accumulate) * (position.until - position.start)
        return updates if position.max_steps is None else min(updates, position.max_steps)

    def _end(self, error: BaseException | None) -> None:
        trainer, position = self.trainer, self.trainer.position
        with contextlib.nullcontext() if error is None else contextlib.suppress(Exception):
            trainer._callback_states = trainer.callback_states
        numbers = {"epoch": position.epoch, "updates": trainer.updates}
        self.runner.end({**numbers, "finished": position.finished, "stopped": position.stopped}, error)

    def _epoch(self) -> dict[str, float]:
        trainer, position = self.trainer, self.trainer.position
        if position.trained is None:
            self._train()
        scores: dict[str, float] = {}
        if self.valid is not None:
            evaluation = self.evaluation
            specs = as_list(self.metrics)
            specs = [LOSS, *specs] if evaluation.has_loss(trainer) and LOSS not in specs else specs
            scores = evaluation.scores(
                trainer, self.valid, specs, self.batch_size, self.prefetch, self.bar, limit=self.batches,
                weighted=self.weighted_validation,
            )  # fmt: skip
        if position.trained is None:
            return self._end_within(scores)
        with trainer._interrupts:
            record = self._end_epoch(scores)
        if self.on_epoch is not None:
            with trainer._running_user_code("on_epoch"):
                self.on_epoch(position.epoch, record)
        return record

    def _end_epoch(self, scores: dict[str, float]) -> dict[str, float]:
        trainer, position = self.trainer, self.trainer.position
        record = {**(position.trained or {}), **_of_validation(scores)}
        numbers = {
            "epoch": position.epoch + 1,
            "updates": trainer.updates,
            "learning_rate": trainer.learning_rate,
            "processes": self._ranks,
            **self._logged_throughput,
            **_peak_memory(),
            **record,
        }
        self.runner.epoch(numbers)
        position.at_limit = self._has_all_updates()
        position.end_epoch()
        self.log.write("epoch", **numbers)
        if position.stopped is not None:
            self.log.write("stopped", epoch=position.epoch, reason=position.stopped)
        self._save()
        return record

    def _end_within(self, scores: dict[str, float]) -> dict[str, float]:
        """End the run within an epoch after `max_steps` updates. Return the record so far.

        The epoch stays incomplete, and `on_epoch_end` is not called. If a later `fit` continues the run, it removes the
        line that is logged here.
        """
        trainer, position = self.trainer, self.trainer.position
        record = {**self._partial, **_of_validation(scores)}
        with trainer._interrupts:
            position.at_limit = True
            self.log.write("end", epoch=position.epoch + 1, batch=position.batch, updates=trainer.updates, **record)
            self._save()
        return record

    def _has_all_updates(self) -> bool:
        trainer, position = self.trainer, self.trainer.position
        return position.max_steps is not None and trainer.updates - position.first_update >= position.max_steps

    # --- the batches of an epoch --------------------------------------------------------------------

    def _train(self) -> None:
        trainer, position = self.trainer, self.trainer.position
        if not position.within:
            trainer._recurrent_state.reset()
        batches = self._batches()
        measured = trainer._metrics(self.metrics)
        if self._replaced is not None:
            self._replaced.reset()
            measured.append(self._replaced)
        self._restore(measured)
        count = length_of(batches)
        title = f"epoch {position.epoch + 1}" + ("" if position.open_ended else f"/{position.until}")
        self.bar.start(title, count, position.batch, transient=self.on_epoch is not None)
        self._throughput, self._logged_throughput = Throughput(lambda: trainer._exchange.waited_seconds), {}
        ended = False
        with BackgroundWork(self.prefetch) as background:
            self._measured, self._background = measured, background
            try:
                # A resumed run may have only the last update and validation left.
                if position.stopped is None and (count is None or position.batch < count):
                    for batch in background.batches(map(trainer._prepared, batches)):
                        if self._has_all_updates():
                            ended = True
                            break
                        self._stop_if_terminated()
                        with trainer._interrupts:
                            self._step(batch, measured)
                        self._end_if_terminated()
                        if position.stopped is not None:
                            break
                if ended:
                    self._keep_metrics()
                    self._partial = self._record_so_far(measured)
                else:
                    with trainer._interrupts:
                        self._end_of_batches(measured)
            finally:
                with contextlib.suppress(Exception):
                    position.metrics = self.metric_states()
                self._measured = None

    def _batches(self) -> Iterable[Batch]:
        """Return the remaining batches of the epoch. Raises UsageError if the data do not match the position."""
        trainer, position = self.trainer, self.trainer.position
        width, length = self.batch_size * self._ranks, length_of(self.train)
        if position.within and position.width:
            if position.length not in (None, length):
                raise UsageError(
                    f"{self.train.name} has {length} samples, but the interrupted epoch began with {position.length} "
                    f"samples (the run is {position}). The data can change only between epochs"
                )
            if position.width != width:
                if not self.train.orders_samples:
                    raise UsageError(
                        f"a batch has {width} samples, but the interrupted epoch began with batches of "
                        f"{position.width} (the run is {position}). The order of {self.train.name} depends on the "
                        "batch size, so the batch size can change only between epochs"
                    )
                position.resize(width)
        position.width, position.length = width, length
        further: dict[str, Any] = {"offset": position.offset} if position.offset else {}
        batches = self.train.batches(
            self.batch_size, seed=trainer.seed, epoch=position.epoch, start=position.batch, rank=self._rank,
            ranks=self._ranks, **further,
        )  # fmt: skip
        return first_batches(batches, self.batches)

    def _step(self, batch: Batch, measured: list[Metric]) -> None:
        trainer, position = self.trainer, self.trainer.position
        before = trainer.updates
        inputs = trainer._recurrent_state.feeds(batch.inputs) if batch.size else batch.inputs
        skipped = trainer.skipped
        trainer._exchange.return_outputs(bool(measured or trainer._recurrent_state.names))
        with self._writing_parameters():
            array, results = trainer._step(inputs, batch.targets, batch.size)
        loss = float(array)
        position.batch += 1
        if self._replaced is not None:
            self._replaced.add(batch.replaced)
        position.skipped += trainer.skipped - skipped
        if results or math.isfinite(loss):
            trainer._recurrent_state.keep(results)
            weight = weight_in(results, batch.global_size)
            position.loss_sum += loss * weight
            position.loss_weight += weight
            position.seen += batch.global_size
            if batch.size and measured:
                target = (
                    trainer._targets.name_for(trainer._output),
                    trainer._targets.metric_target(batch.targets, trainer._output),
                )
                for pair in trainer._exchange.metric_pairs(results, target):
                    self._background.measure(measured, *trainer._targets.counted(trainer._output, *pair))
        assert self._throughput is not None, _IN_EPOCH
        self._throughput.add(batch.global_size)
        self.bar.advance(f"loss {loss:.4f}" if self._ranks == 1 else f"loss {loss:.4f}, {self._throughput}")
        updated = trainer.updates > before
        if self.log_every and updated and trainer.updates % self.log_every == 0:
            self._log_step(loss)
        self.runner.step(
            lambda: {
                "epoch": position.epoch + 1, "batch": position.batch, "updates": trainer.updates, "loss": loss,
                "learning_rate": trainer.learning_rate, "samples": batch.global_size,
            }
        )  # fmt: skip
        if self.every and updated and trainer.updates % self.every == 0:
            self._save()

    def _log_step(self, loss: float) -> None:
        trainer = self.trainer
        assert self._throughput is not None, _IN_EPOCH
        self.log.write(
            "step",
            epoch=trainer.position.epoch + 1,
            updates=trainer.updates,
            loss=loss,
            learning_rate=trainer.learning_rate,
            samples_per_second=self._throughput.lap(),
        )

    @contextlib.contextmanager
    def _writing_parameters(self) -> Iterator[None]:
        """Context of code that writes parameters: an interrupt within it makes the step incomplete."""
        try:
            yield
        except KeyboardInterrupt:
            self.trainer.step_incomplete = True
            raise

    def _end_of_batches(self, measured: list[Metric]) -> None:
        trainer, position = self.trainer, self.trainer.position
        skipped = trainer.skipped
        with self._writing_parameters():
            trainer.flush()
        position.skipped += trainer.skipped - skipped
        found = self._record_so_far(measured)
        self._logged_throughput = self._throughput_of_ranks()
        position.trained = found
        position.metrics, self._measured = {}, None
        if self.every and self.valid is not None:
            self._save()

    def _record_so_far(self, measured: list[Metric]) -> dict[str, float]:
        """Collective: return the mean loss and metrics of this epoch so far, over all ranks."""
        trainer, position = self.trainer, self.trainer.position
        self._background.wait_for_metrics()
        if trainer.kvstore is None or self._ranks == 1:
            values = trainer._exchange.values(measured)
        else:
            values = merged_values(trainer.kvstore, measured)
        loss = position.loss_sum / position.loss_weight if position.loss_weight else math.nan
        return {"loss": loss, **values, **({"skipped": position.skipped} if position.skipped else {})}

    def _throughput_of_ranks(self) -> dict[str, float]:
        assert self._throughput is not None, _IN_EPOCH
        store = self.trainer.kvstore
        numbers = {"samples_per_second": self._throughput.samples_per_second}
        if store is None or self._ranks == 1:
            return numbers
        waited, seconds = store.pushpull("waited", np.array([self._throughput.waited, self._throughput.seconds]))
        return {**numbers, "waiting": float(waited / seconds)}

    # --- checkpoints --------------------------------------------------------------------------------

    def metric_states(self) -> MetricStates:
        if self._measured is None:
            return self.trainer.position.metrics
        self._background.wait_for_metrics()
        return {m.name: dict(m.state()) for m in self._measured if hasattr(m, "state")}

    def _keep_metrics(self) -> None:
        """Copy the states of the metrics for a checkpoint, before `merged_values` adds those of other ranks."""
        states = self.metric_states()
        self.trainer.position.metrics = {
            metric: {name: np.array(array) for name, array in state.items()} for metric, state in states.items()
        }
        self._measured = None

    def _restore(self, measured: list[Metric]) -> None:
        position = self.trainer.position
        if not position.seen:
            return
        for metric in measured:
            if metric.name in position.metrics and hasattr(metric, "restore"):
                metric.restore(position.metrics[metric.name])
            else:
                warnings.warn(
                    f"metric {metric.name!r} of epoch {position.epoch + 1} leaves out the {position.seen} samples "
                    "before the interruption, because the checkpoint does not contain its state",
                    stacklevel=5,
                )

    def _save(self) -> None:
        """Write a checkpoint. Collective: each rank has its own states of an incomplete epoch."""
        if self.folder is None:
            return
        trainer = self.trainer
        trainer.position.seconds = self.log.seconds
        with trainer._working():
            parts = saving.epoch_states(trainer)
            if trainer.position.within and trainer.kvstore is not None and self._ranks > 1:
                parts = gather(trainer.kvstore, parts[0])
            with trainer._exchange.gathered() as gathered:
                if gathered is not None:
                    saving.write(trainer, self.folder, parts, gathered)

    def _stop_if_terminated(self) -> None:
        termination = self._termination
        if termination is not None and termination.must_stop(self.trainer._stepper.accumulated):
            self._save()
            self._terminate(termination)

    def _end_if_terminated(self) -> None:
        """End all ranks after a SIGTERM to any of them. They decide alike.

        While gradients are accumulated, do nothing: a checkpoint would store those of one rank only.
        """
        if self._termination is not None and self._termination.is_due and not self.trainer._stepper.accumulated:
            self._save()
            self._terminate(self._termination)

    def _terminate(self, termination: Termination) -> NoReturn:
        """Collective: end this rank after a SIGTERM to any rank. The folder has a checkpoint of this position."""
        try:
            termination.take_effect()
        except BaseException as ending:
            self._terminated = True
            ending.add_note(f"stopped {self.trainer.position}; {self.folder} contains a checkpoint of this position")
            raise

    def _save_interrupted(self, interrupt: KeyboardInterrupt) -> None:
        """Write a checkpoint after an interrupt, and add a note to it.

        Several ranks write no checkpoint: they may have been interrupted at different batches.
        """
        trainer = self.trainer
        if trainer._averages.are_swapped:  # interrupted within validation
            trainer.swap()
        if self._terminated:
            return
        where = f"stopped {trainer.position}"
        if trainer.step_incomplete:
            where += ", within a step: some parameters may be updated, others not; resume from the last checkpoint"
        elif self.folder is not None and trainer._alone:
            with uninterrupted:
                self._save()
            where += f"; {self.folder} contains a checkpoint of this position"
        interrupt.add_note(where)


def _of_validation(scores: dict[str, float]) -> dict[str, float]:
    return {f"valid_{name}": value for name, value in scores.items()}


def _peak_memory() -> dict[str, int]:
    try:
        return {"peak_memory": peak_bytes()}
    except UnsupportedError:
        return {}
