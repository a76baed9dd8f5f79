"""Metrics over many batches: call `update(output, target)` for each batch, then read `value`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from graphkit.errors import InputError, UsageError, did_you_mean
from graphkit.signatures import check_argument, shown, typed_constructor
from graphkit.text import settings, short_repr
from graphkit.train.targets import aligned

LOSS = "loss"


class Metric(Protocol):
    """Base class of metrics. `update` receives one output of the model and its target, for each batch.

    This output is the one that the Trainer's argument `output` names. By default, it is the first output in the dict if
    `loss` is a dict, and otherwise the first output of the model.

    `state` and `restore` are for checkpoints within an epoch. `state` returns arrays by name, without "/" in the names.
    `merge` adds the state of another process. Your own metric need not define these three methods. Without them, the
    metric counts only the remaining samples of the epoch after an interruption, and each process has its own value.
    """

    name: str

    def reset(self) -> None:
        """Forget all batches. Called before each epoch and each evaluation."""

    def update(self, output: np.ndarray, target: np.ndarray) -> None:
        """Add a batch: one output of the model, and its target."""

    @property
    def value(self) -> float:
        """The metric over all batches since `reset`."""

    def state(self) -> dict[str, np.ndarray]:
        """Return arrays for a checkpoint, by name."""

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Restore the result of `state`."""

    def merge(self, state: Mapping[str, np.ndarray]) -> None:
        """Add the result of `state` of another process."""


def value_of(metric: Metric) -> float:
    """Return the value of a metric as a float. Raises UsageError if it is not a number."""
    try:
        return float(metric.value)
    except (TypeError, ValueError):
        raise UsageError(f"the value of metric {metric.name!r} must be a number, not {metric.value!r}") from None


class _WithRepr:
    name: str

    def __repr__(self) -> str:
        return short_repr(self, self._facts)

    def _facts(self) -> Iterator[str]:
        yield repr(self.name)
        yield from (fact for fact in settings(self) if not fact.startswith("name="))


class _Average(_WithRepr):
    name = ""

    def __init__(self, probabilities: bool = False) -> None:
        self.reset()

    def reset(self) -> None:
        self.total = 0.0
        self.count = 0

    @property
    def value(self) -> float:
        return self.total / self.count if self.count else float("nan")

    def add(self, scores: np.ndarray) -> None:
        self.total += float(np.sum(scores, dtype=np.float64))
        self.count += scores.size

    def state(self) -> dict[str, np.ndarray]:
        return {"total": np.asarray(self.total, np.float64), "count": np.asarray(self.count, np.int64)}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        self.total, self.count = float(state["total"]), int(state["count"])

    def merge(self, state: Mapping[str, np.ndarray]) -> None:
        self.total += float(state["total"])
        self.count += int(state["count"])


class Accuracy(_Average):
    """Share of samples whose predicted class is the target.

    Outputs [..., classes] predict the class with the largest value; targets are ints [...]. Alternatively there is one
    number per sample, with targets 0 and 1. A logit above 0, or a probability above 1/2, predicts 1.

    Args:
        probabilities: True: outputs are probabilities. False: they are logits.
    """

    name = "accuracy"

    def __init__(self, probabilities: bool = False) -> None:
        self._limit = 0.5 if probabilities else 0.0
        super().__init__()

    def update(self, output: np.ndarray, target: np.ndarray) -> None:
        if (scores := _single(output, target)) is not None:
            _check_binary(self.name, target)
            self.add((scores > self._limit) == target.reshape(-1))
            return
        target = _class_targets(self.name, output, target)
        self.add(np.argmax(output, axis=-1) == target)


@typed_constructor("gk.metrics")
class TopK(_Average):
    """Share of samples whose target class is among the `k` largest outputs.

    If outputs are equal, the lower class comes first. Outputs are [..., classes], targets are ints [...].

    Args:
        k: Number of largest outputs.
        probabilities: Has no effect on this metric; every metric has this argument.
    """

    def __init__(self, k: int = 5, probabilities: bool = False) -> None:
        if k < 1:
            raise UsageError(f"top-k accuracy needs k of at least 1, not {k}")
        self.k = k
        self.name = f"top{k}"
        super().__init__()

    def update(self, output: np.ndarray, target: np.ndarray) -> None:
        target = _class_targets(self.name, output, target)
        at_target = np.take_along_axis(output, target[..., None].astype(np.int64), axis=-1)
        earlier = np.arange(output.shape[-1]) < target[..., None]
        rank = np.sum((output > at_target) | ((output == at_target) & earlier), axis=-1)
        self.add((rank < self.k) & np.isfinite(at_target[..., 0]))


class F1(_WithRepr):
    """F1 = 2 TP / (2 TP + FP + FN) of predicted classes (van Rijsbergen, 1979).

    Outputs are [..., classes], targets are ints [...]. With more than two classes, F1 is the mean over the classes that
    occur among targets or predictions ("macro"). With two classes, it is the F1 of class 1 ("binary"), which is 0 if
    class 1 does not occur. Alternatively there is one number per sample: a logit above 0, or a probability above 1/2,
    predicts class 1.

    Args:
        probabilities: True: outputs are probabilities. False: they are logits.
    """

    name = "f1"

    def __init__(self, probabilities: bool = False) -> None:
        self._limit = 0.5 if probabilities else 0.0
        self.reset()

    def reset(self) -> None:
        self._hits = self._predicted = self._actual = np.zeros(0, np.int64)

    def update(self, output: np.ndarray, target: np.ndarray) -> None:
        if not target.size:
            return
        if output.size != target.size:
            target = _class_targets(self.name, output, target)
            classes = output.shape[-1]
            predicted = np.argmax(output, axis=-1)
        else:
            classes, predicted = 2, (_scores(self.name, output, target) > self._limit).astype(np.int64)
            _check_binary(self.name, target)
        given, found = np.asarray(target).reshape(-1).astype(np.int64), predicted.reshape(-1)
        counts = [np.bincount(v, minlength=classes) for v in (given[given == found], found, given)]
        self._add(*counts)

    def _add(self, *counts: np.ndarray) -> None:
        known = (self._hits, self._predicted, self._actual)
        if self._hits.size and counts[0].size:
            counts = tuple(a + b for a, b in zip(counts, known, strict=True))
        self._hits, self._predicted, self._actual = counts if counts[0].size else known

    def merge(self, state: Mapping[str, np.ndarray]) -> None:
        self._add(state["hits"], state["predicted"], state["actual"])

    def state(self) -> dict[str, np.ndarray]:
        return {"hits": self._hits, "predicted": self._predicted, "actual": self._actual}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        self._hits, self._predicted, self._actual = state["hits"], state["predicted"], state["actual"]

    @property
    def value(self) -> float:
        total = self._predicted + self._actual
        if not np.any(total):
            return float("nan")
        scores = 2 * self._hits / np.maximum(total, 1)
        return float(scores[1] if len(scores) == 2 else np.mean(scores[total > 0]))


class AUC(_WithRepr):
    """Area under the ROC curve: the share of pairs (positive, negative) in which the positive has the higher score.

    Ties count half (Hanley and McNeil, 1982). Outputs are one score per sample, or logits [..., 2], whose difference is
    the score. Targets are 0 or 1. The metric keeps all scores in memory. The value is NaN until both classes have
    occurred.

    Args:
        probabilities: Has no effect on this metric; every metric has this argument.
    """

    name = "auc"

    def __init__(self, probabilities: bool = False) -> None:
        self.reset()

    def reset(self) -> None:
        self._seen: list[tuple[np.ndarray, np.ndarray]] = []

    def update(self, output: np.ndarray, target: np.ndarray) -> None:
        if output.shape[-1:] == (2,) and output.size == 2 * target.size:
            scores = (output[..., 1].astype(np.float64) - output[..., 0]).reshape(-1)
        else:
            scores = _scores(self.name, output, target).astype(np.float64)
        self._seen.append((scores, np.asarray(target).reshape(-1) > 0))

    def state(self) -> dict[str, np.ndarray]:
        return {
            "scores": np.concatenate([s for s, _ in self._seen] or [np.zeros(0)]),
            "positive": np.concatenate([t for _, t in self._seen] or [np.zeros(0, bool)]),
        }

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        self._seen = [(state["scores"], state["positive"])]

    def merge(self, state: Mapping[str, np.ndarray]) -> None:
        self._seen.append((state["scores"], state["positive"]))

    @property
    def value(self) -> float:
        if not self._seen:
            return float("nan")
        scores = np.concatenate([s for s, _ in self._seen])
        positive = np.concatenate([t for _, t in self._seen])
        positives = int(positive.sum())
        pairs = positives * (len(positive) - positives)
        if not pairs or np.isnan(scores).any():
            return float("nan")
        _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
        rank = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
        return float((rank[positive].sum() - positives * (positives + 1) / 2) / pairs)


class Perplexity(_Average):
    """exp of the mean of -log softmax(output)[target].

    Outputs are logits [..., classes], or probabilities, whose logarithm is used. Targets are ints [...].

    Args:
        probabilities: True: outputs are probabilities. False: they are logits.
    """

    name = "perplexity"

    def __init__(self, probabilities: bool = False) -> None:
        self._probabilities = probabilities
        super().__init__()

    def update(self, output: np.ndarray, target: np.ndarray) -> None:
        target = _class_targets(self.name, output, target)
        logits = output.astype(np.float64)
        if self._probabilities:
            with np.errstate(divide="ignore"):
                logits = np.log(logits)
        logits = logits - logits.max(axis=-1, keepdims=True)
        chosen = np.take_along_axis(logits, target[..., None].astype(np.int64), axis=-1)[..., 0]
        self.add(np.log(np.exp(logits).sum(axis=-1)) - chosen)

    @property
    def value(self) -> float:
        return float(np.exp(super().value))


class MeanSquaredError(_Average):
    """Mean of (output - target)^2.

    Args:
        probabilities: Has no effect on this metric; every metric has this argument.
    """

    name = "mse"

    def update(self, output: np.ndarray, target: np.ndarray) -> None:
        self.add(np.square(output.astype(np.float64) - _same_shape(self.name, output, target)))


class RootMeanSquaredError(MeanSquaredError):
    """Root of the mean of (output - target)^2 over all elements of all batches.

    Args:
        probabilities: Has no effect on this metric; every metric has this argument.
    """

    name = "rmse"

    @property
    def value(self) -> float:
        return float(np.sqrt(super().value))


class MeanAbsoluteError(_Average):
    """Mean of |output - target|.

    Args:
        probabilities: Has no effect on this metric; every metric has this argument.
    """

    name = "mae"

    def update(self, output: np.ndarray, target: np.ndarray) -> None:
        self.add(np.abs(output.astype(np.float64) - _same_shape(self.name, output, target)))


_REGRESSION = "; the metrics of a regression are 'mse', 'rmse' and 'mae'"


def _class_targets(name: str, output: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return targets as class numbers [...] for an output [..., classes].

    Whole floats and additional or missing axes of size 1 are accepted. Raises InputError for other targets.
    """
    found = aligned(np.asarray(target), output.shape[:-1]) if output.ndim else None
    if found is None:
        raise InputError(
            f"{name}: an output of shape {list(output.shape)} needs class numbers of shape {list(output.shape[:-1])}, "
            f"not {list(np.shape(target))}"
        )
    if found.dtype.kind == "f" and not np.all(found == np.floor(found)):
        raise InputError(
            f"{name}: targets must be class numbers, but {found[found != np.floor(found)][0]} is not{_REGRESSION}"
        )
    return found


def _single(output: np.ndarray, target: np.ndarray) -> np.ndarray | None:
    several = output.ndim > 1 and 1 not in output.shape[1:]
    return None if output.size != np.size(target) or several else output.reshape(-1)


def _check_binary(name: str, target: np.ndarray) -> None:
    if not np.all((target == 0) | (target == 1)):
        raise InputError(
            f"{name}: with one number per sample, targets must be 0 or 1, not {np.unique(target)[:5]}{_REGRESSION}"
        )


def _same_shape(name: str, output: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return the target in the shape of the output. [N] and [N, 1] would broadcast to [N, N]."""
    found = aligned(np.asarray(target), output.shape)
    if found is None:
        raise InputError(
            f"{name}: output {list(output.shape)} and targets {list(np.shape(target))} must have the same shape"
        )
    return found


@typed_constructor("gk.metrics")
class FunctionMetric(_Average):
    """The mean of a function of outputs and targets.

    Args:
        function: Function (output, target) of numpy arrays. It returns one number for each sample, or for each element;
            the metric is the mean of all. Or it returns one number for the batch, whose weight in the mean is the
            number of samples. If the loss ignores targets (`ignore_index`), the function gets the other targets as a
            vector [n], and their outputs as [n, classes].
        name: Name of the metric (default: that of the function).
    """

    def __init__(self, function: Callable[[np.ndarray, np.ndarray], Any], name: str | None = None) -> None:
        self._function = function
        self.name = name or str(getattr(function, "__name__", type(function).__name__))
        try:
            inspect.signature(function).bind(None, None)
        except TypeError:
            raise UsageError(f"metric {self.name!r}: the function must take two arguments, output and target") from None
        except ValueError:
            pass
        super().__init__()

    def update(self, output: np.ndarray, target: np.ndarray) -> None:
        scores = np.asarray(self._function(output, target))
        if scores.dtype.kind not in "biuf":
            raise UsageError(f"metric {self.name!r}: the function must return numbers, not {scores.dtype}")
        self.add(np.full(len(target), scores) if scores.ndim == 0 else scores)


def _scores(name: str, output: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return one score per target as a vector. output: [...] or [..., 1]."""
    if output.size != target.size:
        raise InputError(
            f"{name}: needs one score per target, but the output has shape {list(output.shape)} and the targets "
            f"{list(target.shape)}"
        )
    return output.reshape(-1)


_METRICS: dict[str, Callable[..., Metric]] = {
    "accuracy": Accuracy,
    "top5": TopK,
    "f1": F1,
    "auc": AUC,
    "perplexity": Perplexity,
    "mse": MeanSquaredError,
    "rmse": RootMeanSquaredError,
    "mae": MeanAbsoluteError,
}


# The attributes that every metric must have. `value` is not checked: it may need an update first.
_PARTS = ("name", "reset", "update")


def names() -> list[str]:
    """Return the names of all metrics; `top<k>` exists for every k."""
    return list(_METRICS)


def get(spec: Any, probabilities: bool = False) -> Metric:
    """Return a new metric by its name (`top<k>` for any k). If `spec` is a metric, reset it and return it.

    Args:
        spec: A name, a function (see FunctionMetric), or a metric.
        probabilities: Whether outputs are probabilities (from Softmax or Sigmoid) instead of logits.
    """
    if not isinstance(spec, str):
        if callable(spec) and not isinstance(spec, type) and not any(hasattr(spec, part) for part in _PARTS):
            return FunctionMetric(spec)
        if isinstance(spec, type) or not all(hasattr(spec, part) for part in _PARTS):
            raise UsageError(
                f"a metric must be a name ({', '.join(_METRICS)}, top<k>), a function (output, target), or an object "
                f"with name, reset(), update(output, target) and value (see gk.metrics.Metric), not {shown(spec)}"
            )
        spec.reset()
        metric: Metric = spec
        return metric
    if (found := re.fullmatch(r"top(\d+)", spec)) is not None:
        return TopK(int(found[1]))
    if spec not in _METRICS:
        raise UsageError(f"unknown metric {spec!r}{did_you_mean(spec, _METRICS)}")
    return _METRICS[spec](probabilities=probabilities)


def get_all(specs: Sequence[Any], probabilities: bool = False) -> list[Metric]:
    """Return the result of `get` for each name or metric in `specs`."""
    return [get(s, probabilities) for s in specs]


def as_list(specs: Any) -> Sequence[Any]:
    """Return the argument `metrics=` as a sequence; a single metric becomes a sequence of one."""
    if isinstance(specs, str) or hasattr(specs, "update") or callable(specs):
        return [specs]
    check_argument("metrics", "metrics", "Sequence | None", specs)
    return () if specs is None else tuple(specs)
