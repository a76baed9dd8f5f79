"""Evaluation of a model file on labelled data."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit.data import Dataset, IterableDataset, TokenStream, as_dataset
from graphkit.data.batches import Batch, Batches
from graphkit.data.employed import employed
from graphkit.errors import InputError, UsageError
from graphkit.inference.batch_runner import BatchRunner
from graphkit.inference.evaluation import Evaluation
from graphkit.inference.hugging_face import with_files_beside
from graphkit.inference.labelled_data import check_targets, no_targets, read_labelled, with_classes_of
from graphkit.inference.scorer import Choice, Scorer
from graphkit.ir.types import TensorType
from graphkit.loading import load
from graphkit.model import Model
from graphkit.signatures import typed
from graphkit.text import quantity
from graphkit.train.background import BackgroundWork, length_of
from graphkit.train.inputs import Inputs
from graphkit.train.progress import ProgressBar
from graphkit.train.recurrent_state import RecurrentState

if TYPE_CHECKING:
    from graphkit.data.workers.pool import Workers
    from graphkit.executor.devices.groups import AnyDevice


@typed("gk.evaluate")
def evaluate(
    model: Model | str | os.PathLike[str],
    data: Any,
    *,
    loss: Any = None,
    metrics: Any = None,
    output: str | None = None,
    probabilities: bool | None = None,
    batch_size: int = 64,
    worst: int = 10,
    engine: str = "graphkit",
    file: str | os.PathLike[str] | None = None,
    device: AnyDevice = "cpu",
    threads: int | None = None,
    carry: Mapping[str, str] | None = None,
    prefetch: int = 2,
    workers: int | Workers | None = None,
    progress: bool | None = False,
) -> Evaluation:
    """Compute loss, metrics, confusion matrix, calibration and the worst samples of a model on labelled data.

    Targets and outputs decide what is compared. Class numbers or one-hot rows, with one score per class: a
    classification. Targets 0 and 1, with one score each: a binary classification. Other targets of the shape of the
    output: a regression. `loss` decides instead if it is given.

    Args:
        model: A Model; or an ONNX or JSON file, or a run folder, whose last model is taken. For an ONNX file with an
            input `input_ids`, tokenizer.json and the class names of config.json beside it are used.
        data: A data set as `gk.data.load` takes it (then its test part is used if it has one, else all samples), or
            data as `Trainer.evaluate` takes them.
        loss: A name (see `gk.losses.names()`), or a result of `gk.losses.get`. Default: softmax_cross_entropy,
            sigmoid_binary_cross_entropy or mse, by the task. It is computed from the output of the file.
        metrics: Names (see `gk.metrics.names()`), or objects with the methods of `gk.metrics.Metric`. Default:
            accuracy, F1 and top-5 accuracy for classes (macro F1; with two classes, the F1 of class 1); accuracy, F1
            and AUC for a binary classification; squared and absolute errors for a regression.
        output: Name of the output. Default: the only one that can be compared with the targets.
        probabilities: Whether the output contains probabilities, and not logits. Default: True if it comes from a
            Softmax or Sigmoid, or if all rows of the first batch have sum 1 and no negative number.
        batch_size: Samples per batch. If the model has a fixed batch size, batches are split and padded; padding is
            not counted.
        worst: Number of samples with the largest losses that are returned.
        engine: "graphkit", or "onnxruntime" to run the file in ONNX Runtime.
        file: The ONNX file that ONNX Runtime runs. Default: `model` if it is an .onnx file, otherwise an export.
        device: Device of graphkit: "cpu" or "cuda".
        threads: Number of CPU threads.
        carry: Recurrent state: {input: output}, see Trainer.
        prefetch: Number of batches that are loaded ahead.
        workers: Number of processes that make samples of lazy data sets.
        progress: Whether to show a progress bar on stderr. None: only on a terminal.

    Returns:
        The results.

    Raises:
        UsageError: No output, or more than one, can be compared with the targets.
        InputError: The data are empty, have no targets, or have a class that the model does not have.
    """
    if worst < 0:
        raise UsageError(f"evaluate: worst must be a number of samples, not {worst}")
    net, beside = (model, "") if isinstance(model, Model) else with_files_beside(load(os.fspath(model)), model)
    if file is None and not isinstance(model, Model) and os.fspath(model).endswith(".onnx"):
        file = model
    given, notes = _labelled(net, data, carry or {})
    notes = (beside, *notes) if beside else notes
    with employed(workers, given) as (found,), ProgressBar(progress) as bar, BackgroundWork(prefetch) as background:
        state = RecurrentState(net, carry or {})
        axes = dict.fromkeys(net.inputs) if isinstance(found, TokenStream) else getattr(found, "axes", None)
        runner = BatchRunner(
            net, engine, file=file, device=device, threads=threads, axes=axes, shared=tuple(state.names)
        )
        choice = Choice(net, found, loss, metrics, output, probabilities, worst, threads)
        result = _evaluated(runner, state, choice, batch_size, background, bar)
    return replace(result, engine=engine, notes=(*notes, *result.notes))


def _evaluated(
    runner: BatchRunner, state: RecurrentState, choice: Choice, batch_size: int, background: BackgroundWork,
    bar: ProgressBar,
) -> Evaluation:  # fmt: skip
    """Run the model on all batches, and return the result."""
    data = choice.data
    batches = data.batches(batch_size, shuffle=False)
    bar.start("evaluation", length_of(batches), transient=True)
    scorer: Scorer | None = None
    seconds, replaced = 0.0, 0
    for batch, index in _numbered(background.batches(batches), batches):
        if batch.targets is None:
            raise no_targets(data.name)
        wanted = choice.candidates if scorer is None else (scorer.output,)
        feeds = state.feeds(batch.inputs)
        start = time.perf_counter()
        results = runner.run(feeds, batch.size, tuple(dict.fromkeys((*wanted, *state.names.values()))))
        seconds += time.perf_counter() - start
        state.keep(results)
        if scorer is None:
            scorer = choice.scorer(results, batch)
        scorer.add(results[scorer.output], batch.targets, index)
        replaced += batch.replaced
        bar.advance()
    if scorer is None:
        raise InputError(f"{data.name}: the data set has no samples")
    note = f"{quantity(replaced, 'damaged sample')} replaced by the next readable one, which therefore counts twice"
    return replace(scorer.result(), seconds=seconds, notes=(note,) if replaced else ())


def _labelled(net: Model, data: Any, carry: Mapping[str, str]) -> tuple[Dataset | IterableDataset, tuple[str, ...]]:
    """Return the data with the class numbers of the model, and notes about them. Raises InputError for wrong data."""
    if isinstance(data, (str, os.PathLike)):
        data = read_labelled(net, data).data
    types = {name: kind for name, kind in net.input_types.items() if name not in carry}
    ranks = {name: kind.rank if isinstance(kind, TensorType) else None for name, kind in types.items()}
    found = as_dataset(data, ranks)
    if not isinstance(found, Dataset):
        return found, ()
    check_targets(found)
    found, note = with_classes_of(net, found)
    inputs = Inputs(net.input_types)
    inputs.check_names(found)
    inputs.check_shapes(found)
    return found, (note,) if note else ()


def _numbered(batches: Iterable[Batch], source: Any) -> Iterator[tuple[Batch, np.ndarray]]:
    """Yield each batch with the positions of its samples in the data, int64 [N]."""
    order = source.order(0).reshape(-1) if isinstance(source, Batches) else None
    start = 0
    for batch in batches:
        index = np.arange(start, start + batch.size) if order is None else order[start : start + batch.size]
        start += batch.size
        yield batch, index
