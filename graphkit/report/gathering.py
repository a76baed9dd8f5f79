"""Loads the model of each run for a report, and predicts. Both are repeated only if the model changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from graphkit.data import Dataset
from graphkit.errors import GraphkitError
from graphkit.loading import load
from graphkit.model import Model
from graphkit.report.page import Reported
from graphkit.report.predictions import Predictions, predict
from graphkit.report.runs import Run
from graphkit.train.run_folder import MODEL


@dataclass
class Gathering:
    """Loads models and predictions of runs, and caches them until a run writes its model again.

    data: function that takes a run and its model. It returns the data to predict, or raises GraphkitError. None:
        predict nothing.
    most: maximum number of samples.
    strict: raise errors of data and models, instead of showing them on the page.
    external_root: folder to which symbolic links of weights may lead.
    """

    data: Callable[[Run, Model], Dataset] | None
    most: int | None = None
    strict: bool = False
    external_root: str | None = None
    _kept: dict[Path, tuple[int, Reported]] = field(default_factory=dict)

    def of(self, run: Run) -> Reported:
        """Return a run with its model and predictions. If `strict`, raise errors of loading and predicting."""
        path = run.folder / MODEL
        try:
            stamp = path.stat().st_mtime_ns
        except OSError:
            return Reported(
                run, notes=[] if self.data is None else [f"{run.name}: no predictions, because there is no {MODEL} yet"]
            )
        before, kept = self._kept.get(run.folder, (None, None))
        if kept is None or before != stamp:
            kept = self._made(run)
            self._kept[run.folder] = stamp, kept
        return Reported(run, kept.net, kept.predictions, kept.notes)

    def _made(self, run: Run) -> Reported:
        net: Model | None = None
        try:
            net = load(run.folder, external_root=self.external_root)
            return Reported(run, net, self._predictions(run, net))
        except GraphkitError as error:
            if self.strict:
                raise
            what = "no model" if net is None else "no predictions"
            return Reported(run, net, notes=[f"{run.name}: {what}: {error}"])

    def _predictions(self, run: Run, net: Model) -> Predictions | None:
        if self.data is None:
            return None
        pairs = [str(pair).partition("=") for pair in run.options.get("carries") or ()]
        size = run.options.get("batch_size")
        return predict(
            net, self.data(run, net), loss=run.loss, output=run.options.get("output_name"),
            carry={name: output for name, _, output in pairs}, most=self.most,
            batch_size=size if isinstance(size, int) and size > 0 else 64,
        )  # fmt: skip
