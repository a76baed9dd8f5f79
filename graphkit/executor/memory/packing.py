"""A cache of packed operands: parameters and constants in the layouts of kernels, shared by an executor's programs."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from graphkit.executor.devices.kernel import NativeKernel, VersionedArray
from graphkit.executor.memory.planner import ALIGNMENT
from graphkit.ir.stored import HUGE_PAGE, Scratch, pages
from graphkit.named_tuples import NamedTuple

_PAGE = 4096
# Memory of at least this many bytes begins with a page.
_LARGE = 1 << 16
# Bytes of a block for several arrays.
_BLOCK = 2 * HUGE_PAGE


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

    The cache refers to copies weakly: a copy exists as long as a program holds the result of `get`. New copies share
    blocks of memory. The copy of a newer version has its own memory, which the heap often has.

    stamp: Returns a number that changes whenever the version of any array may have changed.
    """

    def __init__(self, stamp: Callable[[], int]) -> None:
        self._lock = threading.Lock()
        self._stamp = stamp
        self._copies: dict[tuple[int, str], _PackedCopy] = {}

    def get(self, operands: Sequence[PackedOperand]) -> list[np.ndarray]:
        """Return the arrays that programs read for these operands."""
        found = []
        scratch = Scratch()
        blocks: _Blocks | None = None
        with self._lock:
            stamp = self._stamp()
            for _, source, kernel, position, layout in operands:
                if kernel is None:
                    found.append(self._current(source, "", stamp, _unchanged))
                    continue
                allocate = aligned_bytes
                if self._copy(source, layout) is None:
                    blocks = blocks or _Blocks(self._missing_bytes(operands))
                    allocate = blocks.take
                make = partial(_packed, kernel, position, scratch, allocate)
                found.append(self._current(source, layout, stamp, make))
        return found

    def _copy(self, source: VersionedArray, layout: str) -> Any:
        """Return the copy of any version, or None."""
        cached = self._copies.get((id(source), layout))
        return None if cached is None else cached.reference()

    def _missing_bytes(self, operands: Sequence[PackedOperand]) -> int:
        """Return the size of the large copies that do not exist yet, each in full pages."""
        missing = {
            (id(source), layout): kernel.packed_bytes(position)
            for _, source, kernel, position, layout in operands
            if kernel is not None and self._copy(source, layout) is None
        }
        return sum(_full_pages(size) for size in missing.values() if size >= _LARGE)

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


def _packed(
    kernel: NativeKernel,
    position: int,
    scratch: Scratch,
    allocate: Callable[[int], np.ndarray],
    source: VersionedArray,
) -> np.ndarray:
    packed = allocate(kernel.packed_bytes(position))
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


class _Blocks:
    """Memory for arrays that are packed one after another. Large ones share blocks with huge pages.

    The system provides a huge page in a fifth of the time of the small pages in it. A block is released when none of
    its arrays is in use.

    size: The sum of the sizes of the large arrays, each in full pages.
    """

    def __init__(self, size: int):
        self._rest = size
        self._free = np.empty(0, np.uint8)

    def take(self, size: int) -> np.ndarray:
        """Return what `aligned_bytes` returns. Raises MemoryError."""
        if size < _LARGE:
            return aligned_bytes(size)
        taken = _full_pages(size)
        if len(self._free) < taken:
            self._free = _block(max(taken, min(self._rest, _BLOCK)))
        array, self._free = self._free[:size], self._free[taken:]
        self._rest -= taken
        return array


def _block(size: int) -> np.ndarray:
    # The last huge page is filled if that wastes a quarter of it at most.
    waste = -size % HUGE_PAGE
    filled = size + waste if waste <= HUGE_PAGE // 4 else size
    return np.frombuffer(pages(filled, huge=True), np.uint8) if filled >= HUGE_PAGE else aligned_bytes(size)


def _full_pages(size: int) -> int:
    return -(-size // _PAGE) * _PAGE


def aligned_bytes(size: int) -> np.ndarray:
    """Return `size` bytes (at least 1) of uninitialised memory, aligned to ALIGNMENT, or to a page if it is large."""
    # Processors take a load for one of a recent store if the last 12 bits of the addresses are equal. Large arrays of
    # callers begin 16 bytes behind a page. If a result began less than 256 bytes later, each load would wait for a
    # store.
    alignment = _PAGE if size >= _LARGE else ALIGNMENT
    raw = np.empty(size + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + max(size, 1)]
