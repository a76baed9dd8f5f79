"""Memory that is handed out as numpy arrays, and detects whether any of these arrays still exists."""

from __future__ import annotations

import sys

import numpy as np


class SharedMemory:
    """C-contiguous memory of numbers that knows whether arrays in it still exist."""

    __slots__ = ("_own_references", "_view", "nbytes")

    def __init__(self, memory: np.ndarray):
        # Arrays in this memory, and views of them, refer to this view: numpy follows the bases of a view up to the last
        # numpy array, and the base of this one is a memoryview.
        self._view = np.asarray(memory.reshape(-1).view(np.uint8).data)
        self.nbytes = self._view.nbytes
        self._own_references = sys.getrefcount(self._view)

    @property
    def is_referenced(self) -> bool:
        """Whether an array in this memory, or a view of one, still exists."""
        return sys.getrefcount(self._view) > self._own_references

    def array(self, shape: tuple[int, ...], dtype: np.dtype, *, writable: bool) -> np.ndarray:
        """Return an array at the start of the memory. It may be smaller than the memory."""
        made: np.ndarray = np.ndarray(shape, dtype, self._view)
        if not writable:
            made.flags.writeable = False
        return made
