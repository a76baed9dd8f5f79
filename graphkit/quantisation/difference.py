"""How far the outputs of a quantised model are from those of the float model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphkit.inference.batch_runner import BatchRunner
from graphkit.ir.types import TensorType
from graphkit.model import Model
from graphkit.quantisation.calibration import Samples


@dataclass(frozen=True)
class OutputDifference:
    """The difference of one output.

    Attributes:
        name: Name of the output in the float model.
        elements: Number of elements that are finite in both models.
        sqnr: Signal-to-quantisation-noise ratio in dB: 10 log10(sum of squares of the float output / sum of squared
            differences). Infinite if there is no difference.
        max_abs: The largest difference.
        largest: The largest magnitude of the float output.
        nonfinite: Number of elements that are finite in only one of the models.
    """

    name: str
    elements: int
    sqnr: float
    max_abs: float
    largest: float
    nonfinite: int

    def as_dict(self) -> dict[str, Any]:
        """Return the difference as plain data, for JSON. An infinite ratio is None."""
        return {**vars(self), "sqnr": self.sqnr if math.isfinite(self.sqnr) else None}


class _Sums:
    """Sums over the batches of one output."""

    def __init__(self) -> None:
        self.elements = self.nonfinite = 0
        self.signal = self.noise = self.max_abs = self.largest = 0.0

    def add(self, exact: np.ndarray, other: np.ndarray) -> None:
        a, b = exact.astype(np.float64), other.astype(np.float64)
        both = np.isfinite(a) & np.isfinite(b)
        self.nonfinite += int(np.count_nonzero(np.isfinite(a) != np.isfinite(b)))
        a, b = a[both], b[both]
        self.elements += a.size
        self.signal += float(np.square(a).sum())
        self.noise += float(np.square(a - b).sum())
        self.max_abs = max(self.max_abs, float(np.abs(a - b).max(initial=0.0)))
        self.largest = max(self.largest, float(np.abs(a).max(initial=0.0)))

    def result(self, name: str) -> OutputDifference:
        ratio = math.inf if not self.noise else -math.inf if not self.signal else self.signal / self.noise
        sqnr = 10 * math.log10(ratio) if 0 < ratio < math.inf else ratio
        return OutputDifference(name, self.elements, sqnr, self.max_abs, self.largest, self.nonfinite)


def output_differences(
    model: Model, quantised: Model, samples: Samples, *, threads: int | None = None
) -> tuple[OutputDifference, ...]:
    """Run both models in graphkit on the same samples, and compare their outputs of floats.

    Args:
        model: The float model.
        quantised: The quantised model, with the same inputs and outputs.
        samples: The samples.
        threads: Number of CPU threads.

    Returns:
        One entry for each output that is a tensor of floats. Outputs without elements are left out.
    """
    names = [
        name for name, kind in model.output_types.items() if isinstance(kind, TensorType) and kind.dtype.is_float
    ]  # fmt: skip
    if not names:
        return ()
    same = dict(zip(model.outputs, quantised.outputs, strict=True))
    first = BatchRunner(model, threads=threads, axes=samples.axes)
    second = BatchRunner(quantised, threads=threads, axes=samples.axes)
    sums = {name: _Sums() for name in names}
    for feed in samples.feeds:
        exact = first.run(feed.arrays, feed.size, names)
        found = second.run(feed.arrays, feed.size, [same[name] for name in names])
        for name, total in sums.items():
            total.add(exact[name], found[same[name]])
    return tuple(total.result(name) for name, total in sums.items() if total.elements or total.nonfinite)
