"""Callbacks: objects that `Trainer.fit` calls after steps and epochs, and when it begins and ends."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit.errors import UsageError, did_you_mean
from graphkit.signatures import typed_constructor
from graphkit.text import quantity, settings, short_repr
from graphkit.train import defaults
from graphkit.train.arguments import FRACTION, NOT_NEGATIVE, Range, integer, real
from graphkit.train.run_folder import BEST, best_of_epoch, remove_model

if TYPE_CHECKING:
    from graphkit.train.trainer import Trainer

# The numbers that the methods of a callback receive, by name.
Numbers = Mapping[str, Any]

_SMALLER_IS_BETTER = frozenset({"loss", "mse", "rmse", "mae", "perplexity", "skipped"})
_NO_SCORES = frozenset({"epoch", "updates", "processes", "peak_memory", "samples_per_second", "waiting"})


class Callback:
    """Base class of callbacks for `Trainer.fit(..., callbacks=[...])`. Override the methods that you need.

    Methods receive the trainer, and a dict of numbers. They may read everything in the trainer (`trainer.net`,
    `trainer.folder`, `trainer.rank`, `trainer.learning_rate`, ...), set `trainer.rate_scale`, and end training with
    `trainer.stop("why")`. If a method raises an exception, `fit` raises it, with a note that names the callback and the
    method. After an exception within an epoch, `fit` writes no record of the epoch and no further checkpoint.

    With several processes, each rank calls its own callbacks. Pass the same callbacks on all ranks, and write files
    only `if trainer.rank == 0`. On every rank, `on_epoch_end` receives the numbers of rank 0, so that all ranks make
    the same decisions. Checkpoints contain the states of rank 0. If one rank calls `trainer.stop`, all ranks stop after
    the same step. With parameter servers (`dist_async`, ...), ranks do not wait for each other: after `trainer.stop`,
    they stop at the end of the epoch.
    """

    @property
    def name(self) -> str:
        """Name under which a checkpoint stores the state (default: the name of the class).

        Each callback of a `fit` needs a different name.
        """
        return type(self).__name__

    def reset(self) -> None:
        """Discard all state. Called before a run for which there is no saved state of this callback."""

    def on_fit_begin(self, trainer: Trainer, numbers: Numbers) -> None:
        """Called before the first step, after `restore` or `reset`.

        Args:
            numbers: epoch (number of complete epochs), until (number of epochs at the end of the run), updates (number
                of updates of the parameters so far), processes (number of ranks), resumed (whether an interrupted run
                or a checkpoint is continued).
        """

    def on_step_end(self, trainer: Trainer, numbers: Numbers) -> None:
        """Called after each batch, before a checkpoint of this batch is written.

        Args:
            numbers: epoch (from 1), batch (from 1 in each epoch), updates, loss (of this batch; NaN if the step was
                skipped), learning_rate (of the next update), samples (of this batch, over all processes).
        """

    def on_epoch_end(self, trainer: Trainer, numbers: Numbers) -> None:
        """Called after validation, before the checkpoint of the epoch.

        Args:
            numbers: The numbers of the epoch's line in `log.jsonl`: epoch (from 1), updates, learning_rate, processes,
                samples_per_second (of training, over all processes), waiting (with several processes: the share of time
                spent waiting for others), peak_memory (bytes of this process so far, if the system reports it), loss,
                the metrics, skipped (number of skipped steps, if any), data.damaged (number of replaced samples, if
                `on_damaged` is "skip"), and the loss and metrics of validation with the prefix `valid_`.
        """

    def on_fit_end(self, trainer: Trainer, numbers: Numbers) -> None:
        """Called when `fit` ends, also after an error or interrupt, if `on_fit_begin` was called.

        The last checkpoint is already written.

        Args:
            numbers: epoch, updates, finished (whether the run is complete), stopped (why it ended early, or None).
        """

    def state(self) -> dict[str, Any]:
        """Return the state that a resumed run needs, as values for JSON. It is part of every checkpoint."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state` returned."""

    def __repr__(self) -> str:
        return short_repr(self, lambda: ["", *settings(self)])


class _Monitor(Callback):
    """Compares epochs by one of their numbers. NaN and infinite numbers never count as better."""

    def __init__(self, monitor: str, mode: str | None, min_delta: float):
        owner = type(self).__name__
        if mode not in (None, "min", "max"):
            raise UsageError(f"{owner}: mode must be 'min' or 'max', not {mode!r}")
        self.monitor = monitor
        self.mode = mode or ("min" if monitor.removeprefix("valid_") in _SMALLER_IS_BETTER else "max")
        self.min_delta = real(owner, "min_delta", min_delta, NOT_NEGATIVE)
        self.reset()

    @property
    def name(self) -> str:
        return f"{type(self).__name__}({self.monitor})"

    def reset(self) -> None:
        self.best: float | None = None
        self.best_epoch = 0

    def on_fit_begin(self, trainer: Trainer, numbers: Numbers) -> None:
        own = type(self).value is not _Monitor.value
        known = trainer.scores
        if known and not (own or trainer.callbacks_may_add_scores) and self.monitor not in (*_NO_SCORES, *known):
            raise self._lacking(known)

    def value(self, numbers: Numbers) -> float:
        if self.monitor not in numbers:
            raise self._lacking(numbers)
        return float(numbers[self.monitor])

    def _lacking(self, numbers: Iterable[str]) -> UsageError:
        if self.monitor.startswith("valid_") and (other := self.monitor.removeprefix("valid_")) in numbers:
            return UsageError(
                f"{type(self).__name__}: the monitor {self.monitor!r} needs validation data: pass valid= to fit "
                f"(--valid), or monitor={other!r} (--monitor)"
            )
        missing = "" if not self.monitor.startswith("valid_") else " (valid_... only with validation data)"
        known = [name for name in numbers if name not in _NO_SCORES]
        near = did_you_mean(self.monitor, known)
        # If no name is similar, `near` lists all names, which the message below does anyway.
        near = near if "did you mean" in near else ""
        return UsageError(
            f"{type(self).__name__}: unknown monitor {self.monitor!r} (monitor=, --monitor){near or '.'} The values of "
            f"an epoch are {', '.join(known)}{missing}"
        )

    def improves(self, numbers: Numbers) -> bool:
        value = self.value(numbers)
        if not math.isfinite(value):
            return False
        if self.best is not None:
            gain = self.best - value if self.mode == "min" else value - self.best
            if gain <= self.min_delta:
                return False
        self.best, self.best_epoch = value, int(numbers["epoch"])
        return True

    def state(self) -> dict[str, Any]:
        return {"best": self.best, "best_epoch": self.best_epoch}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.best = None if state["best"] is None else float(state["best"])
        self.best_epoch = int(state["best_epoch"])


class _Patient(_Monitor):
    def __init__(self, monitor: str, patience: int, mode: str | None, min_delta: float):
        self.patience = integer(type(self).__name__, "patience", patience, 1)
        super().__init__(monitor, mode, min_delta)

    def reset(self) -> None:
        super().reset()
        self.wait = 0

    def on_fit_begin(self, trainer: Trainer, numbers: Numbers) -> None:
        super().on_fit_begin(trainer, numbers)
        if not numbers["resumed"]:
            self.wait = 0

    def state(self) -> dict[str, Any]:
        return {**super().state(), "wait": self.wait}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self.wait = int(state["wait"])

    def is_exhausted(self, numbers: Numbers) -> bool:
        self.wait = 0 if self.improves(numbers) else self.wait + 1
        return self.wait >= self.patience


@typed_constructor("gk.callbacks")
class EarlyStopping(_Patient):
    """Ends training if a monitored number has not improved for `patience` epochs in a row.

    Args:
        patience: Number of epochs without improvement after which training ends; at least 1.
        monitor: Key in the records of `fit`, such as "valid_loss", "valid_accuracy" or "loss".
        mode: "min" if smaller is better, "max" if larger is better. The default is "min" for loss, mse, rmse, mae,
            perplexity and skipped, also with the prefix valid_, and "max" for all other names.
        min_delta: An improvement counts only if the number is better than the best one so far by more than this.

    Raises:
        UsageError: From `fit`: the records of epochs have no number called `monitor`.
    """

    def __init__(self, patience: int, monitor: str = defaults.MONITOR, mode: str | None = None, min_delta: float = 0.0):
        super().__init__(monitor, patience, mode, min_delta)

    def on_epoch_end(self, trainer: Trainer, numbers: Numbers) -> None:
        if self.is_exhausted(numbers):
            best = "was never finite" if self.best is None else f"was best in epoch {self.best_epoch}, {self.best:.5g}"
            trainer.stop(f"{self.monitor} has not improved for {quantity(self.wait, 'epoch')}; it {best}")


@typed_constructor("gk.callbacks")
class ReduceOnPlateau(_Patient):
    """Multiplies the learning rate by `factor` if a monitored number has not improved for `patience` epochs in a row.

    ReduceOnPlateau(patience=n) is PyTorch's ReduceLROnPlateau(patience=n - 1, threshold=min_delta,
    threshold_mode="abs").

    Args:
        patience: Number of epochs without improvement after which the rate is reduced; at least 1.
        factor: Factor of each reduction, between 0 and 1.
        monitor: Key in the records of `fit`, such as "valid_loss", "valid_accuracy" or "loss".
        mode: "min" if smaller is better, "max" if larger is better. The default is "min" for loss, mse, rmse, mae,
            perplexity and skipped, also with the prefix valid_, and "max" for all other names.
        min_delta: An improvement counts only if the number is better than the best one so far by more than this.
        cooldown: Number of epochs after a reduction that are not counted as epochs without improvement.
        lowest: Lower limit of the product of all reductions, from 0 to 1. With 0.01, the rate never falls below 1% of
            the optimizer's rate.
    """

    def __init__(
        self, patience: int = 10, factor: float = 0.1, monitor: str = defaults.MONITOR, mode: str | None = None,
        min_delta: float = 0.0, cooldown: int = 0, lowest: float = 0.0,
    ):  # fmt: skip
        self.factor = real("ReduceOnPlateau", "factor", factor, Range(0.0, 1.0, open_low=True, open_high=True))
        self.cooldown = integer("ReduceOnPlateau", "cooldown", cooldown, 0)
        self.lowest = real("ReduceOnPlateau", "lowest", lowest, FRACTION)
        super().__init__(monitor, patience, mode, min_delta)

    def reset(self) -> None:
        super().reset()
        self.scale, self.cooling = 1.0, 0

    def on_fit_begin(self, trainer: Trainer, numbers: Numbers) -> None:
        super().on_fit_begin(trainer, numbers)
        trainer.rate_scale = self.scale

    def on_epoch_end(self, trainer: Trainer, numbers: Numbers) -> None:
        is_due = self.is_exhausted(numbers)
        if self.cooling:
            self.cooling, self.wait, is_due = self.cooling - 1, 0, False
        if is_due:
            self.scale = trainer.rate_scale = max(self.scale * self.factor, self.lowest)
            self.wait, self.cooling = 0, self.cooldown

    def state(self) -> dict[str, Any]:
        return {**super().state(), "scale": self.scale, "cooling": self.cooling}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self.scale, self.cooling = float(state["scale"]), int(state["cooling"])


@typed_constructor("gk.callbacks")
class KeepBest(_Monitor):
    """Keeps the model of the best epoch in the run folder, as `best.json` and `best.*.safetensors`.

    After the first epoch whose monitored number is finite, the folder always contains a complete best model. Its
    metadata contains the epoch (`best_epoch`) and the number (such as `best_valid_loss`).

    With `keep` above 1, the folder also contains the models of the `keep` best epochs, as `best-epoch-N.json`. A model
    is removed after a better one is complete. If epochs have equal numbers, the earlier one counts as better.

    Args:
        monitor: Key in the records of `fit`, such as "valid_loss", "valid_accuracy" or "loss".
        mode: "min" if smaller is better, "max" if larger is better. The default is "min" for loss, mse, rmse, mae,
            perplexity and skipped, also with the prefix valid_, and "max" for all other names.
        keep: Number of models to keep.

    Raises:
        UsageError: From `fit`: it has no `folder`, or the records of epochs have no number called `monitor`.
    """

    def __init__(self, monitor: str = defaults.MONITOR, mode: str | None = None, keep: int = 1):
        self.keep = integer("KeepBest", "keep", keep, 1)
        super().__init__(monitor, mode, 0.0)

    def reset(self) -> None:
        super().reset()
        # (number, epoch) of the kept models, the best first.
        self.kept: list[tuple[float, int]] = []

    def on_fit_begin(self, trainer: Trainer, numbers: Numbers) -> None:
        super().on_fit_begin(trainer, numbers)
        if trainer.folder is None:
            raise UsageError("KeepBest: fit has no folder for the best model; pass folder=")

    def on_epoch_end(self, trainer: Trainer, numbers: Numbers) -> None:
        assert trainer.folder is not None, "checked in on_fit_begin"
        epoch, value = int(numbers["epoch"]), self.value(numbers)
        meta = {"best_epoch": str(epoch), f"best_{self.monitor}": repr(value)}
        if self.improves(numbers):
            trainer.save_model(trainer.folder / BEST, meta)
        if self.keep == 1 or not math.isfinite(value):
            return
        sign = 1.0 if self.mode == "min" else -1.0
        ranked = sorted([*self.kept, (value, epoch)], key=lambda each: (sign * each[0], each[1]))
        self.kept = ranked[: self.keep]
        if (value, epoch) in self.kept:
            trainer.save_model(trainer.folder / best_of_epoch(epoch), meta)
        for _, other in ranked[self.keep :]:
            if trainer.rank == 0:
                remove_model(trainer.folder / best_of_epoch(other))

    def state(self) -> dict[str, Any]:
        return {**super().state(), **({"kept": self.kept} if self.keep > 1 else {})}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self.kept = [(float(value), int(epoch)) for value, epoch in state.get("kept", [])]


class GradualPruning(Callback):
    """Prunes the weights of smallest magnitude during training, more and more of them.

    The Trainer must have masks for the parameters that are pruned. At the beginning, these may be True everywhere.
    After update u, the share of zeros is sparsity * (1 - (1 - t)^3), where t = (u - start) / (end - start) (Zhu and
    Gupta 2017). Pruned weights stay pruned, even if the first masks have more zeros than this share.

    Args:
        sparsity: Share of zeros after update `end`, above 0 and below 1.
        end: Number of the update after which the sparsity is reached. Afterwards, masks do not change.
        start: Number of the update after which pruning begins.
        every: Number of updates between two changes of the masks.
        scope: "global": `sparsity` is the share of zeros in all masked parameters together. "layer": it is the share in
            each masked parameter.
    """

    def __init__(self, sparsity: float, end: int, *, start: int = 0, every: int = 100, scope: str = "global"):
        self.sparsity = real("GradualPruning", "sparsity", sparsity, Range(0.0, 1.0, open_low=True, open_high=True))
        self.start = integer("GradualPruning", "start", start, 0)
        self.end = integer("GradualPruning", "end", end, self.start + 1)
        self.every = integer("GradualPruning", "every", every, 1)
        if scope not in ("global", "layer"):
            raise UsageError(f"GradualPruning: scope must be 'global' or 'layer', not {scope!r}")
        self.scope = scope

    def on_fit_begin(self, trainer: Trainer, numbers: Numbers) -> None:
        if not trainer.masks():
            raise UsageError("GradualPruning: the Trainer has no masks (masks=), so nothing would be pruned")
        self._last = numbers["updates"]

    def on_step_end(self, trainer: Trainer, numbers: Numbers) -> None:
        updates = numbers["updates"]
        is_new, self._last = updates > self._last, updates
        due = updates == self.end or (updates - self.start) % self.every == 0
        if is_new and due and self.start < updates <= self.end:
            trainer.set_masks(self._masks(trainer, self.sparsity_after(updates)))

    def sparsity_after(self, updates: int) -> float:
        """Return the share of zeros after a number of updates."""
        t = min(max((updates - self.start) / (self.end - self.start), 0.0), 1.0)
        return self.sparsity * (1 - (1 - t) ** 3)

    def _masks(self, trainer: Trainer, sparsity: float) -> dict[str, Any]:
        from graphkit.ir.magnitudes import magnitude_masks

        present = trainer.masks()
        arrays = {name: np.asarray(trainer.net.params[name]) for name in present}
        found = magnitude_masks(arrays, sparsity, globally=self.scope == "global")
        return {name: present[name] & mask for name, mask in found.items()}
