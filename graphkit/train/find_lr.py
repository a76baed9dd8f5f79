"""Find a learning rate: train with rates that grow from update to update, and record the losses (Smith, 2017)."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit.data import Batch, Workers
from graphkit.data.employed import employed
from graphkit.errors import NotFinite, UsageError
from graphkit.executor.run.interruption import uninterrupted
from graphkit.ir.atomic import write_whole
from graphkit.signatures import typed
from graphkit.text import short_repr
from graphkit.train import defaults
from graphkit.train.arguments import POSITIVE, integer, real
from graphkit.train.background import length_of

if TYPE_CHECKING:
    from graphkit.train.trainer import Trainer

# Training diverges if the smoothed loss exceeds this multiple of its minimum.
_DIVERGED = 4.0
_SMOOTHING = 0.9
_MIN_STEPS, _MAX_STEPS = 60, 400
# Number of first steps whose smoothed losses are too noisy for a slope.
_NOISY = 10


@dataclass(frozen=True)
class RateCurve:
    """The result of `find_lr`: losses by learning rate.

    Attributes:
        rates: The learning rates of the updates, which grow geometrically.
        losses: The losses of their batches.
        smoothed: Exponential moving average of the losses with decay 0.9, with bias correction as in Adam.
        suggestion: The rate at which the smoothed loss falls fastest; None if it never falls, or if fewer than three
            smoothed losses are finite.
        diverged: Whether the smoothed loss was not finite or exceeded four times its best value. Training then ended at
            that rate.
    """

    rates: tuple[float, ...]
    losses: tuple[float, ...]
    smoothed: tuple[float, ...]
    suggestion: float | None
    diverged: bool

    def __repr__(self) -> str:
        return short_repr(self, self._facts)

    def _facts(self) -> Iterator[str]:
        yield ""
        yield f"{len(self.rates)} rates from {self.rates[0]:.3g} to {self.rates[-1]:.3g}" if self.rates else "no rates"
        yield "no suggestion" if self.suggestion is None else f"suggestion {self.suggestion:.3g}"
        if self.diverged:
            yield "diverged"

    def save(self, path: str | Path) -> None:
        """Write a .csv file with the columns learning_rate, loss, smoothed_loss."""
        rows = zip(self.rates, self.losses, self.smoothed, strict=True)
        lines = ["learning_rate,loss,smoothed_loss\n", *(f"{r!r},{loss!r},{mean!r}\n" for r, loss, mean in rows)]
        write_whole(Path(path), [line.encode() for line in lines])


@typed("gk.find_lr")
def find_lr(
    trainer: Trainer, data: Any, *, lowest: float = 1e-7, highest: float = 10.0, steps: int | None = None,
    batch_size: int = defaults.BATCH_SIZE, workers: int | Workers | None = None, sample_weight: Any = None,
) -> RateCurve:  # fmt: skip
    """Find a learning rate: train for some updates while the rate grows from `lowest` to `highest` (Smith, 2017).

    The rate grows by the same factor after each update. Training ends early if the smoothed loss exceeds four times its
    best value, or is not finite. Afterwards the trainer and its model are restored bit for bit. The learning rate of
    the optimizer is not used; its other options, such as the momentum, are used.

    Args:
        trainer: A Trainer that runs in one process and is not within an epoch.
        data: Training data: a Dataset, a pair (inputs, targets), an object with a length and items, or an iterable of
            samples or batches (see `gk.data.as_dataset`).
        lowest: The first rate.
        highest: The last rate.
        steps: Number of updates. The default is the number of batches of the data, but at least 60 and at most 400. If
            the data have fewer batches, they are repeated. For data without a length, the default is 60.
        batch_size: Samples per batch.
        workers: Number of worker processes, or a `gk.data.Workers`, that make samples of lazy data sets (default: the
            workers of the data set).
        sample_weight: Weights of the samples, as for `Trainer.fit`.

    Returns:
        A RateCurve with the loss at each rate. Its `suggestion` is a learning rate to begin with.

    Raises:
        UsageError: The trainer is within an epoch, or trains with several processes.
    """
    low, high = (real("find_lr", n, x, POSITIVE) for n, x in (("lowest", lowest), ("highest", highest)))
    if low >= high:
        raise UsageError(f"find_lr: lowest={lowest} must be below highest={highest}")
    batch_size = integer("find_lr", "batch_size", batch_size, 1)
    if not trainer._alone or (trainer.kvstore is not None and trainer.kvstore.is_remote):
        raise UsageError("find_lr only works in one process: create the Trainer without kvstore=")
    if trainer.position.within or trainer._stepper.accumulated:
        raise UsageError(f"find_lr must start between two epochs, but training is {trainer.position}")
    weighted = sample_weight is not None
    name = sample_weight if isinstance(sample_weight, str) else None
    given = trainer._weighted(trainer._data(data), sample_weight, name, "find_lr: sample_weight")
    if weighted:
        trainer._use_sample_weights()
    with employed(workers, given) as (found,), trainer._targets.reading(sample_weight, required=weighted):
        if steps is None:
            count = length_of(found.batches(batch_size, seed=trainer.seed))
            steps = _MIN_STEPS if count is None else min(max(count, _MIN_STEPS), _MAX_STEPS)
        steps = integer("find_lr", "steps", steps, 2)
        rates = np.geomspace(low, high, steps).tolist()
        before = _SavedState(trainer)
        try:
            return _ramp(trainer, _endless(found, batch_size, trainer.seed), rates)
        finally:
            before.restore()


def _endless(data: Any, batch_size: int, seed: int) -> Iterator[Batch]:
    for epoch in itertools.count():
        yield from data.batches(batch_size, seed=seed, epoch=epoch)


def _ramp(trainer: Trainer, batches: Iterator[Batch], rates: list[float]) -> RateCurve:
    losses: list[float] = []
    smoothed: list[float] = []
    mean, best, diverged = 0.0, math.inf, False
    trainer._recurrent_state.reset()
    for rate in rates:
        trainer.optimizer = dataclasses.replace(trainer.optimizer, lr=rate)
        losses.append(_update(trainer, batches))
        mean = _SMOOTHING * mean + (1 - _SMOOTHING) * losses[-1]
        smoothed.append(mean / (1 - _SMOOTHING ** len(losses)))
        best = min(best, smoothed[-1])
        if not math.isfinite(smoothed[-1]) or smoothed[-1] > best + (_DIVERGED - 1) * abs(best):
            diverged = True
            break
    return RateCurve(tuple(rates[: len(losses)]), tuple(losses), tuple(smoothed), _steepest(rates, smoothed), diverged)


def _update(trainer: Trainer, batches: Iterator[Batch]) -> float:
    """Train one update. Return the mean loss; NaN if a step is skipped or not finite."""
    losses = []
    for batch in itertools.islice(batches, trainer.accumulate):
        given = trainer._prepared(batch)
        try:
            trainer._exchange.return_outputs(bool(trainer._recurrent_state.names))
            found, results = trainer._step(trainer._recurrent_state.feeds(given.inputs), given.targets, given.size)
        except NotFinite:
            return math.nan
        trainer._recurrent_state.keep(results)
        losses.append(float(found))
    return float(np.mean(losses))


def _steepest(rates: list[float], smoothed: list[float]) -> float | None:
    known = np.array([value for value in smoothed if math.isfinite(value)])
    if len(known) < 3:
        return None
    slopes = np.gradient(known)[: int(np.argmin(known)) + 1]
    slopes[: min(_NOISY, len(slopes) // 5)] = np.inf
    steepest = int(np.argmin(slopes))
    return rates[steepest] if slopes[steepest] < 0 else None


class _SavedState:
    def __init__(self, trainer: Trainer):
        self._trainer, stepper = trainer, trainer._stepper
        names = [*trainer.net.params, *stepper.slots]
        self._arrays = {name: stepper.store[name].copy() for name in names}
        self._optimizer, self._rng = trainer.optimizer, trainer.executor.rng
        self._counts = stepper.updates, stepper.skipped, stepper.accumulated, stepper.accumulated_weight

    def restore(self) -> None:
        trainer, stepper = self._trainer, self._trainer._stepper
        with uninterrupted:
            for name, array in self._arrays.items():
                stepper.store.commit(name, array)
            trainer.optimizer, trainer.executor.rng = self._optimizer, self._rng
            stepper.updates, stepper.skipped, stepper.accumulated, stepper.accumulated_weight = self._counts
            trainer._recurrent_state.reset()
            trainer.step_incomplete = False
