"""The most probable classes of an output, with their names if the model's metadata has names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphkit.errors import UsageError
from graphkit.model import Model

# Without --top, if classes have names: how many classes are shown, and of how many samples at most.
SHOWN, SAMPLES = 5, 8

# Operators whose results are probabilities (False) or log-probabilities (True).
_PROBABILITIES = {"Softmax": False, "Sigmoid": False, "LogSoftmax": True}


def best(
    model: Model, results: Mapping[str, np.ndarray], count: int | None, files: Sequence[str] = ()
) -> dict[str, Any] | None:
    """Return the most probable classes of every sample in an output, in the form that `--json` prints.

    Without --top, it returns None if no single output is clearly class scores, if classes have no names, or if there
    are more than SAMPLES samples.

    Args:
        model: The model, whose metadata may have class names.
        results: Its outputs by name.
        count: Classes per sample (--top). None: a default number for models with class names, otherwise nothing.
        files: The files of the samples, if the inputs were images.

    Raises:
        UsageError: --top is given, and no output, or more than one, can be scores of classes.
    """
    if count is None and model.classes is None:
        return None
    asked = count is not None
    chosen = _output(model, results, asked)
    if chosen is None:
        return None
    scores = _probabilities(model, chosen, results[chosen])
    samples = list(np.ndindex(*scores.shape[:-1]))
    if not asked and len(samples) > SAMPLES:
        return None
    found = []
    for place in samples:
        row = scores[place]
        order = np.argsort(-row, kind="stable")[: count or SHOWN]
        classes = [{"class": int(i), "name": _name(model, int(i)), "probability": float(row[i])} for i in order]
        sample: dict[str, Any] = {"sample": [int(i) for i in place]}
        if place and len(files) == scores.shape[0]:
            sample["file"] = files[place[0]]
        found.append({**sample, "classes": classes})
    return {"output": chosen, "samples": found}


def table(found: Mapping[str, Any]) -> tuple[Sequence[str], list[Sequence[str]]]:
    """Return columns and rows of a table: sample, class, name, probability."""
    rows: list[Sequence[str]] = [
        (_sample(s), str(c["class"]), c["name"] or "", f"{c['probability']:.4f}")
        for s in found["samples"]
        for c in s["classes"]
    ]
    return ("sample", "class", "name", "probability"), rows


def _sample(found: Mapping[str, Any]) -> str:
    """Return the label of a sample: its file and the index in it, or its index in the batch."""
    place = [str(i) for i in found["sample"]]
    return ",".join([found["file"], *place[1:]] if "file" in found else place)


def _name(model: Model, index: int) -> str | None:
    return model.classes[index] if model.classes is not None and index < len(model.classes) else None


def _output(model: Model, results: Mapping[str, np.ndarray], asked: bool) -> str | None:
    """Return the output with the scores of classes; None if that is unclear and --top is not given."""
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


def _flat(array: np.ndarray) -> np.ndarray:
    """Drop trailing axes of size 1, such as those of a convolution's output: [N, C, 1, 1] becomes [N, C]."""
    while array.ndim > 2 and array.shape[-1] == 1:
        array = array[..., 0]
    return array


def _count(array: np.ndarray, known: int | None) -> int | None:
    """Return the number of classes of an output; None if it cannot be class scores."""
    if array.dtype.kind not in "fV" or not array.ndim or not array.size:
        return None
    size = _flat(array).shape[-1]
    return 2 if size == 1 and known == 2 else size if size > 1 else None


def _probabilities(model: Model, name: str, array: np.ndarray) -> np.ndarray:
    """Return probabilities, float64 [..., classes].

    Results of Softmax or Sigmoid, and several values with a sum of 1, are probabilities already; those of LogSoftmax
    are logarithms. Other values get a softmax, or the logistic function if there is one value per sample.
    """
    values = _flat(array).astype(np.float64)
    value = model.graph.outputs[model.outputs.index(name)]
    operator = value.node.op.name if value.node is not None and not value.node.op.domain else ""
    single = values.shape[-1] == 1
    if operator in _PROBABILITIES:
        values = np.exp(values) if _PROBABILITIES[operator] else values
    elif single:
        values = 1.0 / (1.0 + np.exp(-values))
    elif not _sum_to_one(values):
        values = np.exp(values - values.max(axis=-1, keepdims=True))
        values /= values.sum(axis=-1, keepdims=True)
    return np.concatenate([1.0 - values, values], axis=-1) if single else values


def _sum_to_one(values: np.ndarray) -> bool:
    """Whether values are probabilities already: not negative, with a sum of 1."""
    return bool((values >= 0).all() and np.allclose(values.sum(axis=-1), 1.0, atol=1e-3))
