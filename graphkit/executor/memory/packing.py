"""A cache of packed operands: parameters and constants in the layouts of kernels, shared by an executor's programs."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from graphkit.executor.devices.kernel import NativeKernel, VersionedArray
from graphkit.executor.memory.planner import ALIGNMENT


class PackedArrays:
    """A cache with one packed copy per array and layout. If the version of the array changes, it is packed again.

    The cache refers to copies weakly: a copy exists as long as a program holds the result of `get`.

    stamp: Returns a number that changes whenever the version of any array may have changed.
    """

    def __init__(self, stamp: Callable[[], int]) -> None:
        self._lock = threading.Lock()
        self._stamp = stamp
        self._copies: dict[tuple[int, str], _PackedCopy] = {}

    def get(self, source: VersionedArray, kernel: NativeKernel, position: int) -> np.ndarray:
        """Return the packed form of `source` that `kernel` reads as its input at `position`."""

        def pack(source: VersionedArray) -> np.ndarray:
            packed = aligned_bytes(kernel.packed_bytes(position))
            kernel.pack(position, source.array, packed)
            return packed

        packed: np.ndarray = self.cached(source, kernel.packed_layout(position), pack)
        return packed

    def plain(self, source: VersionedArray) -> np.ndarray:
        """Return the array without packing it."""
        array: np.ndarray = self.cached(source, "", lambda source: source.array)
        return array

    def cached(self, source: VersionedArray, layout: str, make: Callable[[VersionedArray], Any]) -> Any:
        """Return `make(source)`, or the cached result for this source and layout. The layout is only a key."""
        key = (id(source), layout)
        with self._lock:
            stamp = self._stamp()  # read before the version: a write in between changes it, and is seen next time
            cached = self._copies.get(key)
            packed = None if cached is None else cached.reference()
            if cached is not None and packed is not None:
                if cached.stamp == stamp:
                    return packed
                if cached.version == source.version:
                    self._copies[key] = cached._replace(stamp=stamp)
                    return packed
            version = source.version
            packed = make(source)
            self._copies[key] = _PackedCopy(version, stamp, weakref.ref(packed))
            return packed


class _PackedCopy(NamedTuple):
    """A packed copy of one version of an array. At `stamp`, that version was the current one."""

    version: int
    stamp: int
    reference: weakref.ref[Any]


def aligned_bytes(size: int) -> np.ndarray:
    """Return `size` bytes (at least 1) of uninitialised memory, aligned to ALIGNMENT."""
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + max(size, 1)]
