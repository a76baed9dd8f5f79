"""Packed operands: parameters and constants in the layouts that kernels want, shared by all programs of an executor."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from graphkit.executor.devices.kernel import NativeKernel, VersionedArray
from graphkit.executor.memory.planner import ALIGNMENT


class PackedArrays:
    """One packed copy for each array and layout, made again when the array's version has changed.

    A copy lives as long as a program uses it: programs hold what `get` returns.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[tuple[int, str], tuple[int, weakref.ref[Any]]] = {}

    def get(self, source: VersionedArray, kernel: NativeKernel, position: int) -> np.ndarray:
        """The packed form of `source` that `kernel` reads as its input at `position`."""

        def pack(source: VersionedArray) -> np.ndarray:
            packed = aligned_bytes(kernel.packed_bytes(position))
            kernel.pack(position, source.array, packed)
            return packed

        packed: np.ndarray = self.made(source, kernel.packed_layout(position), pack)
        return packed

    def made(self, source: VersionedArray, layout: str, make: Callable[[VersionedArray], Any]) -> Any:
        """What `make` makes of `source`, known by the name of its layout."""
        key = (id(source), layout)
        with self._lock:
            version = source.version
            made, reference = self._made.get(key, (-1, None))
            packed = None if reference is None or made != version else reference()
            if packed is None:
                packed = make(source)
                self._made[key] = (version, weakref.ref(packed))
            return packed


def aligned_bytes(size: int) -> np.ndarray:
    """Uninitialised memory that starts at a multiple of ALIGNMENT."""
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + max(size, 1)]
