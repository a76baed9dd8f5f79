"""Find the output that scores classes, and convert its values to probabilities."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from graphkit.errors import UsageError
from graphkit.ir.graph import Value
from graphkit.model import Model
from graphkit.passes.core.match import is_op
from graphkit.train.probabilities import are_probabilities

# Kinds of scores.
PROBABILITIES, LOGARITHMS, LOGITS = "probabilities", "logarithms", "logits"


def scores_output(model: Model, results: Mapping[str, np.ndarray], asked: bool) -> str | None:
    """Return the name of the output with the scores of classes.

    Args:
        model: The model, whose metadata may have class names.
        results: Its outputs by name.
        asked: Whether the user asked for classes (--top). If not, an unclear case returns None.

    Raises:
        UsageError: The user asked for classes, and no output, or more than one, can be scores of classes.
    """
    known = None if model.classes is None else len(model.classes)
    fits = [n for n, a in results.items() if _count(a, known) is not None]
    named = [n for n in fits if known is not None and _count(results[n], known) == known]
    fits = named or fits
    if len(fits) == 1:
        return fits[0]
    if not asked:
        return None
    if fits:
        raise UsageError(
            f"--top: several outputs may be class scores ({', '.join(fits)}); choose one with --output-name"
        )
    shapes = ", ".join(f"{n} {a.dtype}{list(a.shape)}" for n, a in results.items())
    raise UsageError(
        f"--top needs a floating-point output with one score per class in its last axis; the outputs are {shapes}"
    )


def meaning(model: Model, name: str, array: np.ndarray) -> str:
    """Return what the values of an output are: PROBABILITIES, LOGARITHMS (of probabilities) or LOGITS.

    Results of Softmax or Sigmoid are probabilities, and those of LogSoftmax are logarithms. Other values are
    probabilities if there are several for each sample, none is negative, and their sums are 1.
    """
    value = model.graph.outputs[model.outputs.index(name)]
    if _is_log_softmax(value):
        return LOGARITHMS
    if are_probabilities(value):
        return PROBABILITIES
    values = flat(array).astype(np.float64)
    return PROBABILITIES if values.shape[-1] > 1 and _sum_to_one(values) else LOGITS


def probabilities(array: np.ndarray, kind: str) -> np.ndarray:
    """Return probabilities, float64 [..., classes], of an output whose values are `kind` (see `meaning`).

    Logits get a softmax. A single value per sample is the logit, or the probability, of the second of two classes.
    """
    values = flat(array).astype(np.float64)
    single = values.shape[-1] == 1
    if kind == LOGARITHMS:
        values = np.exp(values)
    elif kind == LOGITS and single:
        with np.errstate(over="ignore"):
            values = 1.0 / (1.0 + np.exp(-values))
    elif kind == LOGITS:
        with np.errstate(invalid="ignore"):  # scores that are not finite have no probability
            values = np.exp(values - values.max(axis=-1, keepdims=True))
            values /= values.sum(axis=-1, keepdims=True)
    return np.concatenate([1.0 - values, values], axis=-1) if single else values


def flat(array: np.ndarray) -> np.ndarray:
    """Drop trailing axes of size 1, such as those of a convolution's output: [N, C, 1, 1] becomes [N, C]."""
    while array.ndim > 2 and array.shape[-1] == 1:
        array = array[..., 0]
    return array


def _count(array: np.ndarray, known: int | None) -> int | None:
    """Return the number of classes of an output; None if it cannot be class scores."""
    if array.dtype.kind not in "fV" or not array.ndim or not array.size:
        return None
    size = flat(array).shape[-1]
    return 2 if size == 1 and known == 2 else size if size > 1 else None


def _is_log_softmax(value: Value) -> bool:
    return value.node is not None and is_op(value.node, "LogSoftmax")


def _sum_to_one(values: np.ndarray) -> bool:
    """Whether values are probabilities already: not negative, with a sum of 1. Samples with NaN do not count."""
    known = values[~np.isnan(values).any(axis=-1)]
    return bool(known.size and (known >= 0).all() and np.allclose(known.sum(axis=-1), 1.0, atol=1e-3))
