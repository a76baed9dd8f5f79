"""How good a detector is: the average precision of a class, as in Pascal VOC from 2010 on (Everingham et al.)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

OVERLAP = 0.5  # of a box with an object that it has found, at least


class Boxes(NamedTuple):
    """Of an image: boxes [n, 4], x1, y1, x2, y2 as parts of its size, labels int64 [n], scores [n] of those found."""

    boxes: np.ndarray
    labels: np.ndarray
    scores: np.ndarray | None = None


def overlap(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Intersection over union [n, m] of boxes [n, 4] and [m, 4]."""
    sides = np.minimum(a[:, None, 2:], b[None, :, 2:]) - np.maximum(a[:, None, :2], b[None, :, :2])
    shared = np.maximum(sides, 0).prod(axis=2)
    area_a, area_b = ((boxes[:, 2:] - boxes[:, :2]).prod(axis=1) for boxes in (a, b))
    union: np.ndarray = shared / (area_a[:, None] + area_b - shared)
    return union


def average_precision(found: Sequence[Boxes], there: Sequence[Boxes], label: int) -> float:
    """The area under the curve of precision over recall for one class, as in Pascal VOC from 2010 on.

    Everything found, from the highest score on, is right if it overlaps an object of its class by OVERLAP or more that
    nothing before has found (of several, the one that it overlaps most). At each recall counts the highest precision at
    that recall or more: AP = sum over n of (r_n - r_(n-1)) max over m >= n of p_m. ValueError without any object.
    """
    objects = sum(int((image.labels == label).sum()) for image in there)
    if not objects:
        raise ValueError(f"there is no object of class {label} to find")
    scored: list[tuple[float, bool]] = []
    for result, truth in zip(found, there, strict=True):
        assert result.scores is not None
        wanted, taken = truth.boxes[truth.labels == label], set()
        mine = np.flatnonzero(result.labels == label)
        for i in mine[np.argsort(-result.scores[mine], kind="stable")]:
            overlaps = overlap(result.boxes[i : i + 1], wanted)[0] if len(wanted) else np.zeros(1)
            best = int(overlaps.argmax())
            right = bool(overlaps[best] >= OVERLAP and best not in taken)
            taken |= {best} if right else set()
            scored.append((float(result.scores[i]), right))
    counts = np.array([right for _, right in sorted(scored, key=lambda one: -one[0])], bool)
    hits = np.cumsum(counts)
    precision = np.maximum.accumulate((hits / np.arange(1, len(hits) + 1))[::-1])[::-1]
    return float((precision * counts).sum() / objects)
