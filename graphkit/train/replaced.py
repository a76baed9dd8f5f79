"""Count the samples of an epoch that replace damaged ones; a metric, exact to the batch and over processes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


class Replaced:
    """A metric that no output changes."""

    name = "data.damaged"

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.count = 0

    def update(self, output: np.ndarray, target: np.ndarray) -> None:
        """Outputs say nothing of it: see `add`."""

    def add(self, replaced: int) -> None:
        """So many samples of a batch stood in for damaged ones."""
        self.count += replaced

    @property
    def value(self) -> int:
        return self.count

    def state(self) -> dict[str, np.ndarray]:
        return {"count": np.asarray(self.count, np.int64)}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        self.count = int(state["count"])

    def merge(self, state: Mapping[str, np.ndarray]) -> None:
        self.count += int(state["count"])
