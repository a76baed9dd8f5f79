"""What a model says of data, sample by sample: classes or numbers, how sure it is, and how wrong."""

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

# Of more classes there is no confusion matrix.
MOST_CLASSES = 1_000

# The least probability that a loss is computed of.
_LEAST = 1e-12


@dataclass(frozen=True)
class Predictions:
    """What `output` of a model says of the samples of a data set at `index`, int64 [N], of `total`.

    loss: float64 [N], of classes -log of the target's probability, of numbers the squared error; where a sample has
    several targets, their mean. classes: their names; empty where the targets are numbers. confusion: int64 [classes,
    classes], how often a target (row) was predicted as what (column). correct: the share of predictions that are right.

    Where a sample has one target: target and predicted (int64 [N] or float64 [N]), of classes also the probability of
    the predicted one, float64 [N]. A sample of running text is a token.
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

    def __len__(self) -> int:
        return len(self.loss)

    @property
    def of_classes(self) -> bool:
        return bool(self.classes)

    def worst(self, count: int) -> np.ndarray:
        """int64: places of the samples with the largest loss, the largest first; NaN is larger than all."""
        return np.argsort(-np.nan_to_num(self.loss, nan=np.inf, posinf=np.inf), kind="stable")[:count]

    def spread(self, count: int) -> np.ndarray:
        """int64: places of so many samples, evenly from the first to the last."""
        return np.unique(np.linspace(0, len(self) - 1, min(count, len(self))).astype(np.int64))


def predict(
    net: Model, data: Dataset, *, loss: str | None = None, output: str | None = None,
    carry: Mapping[str, str] | None = None, batch_size: int = 64, most: int | None = None,
) -> Predictions:  # fmt: skip
    """Run a model on a data set, in its order, and compare an output with the first target.

    loss: the one that the model was trained with, in words as a checkpoint has it, or OUTPUT=LOSS of several; it says
    whether whole numbers are classes. output: default the first. carry: state from batch to batch, as a Trainer takes
    it. most: about so many samples at most. Raises UsageError for an output that is not compared with such targets,
    InputError for a class that the model does not have.
    """
    name = net.outputs[0] if output is None else output
    if name not in net.outputs:
        raise UsageError(f"the model has no output {name!r}{did_you_mean(name, net.outputs)}")
    state = RecurrentState(net, carry or {})
    found = _Found(net.graph.outputs[net.outputs.index(name)], _kind(loss, name), isinstance(data, TokenStream))
    batches = data.batches(batch_size, shuffle=False)
    for batch in batches:
        if batch.targets is None:
            raise UsageError(f"{data.name} has no targets to compare predictions with")
        results = net.run(state.feeds(batch.inputs))
        state.keep(results)
        found.add(name, results[name], _target(batch.targets, name))
        if most is not None and found.count >= most:
            break
    names = _names(net, data, found.width)
    return found.result(data, name, np.asarray(batches.order(0)).reshape(-1), names)


def _kind(loss: str | None, output: str) -> str | None:
    """What a loss compares with: "classes", "probabilities" (of yes or no) or "numbers"; None for one of one's own."""
    words = loss or ""
    found = re.search(rf"(?:^|, ){re.escape(output)}=(\w+)", words) or re.match(r"(\w+)(?:\(|$)", words)
    if found is None or found[1] not in losses.names():
        return None
    named = losses.get(found[1])
    return "classes" if named.classes else "probabilities" if named.probabilities else "numbers"


def _target(targets: Any, output: str) -> np.ndarray:
    """The target of that output's name, else the first."""
    if isinstance(targets, Mapping):
        targets = targets[output] if output in targets else next(iter(targets.values()))
    return np.asarray(targets[0] if isinstance(targets, tuple) else targets)


def _names(net: Model, data: Dataset, count: int) -> tuple[str, ...]:
    """The names of so many classes."""
    tokens = data.vocabulary.tokens if isinstance(data, TokenStream) else None
    for names in (net.classes, data.classes, tokens):
        if names is not None and len(names) == count:
            return tuple(names)
    return tuple(map(str, range(count)))


@dataclass
class _Found:
    """What batches have given so far. width: how many classes there are; 0: the targets are numbers."""

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
        """float64 [..., classes]: probabilities, where the targets are classes."""
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
        with np.errstate(invalid="ignore"):  # of scores that are not finite there is no probability
            powers = np.exp(output - output.max(axis=-1, keepdims=True))
            return np.asarray(powers / powers.sum(axis=-1, keepdims=True))

    def _classes(self, name: str, scores: np.ndarray, target: np.ndarray) -> list[np.ndarray]:
        self.width = width = scores.shape[-1]
        if target.size and not 0 <= target.min() <= target.max() < width:
            odd = target[(target < 0) | (target >= width)].reshape(-1)[0]
            raise InputError(f"output {name!r} tells {width} classes apart, from 0; the targets hold class {odd}")
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
                f"{list(target.shape)}: neither classes nor numbers that can be compared one by one"
            )
        fitted = fitted.astype(np.float64)
        errors = (output - fitted) ** 2
        if errors.size == len(errors):
            return [a.reshape(-1) for a in (errors, fitted, output)]
        return [errors]

    def result(self, data: Dataset, name: str, order: np.ndarray, names: tuple[str, ...]) -> Predictions:
        columns = [np.concatenate(parts) for parts in zip(*self.single, strict=True)]
        known = dict(zip(("target", "predicted", "probability"), columns, strict=False))
        wrong = np.concatenate(self.losses)
        return Predictions(
            data, name, len(order), order[: len(wrong)], wrong, classes=names, confusion=self.confusion,
            correct=self.right / self.compared if self.compared else float("nan"), **known,
        )  # fmt: skip
