"""Average precision of a detector for one class, as in Pascal VOC since 2010 (Everingham et al.)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

OVERLAP = 0.5  # smallest intersection over union of a box with the object that it detects


class Boxes(NamedTuple):
    """Boxes of one image: [n, 4], x1, y1, x2, y2 as fractions of its size; labels int64 [n]; scores [n] if detected."""

    boxes: np.ndarray
    labels: np.ndarray
    scores: np.ndarray | None = None


def overlap(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the intersection over union [n, m] of boxes [n, 4] and [m, 4]."""
    sides = np.minimum(a[:, None, 2:], b[None, :, 2:]) - np.maximum(a[:, None, :2], b[None, :, :2])
    shared = np.maximum(sides, 0).prod(axis=2)
    area_a, area_b = ((boxes[:, 2:] - boxes[:, :2]).prod(axis=1) for boxes in (a, b))
    union: np.ndarray = shared / (area_a[:, None] + area_b - shared)
    return union


def average_precision(found: Sequence[Boxes], there: Sequence[Boxes], label: int) -> float:
    """Return the area under the precision-recall curve of one class, as in Pascal VOC since 2010.

    Detections are matched in the order of their scores, the highest first. A detection is right if it overlaps an
    object of its class by at least OVERLAP, and no earlier detection was matched to that object. Only the object that
    it overlaps most is considered. The precision at a recall is the highest one at that recall or above:
    AP = sum over n of (r_n - r_(n-1)) max over m >= n of p_m.

    Raises:
        ValueError: There is no object of the class.
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
