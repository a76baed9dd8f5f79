"""A callback of `fit` that writes event files for TensorBoard."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit.data import Dataset, TokenStream
from graphkit.errors import GraphkitError, UsageError
from graphkit.model import Model
from graphkit.report.events import EventFile, check_installed
from graphkit.report.loggers import scalars
from graphkit.report.png import is_picture, pixels
from graphkit.report.predictions import Predictions, predict
from graphkit.report.runs import flat
from graphkit.report.samples import arrays_of, said, text_of, tokens_of
from graphkit.signatures import typed_constructor
from graphkit.text import short_repr
from graphkit.train import losses
from graphkit.train.arguments import integer
from graphkit.train.callbacks import Callback, Numbers
from graphkit.train.metrics import LOSS
from graphkit.train.recurrent_state import RecurrentState
from graphkit.train.saving import whole_model
from graphkit.transforms.gradients import grad

if TYPE_CHECKING:
    from graphkit.train.trainer import Trainer

# In the folder of a run.
FOLDER = "tensorboard"


@typed_constructor("gk")
class TensorBoard(Callback):
    """Writes event files for TensorBoard: `tensorboard --logdir FOLDER` shows curves, weights, the graph and samples.

    The files contain:

    - Scalars, plotted against the number of updates: `step/loss` and `step/learning_rate`; after each epoch the losses
      and metrics `train/...` and `valid/...`, `learning_rate`, and `speed/...` (such as `speed/samples_per_second`).
    - Histograms of the trained parameters, or of their moving averages if there are any: `weights/...`.
    - With `gradients`, histograms `gradients/...` of the gradients of the loss for the first `count` of `samples`. The
      model is in inference mode: no dropout, and BatchNormalization uses the running statistics.
    - `not_finite/...`: the number of NaN and infinite elements of a parameter or gradient, if there are any.
    - The graph of the network; the settings and the network as text.
    - The first `count` of `samples`, if they are images. If they have targets, a table of the model's predictions for
      them after each epoch. If predictions or gradients cannot be computed, a text says why.

    If a run is resumed, a second file is written. From the checkpoint on, TensorBoard shows the records of that file.
    With several processes, give the callback to every rank; rank 0 writes.

    Args:
        folder: Folder of the event files (default: `tensorboard` in the folder of the run).
        every: Number of updates between scalars of steps. With 0, only scalars of epochs are written.
        histograms: Number of epochs between histograms. With 0, there are none.
        samples: A Dataset, or a pair (inputs, targets), for images, predictions and gradients.
        count: Number of these samples that are used.
        gradients: Write histograms of gradients. Needs samples with targets, and additional memory of the size of the
            parameters.

    Raises:
        MissingDependency: tensorboardX is not installed (graphkit's extra `curves` installs it).
        UsageError: `gradients` is set without `samples`. In `fit`: neither the callback nor `fit` has a folder.
        RuntimeFailure: In `fit`: a file cannot be written.
    """

    def __init__(
        self, folder: str | Path | None = None, *, every: int = 10, histograms: int = 1,
        samples: Dataset | tuple[Any, Any] | None = None, count: int = 8, gradients: bool = False,
    ):  # fmt: skip
        check_installed()
        if gradients and samples is None:
            raise UsageError(
                "TensorBoard: gradients=True needs samples with targets, for which gradients are computed: samples=..."
            )
        self.folder = None if folder is None else Path(folder)
        self.every = integer("TensorBoard", "every", every, 0)
        self.histograms = integer("TensorBoard", "histograms", histograms, 0)
        self.count = integer("TensorBoard", "count", count, 1)
        self.gradients = gradients
        self.samples = Dataset(*samples) if isinstance(samples, tuple) else samples
        self._file: EventFile | None = None
        self._last = 0
        self._predicts = False

    @property
    def name(self) -> str:
        return "TensorBoard" if self.folder is None else f"TensorBoard({self.folder})"

    def on_fit_begin(self, trainer: Trainer, numbers: Numbers) -> None:
        folder = self.folder
        if folder is None:
            if trainer.folder is None:
                raise UsageError(
                    "TensorBoard: there is no folder for event files; give TensorBoard(folder=...) or fit(folder=...)"
                )
            folder = trainer.folder / FOLDER
        self._last = updates = int(numbers["updates"])
        self._predicts = self.samples is not None
        if trainer.rank > 0:
            return
        goes_on = updates > 0 and any(folder.glob("events.*"))
        self._file = file = EventFile(folder)
        file.starts(updates + 1 if updates else 0)
        if not goes_on:
            file.graph(trainer.net.graph)
        file.text("network", _code(trainer.net.to_text()), updates)
        file.text("settings", _markdown(("setting", "value"), _settings(trainer, numbers)), updates)
        if self.samples is not None:
            _show(file, self.samples, self.count, updates)
        file.flush()

    def on_step_end(self, trainer: Trainer, numbers: Numbers) -> None:
        updates = numbers["updates"]
        if self._file is None or not self.every or updates == self._last or updates % self.every:
            return
        self._last = updates
        for name in ("loss", "learning_rate"):
            self._file.scalar(f"step/{name}", numbers[name], updates)

    def on_epoch_end(self, trainer: Trainer, numbers: Numbers) -> None:
        updates = numbers["updates"]
        weights = bool(self.histograms) and numbers["epoch"] % self.histograms == 0
        if self._file is not None:
            for tag, value in scalars(numbers):
                self._file.scalar(tag, value, updates)
        if weights or self._predicts:
            with trainer._working(), whole_model(trainer) as net:
                if net is not None and self._file is not None:
                    if weights:
                        _histograms(self._file, "weights", trainer.trained, net.params, updates)
                    if weights and self.gradients:
                        self._differentiate(self._file, trainer, net, updates)
                    if self._predicts:
                        self._predict(self._file, trainer, net, updates)
        if self._file is not None:
            self._file.flush()

    def on_fit_end(self, trainer: Trainer, numbers: Numbers) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _predict(self, file: EventFile, trainer: Trainer, net: Model, updates: int) -> None:
        assert self.samples is not None, "there are samples to predict"
        try:
            found = predict(
                net, self.samples, loss=losses.described(trainer.loss), output=trainer._output,
                carry=trainer._recurrent_state.names, batch_size=self.count, most=self.count,
            )  # fmt: skip
        except GraphkitError as error:
            file.text("predictions", f"No predictions: {escape(str(error))}", updates)
            return
        file.text("predictions", _table(found, self.count), updates)

    def _differentiate(self, file: EventFile, trainer: Trainer, net: Model, updates: int) -> None:
        assert self.samples is not None, "gradients=True needs samples"
        try:
            graph = losses.attach(net.graph, *trainer._criterion)
            program = grad(Model.from_graph(graph, net.params.entries()), LOSS, trainer.trained, allow_unused=True)
            batch = next(map(trainer._prepared, self.samples.batches(self.count, shuffle=False)))
            state = RecurrentState(trainer.net, trainer._recurrent_state.names)
            found = program.run(state.feeds(batch.inputs) | trainer._targets.fitted(batch.targets, False))
        except GraphkitError as error:
            file.text("gradients", f"No gradients: {escape(str(error))}", updates)
            return
        named = {name: found[f"{name}_grad"] for name in trainer.trained}
        _histograms(file, "gradients", trainer.trained, named, updates)

    def __repr__(self) -> str:
        return short_repr(self, self._facts)

    def _facts(self) -> Iterator[str]:
        yield f"folder {self.folder}" if self.folder is not None else "the run's folder"
        yield f"every {self.every} updates"


def _histograms(
    file: EventFile, kind: str, names: Sequence[str], arrays: Mapping[str, np.ndarray], updates: int
) -> None:
    for name in names:
        if odd := file.histogram(f"{kind}/{name}", arrays[name], updates):
            file.scalar(f"not_finite/{name if kind == 'weights' else f'{kind}/{name}'}", odd, updates)


# --- texts and pictures ---------------------------------------------------------------------------------


def _settings(trainer: Trainer, numbers: Numbers) -> Iterator[tuple[str, str]]:
    given = {name: value for name, value in trainer.notes.items() if value not in (None, [], False)}
    yield from flat({
        "loss": losses.described(trainer.loss), "optimizer": trainer.optimizer.describe(), "seed": trainer.seed,
        "epochs": numbers["until"], "processes": numbers["processes"], "train": given,
    })  # fmt: skip


def _show(file: EventFile, data: Dataset, count: int, updates: int) -> None:
    """Write the first samples, if they are images."""
    if isinstance(data, TokenStream):
        return
    inputs, _ = data.take(np.arange(min(count, len(data))))
    for array in inputs.values() if isinstance(inputs, Mapping) else [inputs]:
        if is_picture(np.shape(array)[1:]):
            for number, sample in enumerate(np.asarray(array)):
                file.picture(f"samples/{number}", pixels(sample), updates)
            return


def _table(found: Predictions, count: int) -> str:
    """Return a table of predictions for the first samples, as Markdown."""
    places = np.arange(min(count, len(found)))
    texts: list[str] = []
    if not isinstance(found.data, TokenStream) and (tokens := tokens_of(found, arrays_of(found, places))) is not None:
        assert found.data.vocabulary is not None, "it has tokens"
        texts = [text_of(found.data.vocabulary, row) for row in tokens]
    told = [dict(said(found, int(place))) for place in places]
    heads = ["sample", *(["text"] if texts else []), *(told[0] if told else ())]
    rows = [
        [str(found.index[place]), *texts[i : i + 1], *map(escape, row.values())]
        for i, (place, row) in enumerate(zip(places, told, strict=True))
    ]
    return _markdown(heads, rows, escaped=True)


def _markdown(heads: Any, rows: Any, escaped: bool = False) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell if escaped else escape(cell)) for cell in line)} |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "&#124;")


def _code(text: str) -> str:
    """Return text as a code block of Markdown."""
    return "\n".join(f"    {line}" for line in text.splitlines())
