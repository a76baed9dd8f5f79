"""The most probable classes of an output, with their names if the model's metadata has names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphkit.inference.class_outputs import meaning, probabilities, scores_output
from graphkit.model import Model

# Without --top, if classes have names: how many classes are shown, and of how many samples at most.
SHOWN, SAMPLES = 5, 8


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
    chosen = scores_output(model, results, asked)
    if chosen is None:
        return None
    scores = probabilities(results[chosen], meaning(model, chosen, results[chosen]))
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
