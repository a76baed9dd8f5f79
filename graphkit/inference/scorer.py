"""Compares one output of a model with the targets, batch by batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphkit.data import Dataset, ImageDataset, IterableDataset, TokenStream
from graphkit.data.batches import Batch
from graphkit.errors import InputError, UsageError, did_you_mean
from graphkit.executor.run.params import ParamStore
from graphkit.inference.evaluation import Evaluation, WorstSample
from graphkit.inference.scoring import Scoring, Worst, logits_of
from graphkit.inference.task import BINARY, CLASSES, Task, recognise, scores_of
from graphkit.ir.arrays import array_of
from graphkit.ir.dims import symbol
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType, dtype_of
from graphkit.model import Model
from graphkit.signatures import shown
from graphkit.text import listed
from graphkit.train import losses, metrics
from graphkit.train.background import length_of
from graphkit.train.evaluation import usual_metrics
from graphkit.train.exchange.local import LocalInference
from graphkit.train.metrics import LOSS, Metric, value_of
from graphkit.train.probabilities import are_probabilities
from graphkit.train.programs.weights import weight_in
from graphkit.train.targets import Targets, expected_targets

# With more classes than this, top-5 accuracy is one of the default metrics.
_TOP = 5


def _target(given: Any, output: str) -> np.ndarray:
    """Return the target of a batch that belongs to an output: that of its name, else the only one."""
    if isinstance(given, Mapping):
        if output not in given and len(given) > 1:
            raise UsageError(
                f"the data have several targets ({', '.join(given)}), but none for output {output!r}: choose an output "
                "with output= (--output-name), or give its target the name of the output"
            )
        given = given[output] if output in given else next(iter(given.values()))
    elif isinstance(given, tuple):
        if len(given) > 1:
            raise UsageError(f"the data have {len(given)} targets: give them by the names of outputs")
        (given,) = given
    return array_of("the targets", given)


@dataclass
class Choice:
    """Chooses the output and the task from the first batch."""

    net: Model
    data: Dataset | IterableDataset
    loss: Any
    metrics: Any
    output: str | None
    probabilities: bool | None
    worst: int
    threads: int | None

    @property
    def candidates(self) -> tuple[str, ...]:
        """Names of the outputs that may be compared with the targets."""
        outputs = self.net.outputs
        if self.output is not None:
            if self.output not in outputs:
                raise UsageError(f"the model has no output {self.output!r}{did_you_mean(self.output, outputs)}")
            return (self.output,)
        targets = getattr(self.data, "targets", None)
        named = tuple(name for name in outputs if isinstance(targets, Mapping) and name in targets)
        return named or outputs

    def scorer(self, results: Mapping[str, Any], batch: Batch) -> Scorer:
        """Return the scorer of the output that can be compared with the targets. Raises UsageError if none can."""
        tasks = {name: task for name in self.candidates if (task := self._task(name, results[name], batch)) is not None}
        if len(tasks) == 1:
            ((name, task),) = tasks.items()
            return self._made(name, task, task.scores(name, results[name]))
        if tasks:
            raise UsageError(
                f"outputs {' and '.join(map(repr, tasks))} can all be compared with the targets: choose one with "
                "output= (--output-name)"
            )
        named = (f"{name} {_described(results[name])}" for name in self.candidates)
        given = batch.targets if isinstance(batch.targets, Mapping) else {"": batch.targets}
        targets = ", ".join(f"{name} {_described(array)}".strip() for name, array in given.items())
        with_loss = "" if self.loss is None else f" by the loss {losses.described(self.loss)}"
        raise UsageError(
            f"no output of {self.net.name!r} can be compared with the targets{with_loss}. The first batch has the "
            f"outputs {', '.join(named)}, and the targets {targets}. Expected are class numbers [N, ...] for an output "
            "[N, ..., classes], or targets of the shape of the output"
        )

    def _task(self, name: str, result: Any, batch: Batch) -> Task | None:
        scores, target = scores_of(result), _target(batch.targets, name)
        if scores is None or not scores.ndim or len(scores) != len(target):
            return None
        given = getattr(self.data, "targets", None)
        if given is not None and (whole := _target(given, name)).shape[1:] == target.shape[1:]:
            target = whole  # all targets, where they are the targets of batches one after another
        value = self.net.graph.outputs[self.net.outputs.index(name)]
        return recognise(
            scores, target, self.loss, bounded=are_probabilities(value), probabilities=self.probabilities,
            named=getattr(self.data, "classes", None) is not None,
        )  # fmt: skip

    def _made(self, name: str, task: Task, scores: np.ndarray) -> Scorer:
        width = scores.shape[-1] if task.kind == CLASSES else 2 if task.kind == BINARY else 0
        classes = _class_names(self.net, self.data, name, width) if width else ()
        specs = _default_metrics(task, name, scores) if self.metrics is None else metrics.as_list(self.metrics)
        measured = metrics.get_all([s for s in specs if s != LOSS], task.probabilities)
        scoring = Scoring(
            task, width, worst=self.worst, total=length_of(self.data), flat=isinstance(self.data, TokenStream)
        )
        return Scorer(self.net, self.data, name, task, classes, measured, scoring, MeanLoss(task, scores, self.threads))


def _described(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else shown(value)


def _default_metrics(task: Task, output: str, scores: np.ndarray) -> Sequence[str]:
    """Return the metrics of the Trainer for the loss, and further ones for the task."""
    usual = usual_metrics(task.loss, output)
    if task.kind == CLASSES:
        return (*usual, "f1", f"top{_TOP}") if scores.shape[-1] > _TOP else (*usual, "f1")
    if task.kind == BINARY:
        return (*usual, "f1", "auc") if scores.size == len(scores) else (*usual, "f1")
    return () if task.loss.probabilities else tuple(dict.fromkeys((*usual, "rmse", "mae")))


def _class_names(net: Model, data: Dataset | IterableDataset, output: str, width: int) -> tuple[str, ...]:
    """Return names of the classes of an output. Raises InputError if the data or the model name another number."""
    own = getattr(data, "classes", None)
    if own is not None and len(own) != width:
        if net.classes is not None and len(net.classes) != width:
            raise InputError(
                f"the model {net.name!r} has {len(net.classes)} class names "
                f"({listed(net.classes, len(net.classes), 8)}), but its output {output!r} has {width} classes. Correct "
                'the metadata "classes" of the model, or id2label in the config.json beside it'
            )
        known = (
            "the model's metadata have no class names. Give class numbers as targets (images: in a list, images:FILE)"
            if net.classes is None
            else f"the model's metadata have the class names {listed(net.classes, len(net.classes), 8)}"
        )
        raise InputError(
            f"{data.name}: the data have {len(own)} classes ({listed(own, len(own), 8)}), but output {output!r} of the "
            f"model {net.name!r} has {width}; {known}"
        )
    tokens = data.vocabulary.tokens if isinstance(data, TokenStream) else None
    for names in (net.classes, own, tokens):
        if names is not None and len(names) == width:
            return tuple(names)
    return tuple(map(str, range(width)))


class MeanLoss:
    """Adds up a loss over batches. It is a program of its own, which runs on the outputs of the model."""

    def __init__(self, task: Task, scores: np.ndarray, threads: int | None):
        last: tuple[Any, ...] = scores.shape[-1:] if scores.ndim > 1 else ()
        shape = (*(symbol(f"D{axis}") for axis in range(scores.ndim - len(last))), *last)
        value = Value(TensorType(dtype_of(scores.dtype), shape), "output")
        graph = Graph([value], [value], name="loss", output_names=["output"])
        bound = losses.bind_loss(graph, task.loss, None, "output")
        self._targets: Targets = expected_targets(graph, bound, {"output": value.tensor})
        graph = losses.attach(graph, task.loss, None, "output", weighted=True)
        self._program = LocalInference(graph, ParamStore({}), {"threads": threads})
        self._total = self._weight = 0.0

    def fitted(self, target: np.ndarray) -> np.ndarray:
        """Return targets in the shape and type that the loss needs. Raises InputError if they do not fit."""
        (array,) = self._targets.fitted(target).values()
        return np.asarray(array)

    def add(self, logits: np.ndarray, target: np.ndarray) -> None:
        """Add a batch. target: a result of `fitted`."""
        results = self._program.run({"output": np.ascontiguousarray(logits), **self._targets.fitted(target)})
        weight = weight_in(results, len(logits))
        self._total += float(results[self._program.outputs[0]]) * weight
        self._weight += weight

    @property
    def value(self) -> float:
        return self._total / self._weight if self._weight else float("nan")


@dataclass
class Scorer:
    """Adds up everything about one output."""

    net: Model
    data: Dataset | IterableDataset
    output: str
    task: Task
    classes: tuple[str, ...]
    measured: list[Metric]
    scoring: Scoring
    loss: MeanLoss

    def add(self, result: Any, targets: Any, index: np.ndarray) -> None:
        """Add the output of a batch, its targets, and the positions of its samples."""
        scores = self.task.scores(self.output, result)
        try:
            target = self.loss.fitted(self.task.targets(self.output, _target(targets, self.output)))
        except InputError as error:
            raise InputError(f"{self.data.name}: {error}") from None
        self.loss.add(logits_of(self.task, scores), target)
        vector = self.task.kind == BINARY
        for metric in self.measured:
            metric.update(scores.reshape(-1) if vector else scores, target.reshape(-1) if vector else target)
        self.scoring.add(scores, target, index)

    def result(self) -> Evaluation:
        found = self.scoring
        return Evaluation(
            self.net.name, self.data.name, self.output, self.task.kind, str(self.task.loss), "", found.samples, 0.0,
            {LOSS: self.loss.value, **{metric.name: value_of(metric) for metric in self.measured}},
            classes=self.classes, confusion=found.confusion, calibration=found.calibration(),
            worst=self._worst(found.worst()), nonfinite=found.nonfinite, pairs=found.pairs, dataset=self.data,
        )  # fmt: skip

    def _worst(self, found: Worst) -> tuple[WorstSample, ...]:
        names = _names_of(self.data, found.index)
        columns = zip(found.index, names, found.loss, found.target, found.predicted, found.probability, strict=True)
        return tuple(
            WorstSample(int(i), name, float(loss), self._shown(t), self._shown(p), None if np.isnan(q) else float(q))
            for i, name, loss, t, p, q in columns
        )

    def _shown(self, number: float) -> str | float | None:
        """Return a class name for the number of a class, None for NaN, and other numbers as they are."""
        if np.isnan(number):
            return None
        return self.classes[int(number)] if self.classes else float(number)


def _names_of(data: Dataset | IterableDataset, index: np.ndarray) -> list[str | None]:
    """Return the names of samples: paths of image files, or the names that the data give."""
    names = data.sample_names() if isinstance(data, Dataset) else None
    if names is None:
        return [None] * len(index)
    folder = getattr(data.store, "folder", None) if isinstance(data, ImageDataset) else None
    return [names[i] if folder is None else str(folder / names[i]) for i in index]
