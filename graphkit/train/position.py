"""Position: where a run of `fit` stands, to the batch, with the sums of the current epoch."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from graphkit.errors import UsageError
from graphkit.text import quantity
from graphkit.train import defaults

# What `epochs` is for a run that goes on, in every message and help text.
WHOLE_RUN = "epochs is the length of the whole run"
_NOTHING = "epochs=0: this fit trains nothing; give at least epochs=1"

# By the name of a metric, what its `state` gave.
MetricStates = dict[str, dict[str, np.ndarray]]


@dataclass
class Position:
    """Where a run stands. A run trains epochs `start` to `until`; an epoch is its batches, then validation, then its
    record.

    - epoch: number of complete epochs, validation and record included.
    - batch: number of batches of the next epoch that are trained, counted from the sample `offset` of the epoch (0,
      unless the batch size changed within it). A batch has `width` samples over all processes.
    - length: number of samples in the data set; None if it has no length.
    - loss_sum, loss_weight: of the epoch so far; their quotient is the mean loss. seen: its samples so far. skipped:
      its skipped steps. metrics: the states of its metrics.
    - trained: the record of the epoch without validation, once the last batch and the update after it are done.
    - seconds: duration of the run so far.
    - stopped: why the run ends with the current epoch, or ended with the last one, before `until`.
    - first_update: number of updates before the run.
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
        """Whether an epoch is under way."""
        return bool(self.batch or self.offset) or self.trained is not None

    @property
    def finished(self) -> bool:
        return not self.within and (self.epoch >= self.until or self.stopped is not None)

    def plan(self, epochs: int | None, resumed: bool, updates: int = 0) -> None:
        """Determine where the run of a `fit` begins and ends.

        If the current run is finished, and not `resumed`, a new one begins after `updates` updates, with `epochs` more
        epochs (None: the default). Otherwise the current run continues, and `epochs` is the length of the whole run,
        counted from its first epoch (None: its present length). A run that was stopped early continues if it gets
        longer. Raises UsageError if `epochs` is smaller than the number of epochs already begun.
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
                f"epochs={epochs}: the continued run is already {self}; after resume, or an interrupted fit, "
                f"{WHOLE_RUN}"
            )
        if until > self.until:
            self.stopped = None
        self.until = until
        if self.finished:
            done = self.until - self.start
            if not done:
                warnings.warn(_NOTHING, stacklevel=3)
                return
            why = f"has its {quantity(done, 'epoch')}" if self.stopped is None else f"was ended {self}: {self.stopped}"
            warnings.warn(
                f"nothing is left to train: the run {why}. After resume, {WHOLE_RUN}: epochs={done + 1} continues it. "
                "The next fit of this trainer starts another run, where epochs is the number of further epochs",
                stacklevel=3,
            )

    def left(self, epochs: int | None, resumed: bool) -> int:
        """How many epochs a run that is planned so has before it; arguments as for `plan`."""
        if self.finished and not resumed:
            return defaults.EPOCHS if epochs is None else epochs
        until = self._end(epochs)
        if self.stopped is not None and until <= self.until:
            return int(self.within)
        return max(until - self.epoch, 0)

    def _end(self, epochs: int | None) -> int:
        """The epoch after which the run that goes on ends, if its whole length is `epochs`."""
        return self.until if epochs is None else self.start + epochs

    def end_epoch(self) -> None:
        """The epoch under way is over."""
        self.epoch += 1
        self.batch = self.offset = self.seen = self.skipped = 0
        self.loss_sum, self.loss_weight, self.trained, self.metrics = 0.0, 0.0, None, {}

    def resize(self, width: int) -> None:
        """From here on the epoch goes in batches of `width` samples of all processes."""
        done = self.offset + self.batch * self.width
        self.offset = done if self.length is None else min(done, self.length)
        self.batch, self.width = 0, width

    def describe(self) -> dict[str, Any]:
        """A JSON-able dict that `read` takes; without the states of metrics, which are arrays."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "metrics"}

    @classmethod
    def read(cls, described: Mapping[str, Any], metrics: MetricStates) -> Position:
        known = {f.name for f in fields(cls)}
        # Before there were weights, losses were weighed by samples.
        described = {"loss_weight": float(described.get("seen", 0)), **described}
        return cls(**{name: value for name, value in described.items() if name in known}, metrics=metrics)

    def __str__(self) -> str:
        if not self.within:
            return f"after epoch {self.epoch} of {self.until}"
        if self.trained is not None:
            return f"in the validation of epoch {self.epoch + 1} of {self.until}"
        return f"in epoch {self.epoch + 1} of {self.until}, after batch {self.batch}"
