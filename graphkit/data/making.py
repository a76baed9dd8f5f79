"""How a batch is made: where its arrays are allocated, and which sample is being made."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np


class Making:
    """A batch that is being made. In the training process, its arrays are ordinary numpy arrays.

    damaged: (number, message) of each damaged sample, in the order in which they were tried. replaced: number of
    samples of the batch that replace damaged ones.
    """

    def __init__(self) -> None:
        self.damaged: list[tuple[int, str]] = []
        self.replaced = 0

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Return an uninitialised array of the batch; its first axis counts samples."""
        return np.empty(shape, dtype)

    def begin(self, number: int) -> None:
        """Note that the sample of this number is made next."""


class BatchMaker(Protocol):
    """The methods and attributes of a `LazyDataset` that worker processes use."""

    name: str

    def make_batch(self, places: np.ndarray, key: tuple[int, int] | None, making: Making) -> tuple[Any, Any]: ...
