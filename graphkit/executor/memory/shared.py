"""Memory that is handed out as numpy arrays, and detects whether any of these arrays still exists."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

import numpy as np

# Ensures that concurrent calls of `SharedMemory.array` use the same owner.
_lock = threading.Lock()


def _replace_lock() -> None:
    """Use a new lock in a forked process: in the parent, a thread that does not exist here may hold the old one."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_replace_lock)


class _Owner:
    """The base object of all arrays in a piece of memory, and of their views. It is deleted with the last of them.

    It must not be a numpy array. numpy sets the base of a view to the array that owns the memory, so views would not
    refer to this object.
    """

    __slots__ = ("__array_interface__", "__weakref__", "_memory")

    def __init__(self, memory: np.ndarray, interface: dict[str, Any]):
        self._memory = memory
        self.__array_interface__ = interface


class SharedMemory:
    """C-contiguous memory of numbers that knows whether arrays in it still exist."""

    __slots__ = ("_bytes", "_interface", "_owner")

    def __init__(self, memory: np.ndarray):
        self._bytes = memory.reshape(-1).view(np.uint8)
        # Kept, because numpy makes a new dict in each access.
        self._interface: dict[str, Any] = self._bytes.__array_interface__
        self._owner: weakref.ref[_Owner] | None = None

    @property
    def is_referenced(self) -> bool:
        """Whether an array in this memory, or a view of one, still exists."""
        return self._owner is not None and self._owner() is not None

    @property
    def nbytes(self) -> int:
        return self._bytes.nbytes

    def array(self, shape: tuple[int, ...], dtype: np.dtype, *, writable: bool) -> np.ndarray:
        """Return an array at the start of the memory. It may be smaller than the memory."""
        with _lock:
            owner = None if self._owner is None else self._owner()
            if owner is None:
                owner = _Owner(self._bytes, self._interface)
                self._owner = weakref.ref(owner)
        made: np.ndarray = np.ndarray(shape, dtype, np.asarray(owner))
        made.flags.writeable = writable
        return made
