"""The most probable classes of samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from graphkit.inference.class_outputs import meaning, probabilities, scores_output
from graphkit.model import Model
from graphkit.named_tuples import NamedTuple


class ClassScore(NamedTuple):
    """A predicted class: its number, its name (None if the model has no class names), and its probability."""

    number: int
    name: str | None
    probability: float


@dataclass
class ClassRanking:
    """Finds the most probable classes. The first batch decides which output scores classes, and how.

    count: Number of classes per sample; None for 1 if classes have names, else none.
    """

    model: Model
    count: int | None
    output: str | None = None
    kind: str = ""
    names: Sequence[str] | None = None
    decided: bool = False

    def decide(self, results: Mapping[str, np.ndarray], keys: Mapping[str, np.ndarray]) -> None:
        self.decided = True
        self.names = self.model.classes
        scores = {name: found for name, array in results.items() if (found := _rows(array)) is not None}
        if self.names is None and len(keys) == 1:  # a map from classes to probabilities
            ((self.output, found),) = keys.items()
            self.names = [str(key) for key in found]
        elif self.names is not None or self.count is not None:
            self.output = scores_output(self.model, scores or results, self.count is not None)
        if self.output is not None:
            self.kind = meaning(self.model, self.output, scores[self.output])

    def of(self, results: Mapping[str, np.ndarray]) -> list[tuple[ClassScore, ...]] | None:
        """Return the classes of each sample; None if no output scores classes."""
        if self.output is None:
            return None
        rows = _rows(results[self.output])
        assert rows is not None
        found = probabilities(rows, self.kind)
        best = np.argsort(-found, axis=1, kind="stable")[:, : self.count or 1]
        values = np.take_along_axis(found, best, axis=1)
        names = self.names if self.names is not None and len(self.names) == found.shape[1] else None
        return [
            tuple(
                ClassScore(number, None if names is None else names[number], value)
                for number, value in zip(numbers, row, strict=True)
            )
            for numbers, row in zip(best.tolist(), values.tolist(), strict=True)
        ]


def _rows(array: np.ndarray) -> np.ndarray | None:
    """Return an output as [N, C]; None if it has more than one axis besides the batch whose size is not 1."""
    if sum(size != 1 for size in array.shape[1:]) > 1:
        return None
    return array.reshape(len(array), -1)
