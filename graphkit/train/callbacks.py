"""Callbacks: what `Trainer.fit` calls at its steps, its epochs, its begin and its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphkit.train.trainer import Trainer

# What a callback is told: numbers by name.
Numbers = Mapping[str, Any]


class Callback:
    """Called by `Trainer.fit(..., callbacks=[...])`; subclasses override what they want of it.

    Methods get the trainer and numbers by name. They may read everything of the trainer (`trainer.net`,
    `trainer.folder`, `trainer.rank`, `trainer.learning_rate`, ...), set `trainer.rate_scale`, and ask for the end of
    training by `trainer.stop("why")`. What one raises comes out of `fit`, with a note of where it was raised; nothing
    of that epoch is written then.

    Several processes: each rank calls the callbacks that it was given. They should be the same everywhere, and write
    files `if trainer.rank == 0`. Numbers of an epoch are those of rank 0 on all ranks, so that who decides by them
    decides alike, and checkpoints have the states of rank 0. A call of `stop` on one rank ends training on all at the
    same point: after that step, or with servers (`dist_async`, ...), where steps are each rank's own, after the epoch.
    """

    @property
    def name(self) -> str:
        """By which a checkpoint knows the state; no two callbacks of a `fit` have the same."""
        return type(self).__name__

    def reset(self) -> None:
        """Forget everything: called before a run of which there is no state of this callback."""

    def on_fit_begin(self, trainer: Trainer, numbers: Numbers) -> None:
        """Before the first step, after `restore` or `reset`.

        numbers: epoch (how many are over), until (how many there will be), updates, processes, resumed (whether a run
        goes on that was interrupted, or comes from a checkpoint).
        """

    def on_step_end(self, trainer: Trainer, numbers: Numbers) -> None:
        """After a batch, before the checkpoint that may follow.

        numbers: epoch (from 1), batch (from 1, within the epoch), updates, loss (of this batch; NaN for a step that was
        skipped), learning_rate (of the next update), samples (of this batch, over all processes).
        """

    def on_epoch_end(self, trainer: Trainer, numbers: Numbers) -> None:
        """After validation, before the checkpoint of the epoch.

        numbers: those of the epoch's line in `log.jsonl`: epoch (from 1), updates, learning_rate, processes,
        samples_per_second (in training, over all processes), peak_memory (bytes of this process so far; where the
        system tells it), loss, the metrics, and those of validation with `valid_` before the name.
        """

    def on_fit_end(self, trainer: Trainer, numbers: Numbers) -> None:
        """When `fit` ends, also by an error or an interrupt, if `on_fit_begin` was called; after the last checkpoint.

        numbers: epoch, updates, finished (whether the run is over), stopped (why it was ended early, or None).
        """

    def state(self) -> dict[str, Any]:
        """What a run that goes on from a checkpoint needs, as JSON has it; part of every checkpoint."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` gave."""
