"""The position of a run of `fit`: epoch, batch, and the sums of the current epoch."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from graphkit.errors import UsageError
from graphkit.text import quantity
from graphkit.train import defaults

WHOLE_RUN = "epochs is the length of the whole run"
_NOTHING = "epochs=0: this fit trains nothing; give at least epochs=1"
ALL_UPDATES = "max_steps counts the updates of the whole run"

MetricStates = dict[str, dict[str, np.ndarray]]


@dataclass
class Position:
    """The position of a run, which trains from epoch `start` to epoch `until`.

    Attributes:
        batch: Number of batches of the current epoch since the batch size last changed.
        offset: Number of samples of the current epoch that were trained on before the batch size changed.
        width: Number of samples in a batch, over all processes.
        loss_sum: Sum of weighted losses in the current epoch; `loss_sum / loss_weight` is the mean.
        seen: Number of samples of the current epoch so far, without skipped steps.
        trained: The record of the current epoch without validation, once all batches were trained on.
        stopped: The reason given to `Trainer.stop`, or None.
        max_steps: Number of updates after which the run ends, also within an epoch, or None.
        open_ended: Whether only `max_steps` ends the run, so that `until` is an estimate.
        at_limit: Whether `max_steps` has completed the run.
        validation_split: The share of the data that the run holds out for validation, or None.
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
    max_steps: int | None = None
    open_ended: bool = False
    at_limit: bool = False
    validation_split: float | None = None
    metrics: MetricStates = field(default_factory=dict)

    @property
    def within(self) -> bool:
        return bool(self.batch or self.offset) or self.trained is not None

    @property
    def finished(self) -> bool:
        return self.at_limit or (not self.within and (self.epoch >= self.until or self.stopped is not None))

    def plan(self, epochs: int | None, resumed: bool, updates: int = 0, max_steps: int | None = None) -> None:
        """Determine where the run of a `fit` begins and ends.

        If the current run is finished and `resumed` is false, a new run begins. It ends after `epochs` epochs or
        `max_steps` updates, whichever comes first.

        Otherwise the current run continues. `epochs` and `max_steps` then count the whole run; if both are None, its
        length stays the same. A stopped run continues only if one of these numbers is larger than before. Raises
        UsageError if the run already has more epochs or updates.

        Args:
            resumed: Whether `Trainer.resume` was called since the last `fit`.
        """
        if self.finished and not resumed:
            self._begin_run(epochs, max_steps, updates)
            return
        done = updates - self.first_update
        if epochs is not None and self._end(epochs) < self.epoch + self.within:
            raise UsageError(
                f"epochs={epochs} is too small: the run that this fit continues is {self}. After resume or an "
                f"interrupted fit, {WHOLE_RUN}"
            )
        if max_steps is not None and max_steps < done:
            raise UsageError(
                f"max_steps={max_steps} is too small: the run that this fit continues has {quantity(done, 'update')}. "
                f"After resume or an interrupted fit, {ALL_UPDATES}"
            )
        self._continue_run(epochs, max_steps, done)
        if self.finished:
            self._warn_of_end(done)

    def _continue_run(self, epochs: int | None, max_steps: int | None, done: int) -> None:
        until, limit = self._end(epochs), max_steps
        if epochs is None and max_steps is None:
            limit = self.max_steps
        else:
            self.open_ended = epochs is None
        if until > self.until or (limit or 0) > (self.max_steps or 0):
            self.stopped = None
        self.until, self.max_steps = until, limit
        # A run that was interrupted within its last epoch still needs validation and the last checkpoint.
        self.at_limit = limit is not None and done >= limit and (self.at_limit or not self.within)
        if self.open_ended and self.stopped is None and not self.at_limit:
            self.until = max(until, self.epoch + 1)

    def hold_out(self, share: float | None, resumed: bool) -> None:
        """Set the share of the data that the run holds out. It must be called before `plan`.

        Raises UsageError if a continued run held out another share: training and validation data would mix.
        """
        if self.finished and not resumed:
            self.validation_split = share
        elif self.validation_split != share:
            raise UsageError(
                f"validation_split={share}: the run that this fit continues has validation_split="
                f"{self.validation_split}. Another share would mix training and validation data"
            )

    def _begin_run(self, epochs: int | None, max_steps: int | None, updates: int) -> None:
        if self.within:
            self.end_epoch()
        self.open_ended = epochs is None and max_steps is not None
        self.start, self.until = self.epoch, self.epoch + (defaults.EPOCHS if epochs is None else epochs)
        self.stopped, self.first_update = None, updates
        self.max_steps, self.at_limit = max_steps, max_steps == 0
        if epochs == 0:
            warnings.warn(_NOTHING, stacklevel=4)

    def _warn_of_end(self, updates: int) -> None:
        done = self.until - self.start
        if not done:
            warnings.warn(_NOTHING, stacklevel=4)
            return
        why, longer, rule = f"has finished its {quantity(done, 'epoch')}", f"epochs={done + 1}", WHOLE_RUN
        if self.at_limit:
            why, longer, rule = f"has made its {quantity(updates, 'update')}", f"max_steps={updates + 1}", ALL_UPDATES
        elif self.stopped is not None:
            why = f"was ended {self}: {self.stopped}"
            if self.open_ended:
                longer, rule = f"max_steps={(self.max_steps or 0) + 1}", ALL_UPDATES
        name = longer.partition("=")[0]
        warnings.warn(
            f"nothing is left to train: the run {why}. After resume, {rule}: {longer} continues it. The next fit of "
            f"this trainer starts another run, where {name} is the number of further "
            f"{'epochs' if name == 'epochs' else 'updates'}",
            stacklevel=4,
        )

    def remaining_epochs(self, epochs: int | None, resumed: bool) -> int:
        """Return the number of epochs that `fit` would complete without `max_steps`. Arguments as for `plan`."""
        if self.finished and not resumed:
            return defaults.EPOCHS if epochs is None else epochs
        until = self._end(epochs)
        if self.stopped is not None and until <= self.until:
            return int(self.within)
        return max(until - self.epoch, 0)

    def has_updates_left(self, epochs: int | None, resumed: bool, updates: int, max_steps: int | None) -> bool:
        """Return whether `fit` would train or complete an epoch. Arguments as for `plan`."""
        if self.finished and not resumed:
            return 0 not in (epochs, max_steps)
        planned = replace(self)
        planned._continue_run(epochs, max_steps, updates - self.first_update)
        return not planned.finished

    def _end(self, epochs: int | None) -> int:
        return self.until if epochs is None else self.start + epochs

    def end_epoch(self) -> None:
        """Count the current epoch as complete, and reset its sums.

        If only `max_steps` ends the run, and no epoch is left, add one. If this epoch skipped all steps, add none:
        otherwise the run might never end.
        """
        self.epoch += 1
        if self.open_ended and self.epoch >= self.until and self.loss_weight and not self.at_limit:
            self.until = self.epoch + 1
        self.batch = self.offset = self.seen = self.skipped = 0
        self.loss_sum, self.loss_weight, self.trained, self.metrics = 0.0, 0.0, None, {}

    def resize(self, width: int) -> None:
        trained = self.offset + self.batch * self.width
        self.offset = trained if self.length is None else min(trained, self.length)
        self.batch, self.width = 0, width

    def describe(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "metrics"}

    @classmethod
    def read(cls, described: Mapping[str, Any], metrics: MetricStates) -> Position:
        known = {f.name for f in fields(cls)}
        described = {"loss_weight": float(described.get("seen", 0)), **described}
        return cls(**{name: value for name, value in described.items() if name in known}, metrics=metrics)

    def __str__(self) -> str:
        of = "" if self.open_ended else f" of {self.until}"
        if not self.within:
            return f"after epoch {self.epoch}{of}"
        if self.trained is not None:
            return f"after the last batch of epoch {self.epoch + 1}{of}"
        return f"in epoch {self.epoch + 1}{of}, after batch {self.batch}"
