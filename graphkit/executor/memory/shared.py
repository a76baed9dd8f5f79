"""Memory that callers see through arrays, and whether anybody still sees it."""

from __future__ import annotations

import math
import os
import threading
import weakref
from typing import Any

import numpy as np

# Two threads that ask for an array at the same time get one owner. The child of a fork has a lock of its own: a thread
# that it does not have may hold the parent's.
_lock = threading.Lock()


def _unlock() -> None:
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock)


class _Owner:
    """What all arrays on a piece of memory refer to. Views of arrays refer to it as well, for it is no array itself."""

    __slots__ = ("__array_interface__", "__weakref__", "_memory")

    def __init__(self, memory: np.ndarray):
        self._memory = memory
        self.__array_interface__: dict[str, Any] = memory.__array_interface__


class SharedMemory:
    """C-contiguous memory of plain elements; `seen` tells whether an array that `array` made, or a view, is alive."""

    __slots__ = ("_bytes", "_owner")

    def __init__(self, memory: np.ndarray):
        self._bytes = memory.reshape(-1).view(np.uint8)
        self._owner: weakref.ref[_Owner] | None = None

    @property
    def seen(self) -> bool:
        return self._owner is not None and self._owner() is not None

    @property
    def nbytes(self) -> int:
        return self._bytes.nbytes

    def array(self, shape: tuple[int, ...], dtype: np.dtype, *, writable: bool) -> np.ndarray:
        """An array on the memory, from its start; it may be smaller."""
        with _lock:
            owner = None if self._owner is None else self._owner()
            if owner is None:
                owner = _Owner(self._bytes)
                self._owner = weakref.ref(owner)
        size = math.prod(shape) * dtype.itemsize
        made = np.asarray(owner)[:size].view(dtype).reshape(shape)
        made.flags.writeable = writable
        return made
