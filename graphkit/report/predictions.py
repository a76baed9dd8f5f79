"""Predictions of a model for each sample of a data set: classes or numbers, probabilities and losses."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graphkit.data import Dataset, TokenStream
from graphkit.errors import InputError, UsageError, did_you_mean
from graphkit.ir.graph import Value
from graphkit.model import Model
from graphkit.train import losses
from graphkit.train.probabilities import are_probabilities
from graphkit.train.recurrent_state import RecurrentState
from graphkit.train.targets import aligned

# With more classes, there is no confusion matrix.
MOST_CLASSES = 1_000

# Smaller probabilities are raised to this one before their logarithm is taken.
_LEAST = 1e-12


@dataclass(frozen=True)
class Predictions:
    """Predictions of a model's `output` for the samples at `index`, int64 [N], of a data set with `total` samples.

    loss: float64 [N]. For classes, -log of the probability of the target; for numbers, the squared error. If a sample
    has several targets, it is their mean.
    classes: names of the classes; empty if the targets are numbers.
    confusion: int64 [classes, classes], number of times that a target (row) was predicted as a class (column).
    correct: share of correct predictions.
    target, predicted: int64 [N] or float64 [N], if every sample has one target.
    probability: float64 [N], probability of the predicted class, if every sample has one target and it is a class.
    names: names of the samples, such as files; None if they have none.

    In running text, a sample is a token.
    """

    data: Dataset
    output: str
    total: int
    index: np.ndarray
    loss: np.ndarray
    classes: tuple[str, ...] = ()
    confusion: np.ndarray | None = None
    correct: float = float("nan")
    target: np.ndarray | None = None
    predicted: np.ndarray | None = None
    probability: np.ndarray | None = None
    names: Sequence[str] | None = None

    def __len__(self) -> int:
        return len(self.loss)

    @property
    def of_classes(self) -> bool:
        return bool(self.classes)

    def worst(self, count: int) -> np.ndarray:
        """Return indices of the samples with the largest losses, int64, the largest first. NaN counts as largest."""
        return np.argsort(-np.nan_to_num(self.loss, nan=np.inf, posinf=np.inf), kind="stable")[:count]

    def spread(self, count: int) -> np.ndarray:
        """Return indices of `count` samples at regular intervals, from the first to the last, int64."""
        return np.unique(np.linspace(0, len(self) - 1, min(count, len(self))).astype(np.int64))


def predict(
    net: Model, data: Dataset, *, loss: str | None = None, output: str | None = None,
    carry: Mapping[str, str] | None = None, batch_size: int = 64, most: int | None = None,
) -> Predictions:  # fmt: skip
    """Run a model on a data set in its order, and compare an output with the first target.

    Args:
        net: The model.
        data: The data set, with targets.
        loss: Loss of the training, as a checkpoint describes it. It decides whether integer targets are classes.
        output: Name of the output. Default: the first one.
        carry: Recurrent state: {input: output}. The output of a batch is fed to the input with the next batch.
        batch_size: Samples per batch.
        most: Stop after about this number of samples.

    Raises:
        UsageError: The output cannot be compared with such targets.
        InputError: A target is a class that the model does not have.
    """
    name = net.outputs[0] if output is None else output
    if name not in net.outputs:
        raise UsageError(f"the model has no output {name!r}{did_you_mean(name, net.outputs)}")
    state = RecurrentState(net, carry or {})
    found = _Found(net.graph.outputs[net.outputs.index(name)], _kind(loss, name), isinstance(data, TokenStream))
    batches = data.batches(batch_size, shuffle=False)
    for batch in batches:
        if batch.targets is None:
            raise UsageError(f"{data.name} has no targets, so predictions cannot be compared with them")
        results = net.run(state.feeds(batch.inputs))
        state.keep(results)
        found.add(name, results[name], _target(batch.targets, name))
        if most is not None and found.count >= most:
            break
    names = _names(net, data, found.width)
    return found.result(data, name, np.asarray(batches.order(0)).reshape(-1), names)


def _kind(loss: str | None, output: str) -> str | None:
    """Return the targets of a loss: "classes", "probabilities" (binary) or "numbers"; None for a custom loss."""
    words = loss or ""
    found = re.search(rf"(?:^|, ){re.escape(output)}=(\w+)", words) or re.match(r"(\w+)(?:\(|$)", words)
    if found is None or found[1] not in losses.names():
        return None
    named = losses.get(found[1])
    return "classes" if named.classes else "probabilities" if named.probabilities else "numbers"


def _target(targets: Any, output: str) -> np.ndarray:
    """Return the target with the name of the output, else the first one."""
    if isinstance(targets, Mapping):
        targets = targets[output] if output in targets else next(iter(targets.values()))
    return np.asarray(targets[0] if isinstance(targets, tuple) else targets)


def _names(net: Model, data: Dataset, count: int) -> tuple[str, ...]:
    """Return the names of `count` classes."""
    tokens = data.vocabulary.tokens if isinstance(data, TokenStream) else None
    for names in (net.classes, data.classes, tokens):
        if names is not None and len(names) == count:
            return tuple(names)
    return tuple(map(str, range(count)))


@dataclass
class _Found:
    """Collects the results of batches. width: number of classes; 0 if the targets are numbers."""

    value: Value
    kind: str | None
    flat: bool
    width: int = 0
    count: int = 0
    right: int = 0
    compared: int = 0
    confusion: np.ndarray | None = None
    losses: list[np.ndarray] = field(default_factory=list)
    single: list[Sequence[np.ndarray]] = field(default_factory=list)

    def add(self, name: str, output: np.ndarray, target: np.ndarray) -> None:
        output = np.asarray(output).astype(np.float64)
        if (scores := self._scores(output, target)) is not None:
            columns = self._classes(name, scores, target.astype(np.int64).reshape(scores.shape[:-1]))
        else:
            columns = self._numbers(name, output, target)
        if self.flat:
            columns = [column.reshape(-1) for column in columns]
        elif columns[0].ndim > 1:
            columns = [columns[0].reshape(len(columns[0]), -1).mean(axis=1)]
        self.losses.append(columns[0])
        self.count += len(columns[0])
        if len(columns) > 1:
            self.single.append(columns[1:])

    def _scores(self, output: np.ndarray, target: np.ndarray) -> np.ndarray | None:
        """Return probabilities, float64 [..., classes], if the targets are classes; else None."""
        probable = are_probabilities(self.value)
        yes_or_no = self.kind == "probabilities" or (self.kind is None and probable)
        if yes_or_no and output.size == target.size and target.ndim and bool(np.isin(target, (0, 1)).all()):
            yes = (output if probable else 1.0 / (1.0 + np.exp(-np.clip(output, -700, 700)))).reshape(target.shape)
            return np.stack([1.0 - yes, yes], axis=-1)
        whole = target.dtype.kind in "iub" and output.ndim > 0 and output.shape[-1] > 1
        if self.kind not in (None, "classes") or not whole or aligned(target, output.shape[:-1]) is None:
            return None
        if probable:
            return output
        with np.errstate(invalid="ignore"):  # scores that are not finite have no probability
            powers = np.exp(output - output.max(axis=-1, keepdims=True))
            return np.asarray(powers / powers.sum(axis=-1, keepdims=True))

    def _classes(self, name: str, scores: np.ndarray, target: np.ndarray) -> list[np.ndarray]:
        self.width = width = scores.shape[-1]
        if target.size and not 0 <= target.min() <= target.max() < width:
            odd = target[(target < 0) | (target >= width)].reshape(-1)[0]
            raise InputError(
                f"output {name!r} has {width} classes, numbered from 0, but the targets contain class {odd}"
            )
        predicted = np.argmax(scores, axis=-1)
        self.right += int((predicted == target).sum())
        self.compared += target.size
        if width <= MOST_CLASSES:
            pairs = np.bincount((target * width + predicted).reshape(-1), minlength=width * width)
            before = np.int64(0) if self.confusion is None else self.confusion
            self.confusion = before + pairs.reshape(width, width)
        at_target, at_predicted = (
            np.take_along_axis(scores, places[..., None], axis=-1)[..., 0] for places in (target, predicted)
        )
        return [-np.log(np.maximum(at_target, _LEAST)), target, predicted, at_predicted]

    def _numbers(self, name: str, output: np.ndarray, target: np.ndarray) -> list[np.ndarray]:
        fitted = aligned(target, output.shape)
        if fitted is None or target.dtype.kind == "O":
            raise UsageError(
                f"output {name!r} has the shape {list(output.shape)} and the target {target.dtype}"
                f"{list(target.shape)}: they can be compared neither as classes nor element by element"
            )
        fitted = fitted.astype(np.float64)
        errors = (output - fitted) ** 2
        if errors.size == len(errors):
            return [a.reshape(-1) for a in (errors, fitted, output)]
        return [errors]

    def result(self, data: Dataset, name: str, order: np.ndarray, names: tuple[str, ...]) -> Predictions:
        columns = [np.concatenate(parts) for parts in zip(*self.single, strict=True)]
        known: dict[str, Any] = dict(zip(("target", "predicted", "probability"), columns, strict=False))
        wrong = np.concatenate(self.losses)
        return Predictions(
            data, name, len(order), order[: len(wrong)], wrong, classes=names, confusion=self.confusion,
            correct=self.right / self.compared if self.compared else float("nan"), **known,
        )  # fmt: skip
