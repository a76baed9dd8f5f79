"""Packed operands: parameters and constants in the layouts that kernels want, shared by all programs of an executor."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphkit.executor.devices.kernel import NativeKernel, VersionedArray
from graphkit.executor.memory.planner import ALIGNMENT


class PackedArrays:
    """One packed copy for each array and layout, made again when the array's version has changed.

    A copy lives as long as a program uses it: programs hold what `get` returns. No version changes while `stamp` stays.
    """

    def __init__(self, stamp: Callable[[], int]) -> None:
        self._lock = threading.Lock()
        self._stamp = stamp
        self._made: dict[tuple[int, str], _Made] = {}

    def get(self, source: VersionedArray, kernel: NativeKernel, position: int) -> np.ndarray:
        """The packed form of `source` that `kernel` reads as its input at `position`."""

        def pack(source: VersionedArray) -> np.ndarray:
            packed = aligned_bytes(kernel.packed_bytes(position))
            kernel.pack(position, source.array, packed)
            return packed

        packed: np.ndarray = self.made(source, kernel.packed_layout(position), pack)
        return packed

    def plain(self, source: VersionedArray) -> np.ndarray:
        """The array itself."""
        array: np.ndarray = self.made(source, "", lambda source: source.array)
        return array

    def made(self, source: VersionedArray, layout: str, make: Callable[[VersionedArray], Any]) -> Any:
        """What `make` makes of `source`, known by the name of its layout."""
        key = (id(source), layout)
        with self._lock:
            stamp = self._stamp()  # before the version: a write in between is found the next time
            known = self._made.get(key)
            packed = None if known is None else known.reference()
            if known is not None and packed is not None:
                if known.stamp == stamp:
                    return packed
                if known.version == source.version:
                    known.stamp = stamp
                    return packed
            version = source.version
            packed = make(source)
            self._made[key] = _Made(version, stamp, weakref.ref(packed))
            return packed


@dataclass
class _Made:
    """A packed copy, made of a version, which was the current one at a stamp."""

    version: int
    stamp: int
    reference: weakref.ref[Any]


def aligned_bytes(size: int) -> np.ndarray:
    """Uninitialised memory that starts at a multiple of ALIGNMENT."""
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + max(size, 1)]
