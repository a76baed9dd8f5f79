"""The best classes of an output, by name where the model's metadata has names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphkit.errors import UsageError
from graphkit.model import Model

# Without --top, so many classes of so many samples are shown when they have names.
SHOWN, SAMPLES = 5, 8

# Operators whose results are probabilities, or their logarithms.
_PROBABILITIES = {"Softmax": False, "Sigmoid": False, "LogSoftmax": True}


def best(
    model: Model, results: Mapping[str, np.ndarray], count: int | None, files: Sequence[str] = ()
) -> dict[str, Any] | None:
    """The `count` best classes of every sample in an output, as `--json` shows them. files: what the samples are of.

    count: None for what is shown unasked, which is nothing for a
    model without class names. Raises UsageError when no output gives classes.
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
    """Columns and rows: sample, class, name, probability."""
    rows: list[Sequence[str]] = [
        (_sample(s), str(c["class"]), c["name"] or "", f"{c['probability']:.4f}")
        for s in found["samples"]
        for c in s["classes"]
    ]
    return ("sample", "class", "name", "probability"), rows


def _sample(found: Mapping[str, Any]) -> str:
    """The file of a sample and its place in that, or its place in the batch."""
    place = [str(i) for i in found["sample"]]
    return ",".join([found["file"], *place[1:]] if "file" in found else place)


def _name(model: Model, index: int) -> str | None:
    return model.classes[index] if model.classes is not None and index < len(model.classes) else None


def _output(model: Model, results: Mapping[str, np.ndarray], asked: bool) -> str | None:
    """The output that classes are read from; None where none was asked for and it is not clear."""
    known = None if model.classes is None else len(model.classes)
    fits = [n for n, a in results.items() if _count(a, known) is not None]
    named = [n for n in fits if known is not None and _count(results[n], known) == known]
    fits = named or fits
    if len(fits) == 1:
        return fits[0]
    if not asked:
        return None
    if fits:
        raise UsageError(f"several outputs could be classes ({', '.join(fits)}); say which: --output-name")
    shapes = ", ".join(f"{n} {a.dtype}{list(a.shape)}" for n, a in results.items())
    raise UsageError(f"--top needs an output of floats with one number for each class; there is {shapes}")


def _flat(array: np.ndarray) -> np.ndarray:
    """[N, C] of [N, C, 1, 1], as convolutions give it."""
    while array.ndim > 2 and array.shape[-1] == 1:
        array = array[..., 0]
    return array


def _count(array: np.ndarray, known: int | None) -> int | None:
    """How many classes an output tells apart; None when it tells none."""
    if array.dtype.kind not in "fV" or not array.ndim or not array.size:
        return None
    size = _flat(array).shape[-1]
    return 2 if size == 1 and known == 2 else size if size > 1 else None


def _probabilities(model: Model, name: str, array: np.ndarray) -> np.ndarray:
    """float64 [..., classes]: what the output is when a Softmax or Sigmoid gives it, else the softmax of it."""
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
    """Whether an output is probabilities already, whatever gave them."""
    return bool((values >= 0).all() and np.allclose(values.sum(axis=-1), 1.0, atol=1e-3))
