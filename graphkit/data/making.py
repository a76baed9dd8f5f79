"""How a batch is made: who gives the memory of its arrays, and hears which sample it is at."""

from __future__ import annotations

import numpy as np


class Making:
    """One batch on its way. In the process that trains its arrays are numpy's own.

    damaged: (number, message) of each sample that was found to be damaged, in the order in which they were tried;
    replaced: how many samples of the batch stand in for such ones.
    """

    def __init__(self) -> None:
        self.damaged: list[tuple[int, str]] = []
        self.replaced = 0

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """An array of the batch, whose first axis counts samples; its elements are not set."""
        return np.empty(shape, dtype)

    def begin(self, number: int) -> None:
        """The sample of that number is made next."""
