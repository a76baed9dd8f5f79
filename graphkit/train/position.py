"""The position of a run of `fit`: epoch, batch, and the sums of the current epoch."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from graphkit.errors import UsageError
from graphkit.text import quantity
from graphkit.train import defaults

# The meaning of `epochs` for a continued run, in all messages and help texts.
WHOLE_RUN = "epochs is the length of the whole run"
_NOTHING = "epochs=0: this fit trains nothing; give at least epochs=1"

# The results of `Metric.state`, by the name of the metric.
MetricStates = dict[str, dict[str, np.ndarray]]


@dataclass
class Position:
    """The position of a run, which trains from epoch `start` to epoch `until`.

    An epoch consists of its batches, validation, and its record.

    Attributes:
        epoch: Number of complete epochs, including validation and record.
        batch: Number of batches that were trained on in the current epoch, since the batch size last changed.
        offset: Number of samples that were trained on in the current epoch before the batch size changed.
        width: Number of samples in a batch, over all processes.
        length: Number of samples in the data set; None if it has no length.
        start: First epoch of the run, from 0.
        until: Number of complete epochs at the end of the run.
        loss_sum: Sum of weighted losses in the current epoch. `loss_sum / loss_weight` is the mean loss.
        loss_weight: Sum of the weights.
        seen: Number of samples of the current epoch so far, without those of skipped steps.
        skipped: Number of skipped steps of the current epoch.
        trained: The record of the current epoch without validation. None until the last batch was trained on.
        seconds: Duration of the run so far.
        stopped: The reason given to `Trainer.stop`, or None. The run ends after the epoch in which it was stopped.
        first_update: Number of updates before the run.
        metrics: States of the metrics of the current epoch.
    """

    epoch: int = 0
    batch: int = 0
    offset: int = 0
    width: int = 0
    length: int | None = None
    start: int = 0
    until: int = 0
    loss_sum: float = 0.0
    loss_weight: float = 0.0
    seen: int = 0
    skipped: int = 0
    trained: dict[str, float] | None = None
    seconds: float = 0.0
    stopped: str | None = None
    first_update: int = 0
    metrics: MetricStates = field(default_factory=dict)

    @property
    def within(self) -> bool:
        """Whether the current epoch has begun and is not complete."""
        return bool(self.batch or self.offset) or self.trained is not None

    @property
    def finished(self) -> bool:
        """Whether the run is complete, or was stopped."""
        return not self.within and (self.epoch >= self.until or self.stopped is not None)

    def plan(self, epochs: int | None, resumed: bool, updates: int = 0) -> None:
        """Determine where the run of a `fit` begins and ends.

        If the current run is finished and `resumed` is false, a new run of `epochs` epochs begins (None: the default
        number). `updates` is the number of updates before it. Otherwise the current run continues, and `epochs` is the
        length of the whole run, counted from its first epoch (None: its present length). A run that was stopped early
        continues if it gets longer. Raises UsageError if `epochs` is smaller than the number of epochs already begun.

        resumed: whether `Trainer.resume` has restored a run since the last `fit`.
        """
        if self.finished and not resumed:
            self.start, self.until = self.epoch, self.epoch + (defaults.EPOCHS if epochs is None else epochs)
            self.stopped, self.first_update = None, updates
            if epochs == 0:
                warnings.warn(_NOTHING, stacklevel=3)
            return
        until = self._end(epochs)
        if until < self.epoch + self.within:
            raise UsageError(
                f"epochs={epochs} is too small: the run that this fit continues is {self}. After resume or an "
                f"interrupted fit, {WHOLE_RUN}"
            )
        if until > self.until:
            self.stopped = None
        self.until = until
        if self.finished:
            done = self.until - self.start
            if not done:
                warnings.warn(_NOTHING, stacklevel=3)
                return
            why = f"was ended {self}: {self.stopped}"
            if self.stopped is None:
                why = f"has finished its {quantity(done, 'epoch')}"
            warnings.warn(
                f"nothing is left to train: the run {why}. After resume, {WHOLE_RUN}: epochs={done + 1} continues it. "
                "The next fit of this trainer starts another run, where epochs is the number of further epochs",
                stacklevel=3,
            )

    def remaining_epochs(self, epochs: int | None, resumed: bool) -> int:
        """Return the number of epochs that a `fit` would complete. Arguments as for `plan`."""
        if self.finished and not resumed:
            return defaults.EPOCHS if epochs is None else epochs
        until = self._end(epochs)
        if self.stopped is not None and until <= self.until:
            return int(self.within)
        return max(until - self.epoch, 0)

    def _end(self, epochs: int | None) -> int:
        """Return the number of complete epochs at the end of a continued run. epochs: its whole length, or None."""
        return self.until if epochs is None else self.start + epochs

    def end_epoch(self) -> None:
        """Count the current epoch as complete, and reset its sums."""
        self.epoch += 1
        self.batch = self.offset = self.seen = self.skipped = 0
        self.loss_sum, self.loss_weight, self.trained, self.metrics = 0.0, 0.0, None, {}

    def resize(self, width: int) -> None:
        """Divide the rest of the epoch into batches of `width` samples over all processes."""
        trained = self.offset + self.batch * self.width
        self.offset = trained if self.length is None else min(trained, self.length)
        self.batch, self.width = 0, width

    def describe(self) -> dict[str, Any]:
        """Return a dict for JSON, which `read` takes. It does not contain the states of metrics, which are arrays."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "metrics"}

    @classmethod
    def read(cls, described: Mapping[str, Any], metrics: MetricStates) -> Position:
        """Return the position from the dict of `describe` and the states of metrics."""
        known = {f.name for f in fields(cls)}
        # Older checkpoints have no `loss_weight`: their `loss_sum` is weighted by numbers of samples.
        described = {"loss_weight": float(described.get("seen", 0)), **described}
        return cls(**{name: value for name, value in described.items() if name in known}, metrics=metrics)

    def __str__(self) -> str:
        if not self.within:
            return f"after epoch {self.epoch} of {self.until}"
        if self.trained is not None:
            return f"after the last batch of epoch {self.epoch + 1} of {self.until}"
        return f"in epoch {self.epoch + 1} of {self.until}, after batch {self.batch}"
