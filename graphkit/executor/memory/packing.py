"""A cache of packed operands: parameters and constants in the layouts of kernels, shared by an executor's programs."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from graphkit.executor.devices.extension import import_extension
from graphkit.executor.devices.kernel import NativeKernel, VersionedArray
from graphkit.executor.memory.planner import ALIGNMENT
from graphkit.ir.stored import Scratch
from graphkit.named_tuples import NamedTuple

_PAGE = 4096
# Memory of at least this many bytes begins with a page.
_LARGE = 1 << 16


class PackedOperand(NamedTuple):
    """External memory with a parameter or constant: unchanged if `kernel` is None, else packed by it for `position`.

    layout: `kernel.packed_layout(position)`.
    """

    external: int
    array: VersionedArray
    kernel: NativeKernel | None = None
    position: int = -1
    layout: str = ""


class HeldArrays(list[np.ndarray]):
    """Arrays of operands. Packed copies exist as long as a program holds this list."""


class SharedOperands:
    """Operands that many programs read.

    Attributes:
        operands: The operands.
        externals: The external memory of each.
        latest: The latest stamp, and the arrays that `PackedArrays.get_shared` returned for it.
    """

    def __init__(self, operands: Sequence[PackedOperand]):
        self.operands = operands
        self.externals = [operand.external for operand in operands]
        self.latest: tuple[int, weakref.ref[HeldArrays]] | None = None


class PackedArrays:
    """A cache with one packed copy per array and layout. If the version of the array changes, it is packed again.

    The cache refers to copies weakly: a copy exists as long as a program holds the result of `get`.

    stamp: Returns a number that changes whenever the version of any array may have changed.
    """

    def __init__(self, stamp: Callable[[], int]) -> None:
        self._lock = threading.Lock()
        self._stamp = stamp
        self._copies: dict[tuple[int, str], _PackedCopy] = {}

    def get(self, operands: Iterable[PackedOperand]) -> list[np.ndarray]:
        """Return the arrays that programs read for these operands."""
        found = []
        scratch = Scratch()
        with self._lock:
            stamp = self._stamp()
            for _, source, kernel, position, layout in operands:
                if kernel is None:
                    found.append(self._current(source, "", stamp, _unchanged))
                else:
                    found.append(self._current(source, layout, stamp, partial(_packed, kernel, position, scratch)))
        return found

    def get_shared(self, operands: SharedOperands) -> HeldArrays:
        """Return the same as `get`. It is fast if another program holds the arrays."""
        before = self._stamp()
        latest = operands.latest  # read once: other threads write it
        if latest is not None and latest[0] == before and (held := latest[1]()) is not None:
            return held
        held = HeldArrays(self.get(operands.operands))
        operands.latest = before, weakref.ref(held)
        return held

    def cached(self, source: VersionedArray, layout: str, make: Callable[[VersionedArray], Any]) -> Any:
        """Return `make(source)`, or the cached result for this source and layout. The layout is only a key."""
        with self._lock:
            return self._current(source, layout, self._stamp(), make)

    def _current(self, source: VersionedArray, layout: str, stamp: int, make: Callable[[VersionedArray], Any]) -> Any:
        # `stamp` was read before the version: after a write in between, the next call packs the array again.
        key = (id(source), layout)
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


def _packed(kernel: NativeKernel, position: int, scratch: Scratch, source: VersionedArray) -> np.ndarray:
    packed = provided_bytes(kernel.packed_bytes(position))
    scratch.clear()
    kernel.pack(position, source.borrowed(scratch), packed)
    return packed


def _unchanged(source: VersionedArray) -> np.ndarray:
    return source.array


class _PackedCopy(NamedTuple):
    """A packed copy of one version of an array. At `stamp`, that version was the current one."""

    version: int
    stamp: int
    reference: weakref.ref[Any]


def aligned_bytes(size: int) -> np.ndarray:
    """Return `size` bytes (at least 1) of uninitialised memory, aligned to ALIGNMENT, or to a page if it is large."""
    # Processors take a load for one of a recent store if the last 12 bits of the addresses are equal. Large arrays of
    # callers begin 16 bytes behind a page. If a result began less than 256 bytes later, each load would wait for a
    # store.
    alignment = _PAGE if size >= _LARGE else ALIGNMENT
    raw = np.empty(size + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + max(size, 1)]


def provided_bytes(size: int, reserve: int = 0) -> np.ndarray:
    """Return the same for memory whose first `size` bytes will all be written. `reserve` bytes follow it.

    The system provides their pages in one call: page faults take longer than to write the pages.
    """
    memory = aligned_bytes(size + reserve)
    if size >= _LARGE:
        import_extension().provide_pages(memory, size)
    return memory
