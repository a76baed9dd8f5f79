"""Position: where a run of `fit` stands, to the batch, and what it has gathered of the epoch under way."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from graphkit.errors import UsageError
from graphkit.train import defaults

# What `epochs` is for a run that goes on, in every message and help text.
WHOLE_RUN = "epochs is the length of the whole run"

# By the name of a metric, what its `state` gave.
MetricStates = dict[str, dict[str, np.ndarray]]


@dataclass
class Position:
    """A run trains epochs `start` to `until`; an epoch is its batches, then validation, then its record.

    epoch: how many epochs are over, validation and record included. batch: how many batches of the next one are
    trained on, counted from the sample `offset` of the epoch (0, unless the size of a batch changed within it) in steps
    of `width` samples of all processes together, of `length` in the data set (None: it does not say).

    loss_sum, loss_weight: of the epoch so far, whose mean loss is their quotient; seen: its samples so far; skipped:
    its steps that were not taken; metrics: the states of its metrics. trained: the record of the epoch without
    validation, once the last batch and the update after it are done. seconds: that the run has taken. stopped: why the
    run ends with the epoch under way, or ended with the last one, before `until`. first_update: how many updates there
    were before the run.
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
        """Say where the run that `fit` was called for begins and ends.

        If the run that stands here is finished, and not `resumed`, another one begins after so many `updates`: `epochs`
        more (None: as many as by default). Otherwise that run goes on, and `epochs` is the length of the whole run,
        counted from its first epoch (None: the length that it has). A run that was stopped early goes on if it gets
        longer. Raises UsageError for fewer epochs than the run has begun.
        """
        if self.finished and not resumed:
            self.start, self.until = self.epoch, self.epoch + (defaults.EPOCHS if epochs is None else epochs)
            self.stopped, self.first_update = None, updates
            return
        until = self._end(epochs)
        if until < self.epoch + self.within:
            raise UsageError(
                f"epochs={epochs}: the continued run stands {self}; after resume, or an interrupted fit, {WHOLE_RUN}"
            )
        if until > self.until:
            self.stopped = None
        self.until = until
        if self.finished:
            done = self.until - self.start
            why = f"has its {done} epochs" if self.stopped is None else f"was ended {self}: {self.stopped}"
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
